"""What the driver reports: status, attempt history, events, timings, causes of failures.

Nothing here decides anything.
"""
