"""Content of checkpoints: packed, content-addressed objects, and the local cache of them.

`blobs` is the entry.
"""
