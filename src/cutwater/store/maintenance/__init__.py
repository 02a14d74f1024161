"""Work on a store besides checkpoints: retention, pruning, inspection, offline decisions.

Everything is classified before anything is deleted.
"""
