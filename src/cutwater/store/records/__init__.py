"""The records of a pipeline in its store: one module per kind, all in the same checked envelope.

Only `store.paths` formats their names.
"""
