"""Everything that touches Spark: session, channels read by Spark's own scans, steps, driver.

Spark's internal classes are used only in `jvm` and `analysis`, and the layout of its checkpoint
directories only in `checkpoint_dir`.
"""
