"""The PostgreSQL sink: staged by COPY, committed in one transaction per database.

See docs/reference/sink-postgres.md.
"""
