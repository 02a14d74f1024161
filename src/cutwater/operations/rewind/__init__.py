"""Rewind: make an older checkpoint current, with all sinks.

`target` finds it, `facts` observes, `preview` shows, `rewind` carries it out.
"""
