"""The group `cutwater checkpoints`: list, show, verify, compare and delete checkpoints.

`cli.main` collects the commands.
"""
