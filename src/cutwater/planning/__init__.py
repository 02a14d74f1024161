"""From declared nodes to physical steps and channels: graph, validation, planner, rendering.

Nothing here starts Spark.
"""
