"""The durable store: objects that survive, and the records in them. It decides nothing.

A backend keeps bytes under paths; `paths` names them; `records` says what the bytes mean; the
rest reads and writes one kind of record each. Import the module you need.
"""
