"""The checkpoint machine: coordinator, attempts, schedule and ledger of decided cuts.

`events` holds what the coordinator receives and the commands it returns.
"""
