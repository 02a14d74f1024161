"""The version of the package, alone in a module so that importing it costs nothing.

`pyproject.toml` carries the same number; a test compares the two.
"""

__version__ = "0.1.0"
