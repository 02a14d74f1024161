"""Steps on Spark: a step runs as a streaming query or as batch jobs.

`build` makes a generation's steps from a cut.
"""
