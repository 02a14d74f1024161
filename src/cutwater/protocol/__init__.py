"""The checkpoint protocol as pure machines: values in, values out.

No file, clock, thread, random number or log line in here; time is a field of an event. Import the
module you need; PROTOCOL.md says which rule lives where.
"""
