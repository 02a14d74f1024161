"""The tests that a sink of your own must pass (docs/how-to/write-a-sink.md).

`tests` holds `SinkContract`, `harness` what it drives a sink with, `crash` the SIGKILLs.
"""
