"""The Delta sink: append, upsert and overwrite, on disk and in S3.

`target` is what a user declares, `table` the opened table. See docs/reference/sink-delta.md.
"""
