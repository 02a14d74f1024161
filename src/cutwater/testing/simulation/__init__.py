"""A deterministic world in which the driver runs against faults, driven by one seed.

`python -m cutwater.testing.simulation --help` shows how to run it; docs/reference/simulation.md
describes what is simulated, what is injected and what is checked.
"""
