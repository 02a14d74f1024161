"""The parts of Spark's plans that Cutwater knows by their simple names: the only list of them.

A simple name cannot be looked up, so a version of Spark that renames a node would not be noticed
when a pipeline starts. `tests/spark/test_plan_nodes.py` builds a plan for every name here, on every
supported version of Spark.
"""

from typing import Final

# -- nodes

COMMON_TABLE: Final = "CTERelationDef"
COMMON_TABLE_REFERENCE: Final = "CTERelationRef"
COMMON_TABLES: Final = "WithCTE"
AGGREGATE: Final = "Aggregate"
DISTINCT: Final = "Distinct"
EXPAND: Final = "Expand"
FILTER: Final = "Filter"
GLOBAL_LIMIT: Final = "GlobalLimit"
JOIN: Final = "Join"
LOCAL_LIMIT: Final = "LocalLimit"
PROJECT: Final = "Project"
SORT: Final = "Sort"
WATERMARK: Final = "EventTimeWatermark"
WINDOW: Final = "Window"

STREAM: Final = "StreamingRelation"
STREAM_V2: Final = "StreamingRelationV2"
STREAM_V2_SCAN: Final = "StreamingDataSourceV2ScanRelation"
"""What a planned batch reads of such a stream."""
STREAM_OF_OBJECT: Final = "StreamingExecutionRelation"
"""A stream that is answered by an object which exists already: all of Cutwater's own."""

RELATION: Final = "LogicalRelation"
RELATION_OF_HIVE: Final = "HiveTableRelation"
RELATION_V2_PREFIX: Final = "DataSourceV2"
DEDUPLICATION: Final = "Deduplicate"
DEDUPLICATION_PREFIX: Final = DEDUPLICATION

# -- what nodes hold

FILES: Final = "HadoopFsRelation"
ATTRIBUTE: Final = "AttributeReference"
AGGREGATE_EXPRESSION: Final = "AggregateExpression"

RENAMED: Final = {"TransformWithStateInPandas": "TransformWithStateInPySpark"}
"""Nodes with state that older versions name otherwise; a checkpoint has the newest name."""

# -- lists

NEEDS_ROCKSDB: Final = frozenset(RENAMED.values())
"""The nodes whose state Spark keeps in RocksDB only."""

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
        COMMON_TABLE,
        "CollectMetrics",
        WATERMARK,
        EXPAND,
        FILTER,
        "Generate",
        LOCAL_LIMIT,
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
        SORT,
        "SubqueryAlias",
        "TypedFilter",
        "Union",
        "View",
        COMMON_TABLES,
    }
)
"""The nodes that keep no state, for the identity of a step.

Longer than `RUNS_IN_BATCH`: a sort or a repartition keeps no state, but still runs in a query.
"""

ROW_BY_ROW: Final = frozenset(
    {
        COMMON_TABLE,
        COMMON_TABLE_REFERENCE,
        EXPAND,
        FILTER,
        "Generate",
        PROJECT,
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        STREAM_OF_OBJECT,
        "SubqueryAlias",
        "Union",
        COMMON_TABLES,
    }
)
"""The nodes that turn each row into rows of its own, for materialized views (docs/adr/0048)."""

ABOVE_AGGREGATE: Final = frozenset(
    {COMMON_TABLE, FILTER, PROJECT, SORT, "SubqueryAlias", COMMON_TABLES}
)
"""The nodes that may follow the aggregation of such a view, over its whole result."""

KNOWN: Final = frozenset(
    {
        *RUNS_IN_BATCH,
        *KEEPS_NO_STATE,
        *ROW_BY_ROW,
        *ABOVE_AGGREGATE,
        AGGREGATE,
        AGGREGATE_EXPRESSION,
        ATTRIBUTE,
        DISTINCT,
        FILES,
        GLOBAL_LIMIT,
        JOIN,
        RELATION,
        RELATION_OF_HIVE,
        STREAM,
        STREAM_V2,
        WINDOW,
    }
)
"""Every whole name."""

PREFIXES: Final = (DEDUPLICATION_PREFIX, RELATION_V2_PREFIX)
"""Every name that is known by its beginning."""
