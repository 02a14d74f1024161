"""The machine of one step: barrier injection, alignment, in-flight recording, snapshots.

`machine` is the entry point; `events` and `aligner_events` hold its events and commands.
"""
