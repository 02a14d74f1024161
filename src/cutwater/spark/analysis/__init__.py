"""What Spark's analysed plans say about a step: state, watermarks, columns read, identity.

`analysis` is the entry.
"""
