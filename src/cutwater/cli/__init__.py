"""The command line: `cutwater plan`, `run` and `doctor`.

`main` is the entry; each command is one module with a dataclass of its arguments and one function.
"""
