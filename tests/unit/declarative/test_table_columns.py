"""The columns of a table: those of its flows together, as declared, partitions last."""

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from cutwater.declarative.definitions import DatasetDefinition, DatasetKind
from cutwater.declarative.table_columns import ColumnsRefused, table_columns
from cutwater.pipeline.nodes import SourceLocation

ID, NAME, SHOP = (
    StructField("id", LongType()),
    StructField("name", StringType()),
    StructField("shop", StringType()),
)


def table(columns: StructType | None = None, *partitions: str) -> DatasetDefinition:
    return DatasetDefinition(
        name=("orders",),
        kind=DatasetKind.STREAMING_TABLE,
        place=SourceLocation("orders.py", 1),
        columns=columns,
        partition_columns=partitions,
    )


def test_flows_together_give_all_columns_and_partitions_come_last() -> None:
    flows = [StructType([SHOP, ID]), StructType([ID, NAME])]

    assert table_columns(table(None, "shop"), flows) == StructType([ID, NAME, SHOP])


def test_declared_columns_set_the_order_whatever_is_nullable() -> None:
    declared = StructType([NAME, StructField("id", LongType(), nullable=False)])

    assert table_columns(table(declared), [StructType([ID, NAME])]) == StructType([NAME, ID])


def test_flows_that_do_not_fit_each_other_are_refused() -> None:
    other = StructType([StructField("id", StringType())])

    with pytest.raises(ColumnsRefused, match="gets column id as bigint and string; cast one"):
        table_columns(table(), [StructType([ID]), other])


def test_other_columns_than_declared_are_refused_by_name() -> None:
    with pytest.raises(ColumnsRefused, match="than its flows give: name and shop; declare"):
        table_columns(table(StructType([ID, NAME])), [StructType([ID, SHOP])])


def test_partitions_need_a_column() -> None:
    with pytest.raises(ColumnsRefused, match="has no column day to partition by, but has id"):
        table_columns(table(None, "day"), [StructType([ID])])
