"""Finding Java, starting the JVM, preparing the session, refusing what cannot run a pipeline.

`session` is the entry.
"""
