"""What Spark's analysed plans show about a step: state, watermarks, columns read, identity.

`analysis` is the entry point.
"""
