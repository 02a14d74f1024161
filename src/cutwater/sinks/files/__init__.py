"""The files sink: Parquet, JSON or CSV files that become visible by a manifest per commit.

See docs/adr/0019-files-have-one-name-for-life.md.
"""
