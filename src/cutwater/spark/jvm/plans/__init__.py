"""Logical plans of Spark taken apart and put together: relations, SQL statements, aggregations.

Declarative projects are translated with these.
"""
