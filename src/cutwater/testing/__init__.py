"""Public tools for testing pipelines and the protocol itself.

`cutwater.testing.simulation` runs the protocol in a world of faults, driven by a seed.
"""
