"""Operations on a stopped pipeline: rewind, fork, adopt, eject.

Rewind and fork need neither Spark nor the user's file: a store knows the checkpoints, and where the
sinks write. Decisions are those of `protocol.rewind`; this package observes facts, shows what would
happen, and does it.
"""
