"""What users see of pipelines and checkpoints: the JSON of the CLI, the API and the dashboard.

`fields` names the values, `models` are the API's JSON bodies, and `build`, `dag` and `history` fill
them. Only `fields` works without the extra `serve`.
"""
