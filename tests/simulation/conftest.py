"""Lets the simulator's worker processes run at full speed while coverage is measured."""

import os
import sys

# What a forked worker covers is written nowhere; being traced would double its time.
os.register_at_fork(after_in_child=lambda: sys.settrace(None))
