"""The same queries on the same files by Cutwater, plain Spark, Flink, batch Spark and DuckDB."""
