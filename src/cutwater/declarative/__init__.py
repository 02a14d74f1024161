"""Projects of Spark Declarative Pipelines (`spark-pipeline.yml`) as pipelines of Cutwater.

`project` loads one; the other modules are its stages: the spec, the definition files, the datasets
and flows that they register, what each flow reads, and the nodes that they become (docs/adr/0048).
"""
