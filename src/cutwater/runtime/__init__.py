"""The driver of a running pipeline: event loop, effects, recovery, supervisor.

It feeds the machines of `protocol`, carries out their commands on the store and the sinks, and
restarts a pipeline that failed. `reporting` holds what it reports.
"""
