"""Named mutations of the protocol: each breaks one rule and must be detected by the simulator.

`registry` collects them; one module per part of the system.
"""
