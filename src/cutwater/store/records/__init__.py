"""The records of a pipeline in its store, one module per kind, in one checked envelope.

`store.paths` alone knows their names.
"""
