"""The parts of Spark's plans that Cutwater knows by their simple names: the only list of them.

A simple name cannot be looked up, so a version of Spark that renames a node would not be noticed
when a pipeline starts. `tests/spark/test_plan_nodes.py` builds a plan for every name here, on every
supported version of Spark.
"""

from typing import Final

# -- nodes

AGGREGATE: Final = "Aggregate"
DISTINCT: Final = "Distinct"
EXPAND: Final = "Expand"
FILTER: Final = "Filter"
JOIN: Final = "Join"
PROJECT: Final = "Project"
WATERMARK: Final = "EventTimeWatermark"

STREAM: Final = "StreamingRelation"
STREAM_V2: Final = "StreamingRelationV2"
STREAM_OF_OBJECT: Final = "StreamingExecutionRelation"
"""A stream that is answered by an object which exists already: all of Cutwater's own."""

RELATION: Final = "LogicalRelation"
RELATION_OF_HIVE: Final = "HiveTableRelation"
RELATION_V2_PREFIX: Final = "DataSourceV2"
DEDUPLICATION_PREFIX: Final = "Deduplicate"

# -- what nodes hold

FILES: Final = "HadoopFsRelation"
ATTRIBUTE: Final = "AttributeReference"
AGGREGATE_EXPRESSION: Final = "AggregateExpression"

RENAMED: Final = {"TransformWithStateInPandas": "TransformWithStateInPySpark"}
"""Nodes with state that older versions name otherwise; a checkpoint has the newest name."""

# -- lists

RUNS_IN_BATCH: Final = frozenset(
    {
        WATERMARK,
        FILTER,
        "Generate",
        "MapInArrow",
        "MapInPandas",
        PROJECT,
        STREAM_OF_OBJECT,
        "SubqueryAlias",
        "Union",
    }
)
"""The nodes that may run in a plain batch job (rule F34).

A step with any other node runs as a query and, unless that node is a join with a static side,
counts as stateful. Shorter on purpose than `KEEPS_NO_STATE`.
"""

KEEPS_NO_STATE: Final = frozenset(
    {
        "CTERelationDef",
        "CollectMetrics",
        WATERMARK,
        EXPAND,
        FILTER,
        "Generate",
        "LocalLimit",
        "MapElements",
        "MapInArrow",
        "MapInPandas",
        "MapPartitions",
        PROJECT,
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sample",
        "SerializeFromObject",
        "DeserializeToObject",
        "Sort",
        "SubqueryAlias",
        "TypedFilter",
        "Union",
        "View",
        "WithCTE",
    }
)
"""The nodes that keep no state, for the identity of a step.

Longer than `RUNS_IN_BATCH`: a sort or a repartition keeps no state, but still runs in a query.
"""

KNOWN: Final = frozenset(
    {
        *RUNS_IN_BATCH,
        *KEEPS_NO_STATE,
        AGGREGATE,
        AGGREGATE_EXPRESSION,
        ATTRIBUTE,
        DISTINCT,
        FILES,
        JOIN,
        RELATION,
        RELATION_OF_HIVE,
        STREAM,
        STREAM_V2,
    }
)
"""Every whole name."""

PREFIXES: Final = (DEDUPLICATION_PREFIX, RELATION_V2_PREFIX)
"""Every name that is known by its beginning."""
