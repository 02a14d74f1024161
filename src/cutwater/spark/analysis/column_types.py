"""Which types the columns of a step's rows may have.

Rows wait as Parquet, in a channel or where a sink stages them. What Parquet cannot hold, Spark
says when the first batch is written: from there it would end every start of the pipeline.
"""

from collections.abc import Iterator
from typing import Final

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from cutwater.sinks.columns import parts
from cutwater.spark.jvm.internals import Internals

_IN_KEYS: Final = "spark.sql.collation.allowInMapKeys"


def unheld(internals: Internals, schema: StructType) -> Iterator[tuple[str, str]]:
    """Give the columns that Parquet cannot hold, each with the type that is the reason."""
    all_known = _is_known(internals, schema)
    keys_collate = str(internals.spark.conf.get(_IN_KEYS)).lower() == "true"
    for column in schema.fields:
        for kind in parts(column.dataType):
            nested = isinstance(kind, ArrayType | MapType | StructType)
            if isinstance(kind, StructType) and not kind.fields:
                yield column.name, "struct without fields"
            elif isinstance(kind, MapType) and not keys_collate and _collates(kind.keyType):
                yield column.name, f"map with the key {kind.keyType.simpleString()}"
            elif all_known or nested or _is_known(internals, StructType().add("it", kind)):
                continue
            else:
                yield column.name, kind.simpleString()
            break


def _is_known(internals: Internals, schema: StructType) -> bool:
    return internals.parquet.holds(internals.java_schema(schema))


def _collates(kind: DataType) -> bool:
    return any(isinstance(one, StringType) and one != StringType() for one in parts(kind))
