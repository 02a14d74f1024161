"""What people see of pipelines and checkpoints, built once for the CLI, the API and the dashboard.

`models` are the JSON shapes, `build` fills them, `render` prints them.
"""
