"""The machine of one step: barrier injection, alignment, in-flight recording, snapshots.

`machine` is the entry; `events` and `aligner_events` hold what it receives and returns.
"""
