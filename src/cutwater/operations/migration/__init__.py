"""Adopt plain Spark queries into a pipeline, and eject them again.

`plain_query` reads and writes the checkpoint directory of a plain query.
"""
