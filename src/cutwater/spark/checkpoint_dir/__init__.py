"""The format of Spark's own checkpoint directory: logs, offsets, sources, state files.

Everything Cutwater knows about those files is in this folder.
"""
