"""What the driver reports: status, history of attempts, events, timings, causes of failures.

Nothing here decides anything.
"""
