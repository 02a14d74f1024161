"""Where objects are kept: `backend` is the port; local disk, object stores and memory implement it.

`location` alone knows addresses.
"""
