"""Spark's internal classes over Py4J: sources, sinks, scans and Parquet files of our own.

`internals` checks at the start that every class and method used here exists.
"""
