"""What a user declares: `pipeline` holds the API, `nodes` and `declarations` what it collects.

Nothing here starts Spark.
"""
