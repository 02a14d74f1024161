"""The durable store: objects that survive, and the records in them. It decides nothing.

A backend keeps bytes under paths, `paths` names the objects, and each module of `records` reads and
writes one kind of record. Import the module you need.
"""
