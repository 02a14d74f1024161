"""Staged output on disk, shared by the file-based sinks: written by batches, settled by commits.

`directory` knows the hidden layout, `parquet` and `formats` write into it.
"""
