"""Everything that touches Spark: session, channels read by Spark's own scans, steps, driver.

`internals` alone knows Spark's internal classes, `query_files` alone the layout of its checkpoints.
"""
