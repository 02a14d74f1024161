"""The checkpoint protocol as pure machines: values in, values out.

This package uses no file, clock, thread, random number or log. Time is a field of an event. Import
the module you need; PROTOCOL.md says which rule lives where.
"""
