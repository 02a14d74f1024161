"""Operations on a stopped pipeline: rewind, fork, adopt, eject.

Rewind and fork need neither Spark nor the user's file: the store records the checkpoints and where
the sinks write. `protocol.rewind` decides; this package observes facts, shows what would happen,
and does it.
"""
