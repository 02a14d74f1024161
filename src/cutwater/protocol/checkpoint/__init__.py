"""The checkpoint machine: coordinator, attempts, schedule, ledger of decided cuts.

`events` holds what the coordinator receives and the commands it returns.
"""
