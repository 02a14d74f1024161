"""Reading a source by reference: ranges of files and of Kafka offsets, evaluated by each reader.

Nothing is materialised here; a range names the same rows whenever it is read.
"""
