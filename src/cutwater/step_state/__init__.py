"""The state a step keeps, read from a checkpoint: as a DataFrame, as rows, as a difference.

Serves `cutwater.state` and `cutwater state show|diff`.
"""
