"""Compares a step's state at two checkpoints, key by key.

Rows are compared as JSON, within Spark, so that state of any size and type can be compared. The
number of returned changes is limited; the counts cover all keys.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cutwater.step_state.reading import Rows


@dataclass(frozen=True, slots=True)
class KeyChange:
    """The change of one key, as JSON: before and after are lists, or None for nothing."""

    key: str
    before: str | None
    after: str | None

    @property
    def kind(self) -> str:
        """`added`, `removed` or `changed`."""
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"


@dataclass(frozen=True, slots=True)
class StateDiff:
    """How a part of a step's state has changed: how many keys, and the first changes by key."""

    counts: dict[str, int]
    changes: tuple[KeyChange, ...]

    @classmethod
    def of_nothing(cls) -> "StateDiff":
        return cls({"added": 0, "removed": 0, "changed": 0, "same": 0}, ())

    @property
    def total(self) -> int:
        """How many keys differ."""
        return sum(count for kind, count in self.counts.items() if kind != "same")


def diff_state(before: Rows | None, after: Rows | None, limit: int) -> StateDiff:
    """Compare a part of the state of a step at two checkpoints, key by key.

    None is a step without state. All keys are counted, and `limit` of them returned.
    """
    old, new = (None if rows is None else rows.by_key() for rows in (before, after))
    known = old if old is not None else new
    if known is None:
        return StateDiff.of_nothing()
    empty = known.limit(0)
    left = (old if old is not None else empty).alias("a")
    right = (new if new is not None else empty).alias("b")
    kind = (
        F.when(F.col("a.held").isNull(), "added")
        .when(F.col("b.held").isNull(), "removed")
        .when(F.col("a.held") != F.col("b.held"), "changed")
        .otherwise("same")
    )
    joined = left.join(right, F.col("a.id") == F.col("b.id"), "full_outer").select(
        F.coalesce("a.id", "b.id").alias("id"),
        *([F.coalesce("a.key", "b.key").alias("key")] if _same_keys(left, right) else []),
        F.col("a.held").alias("before"),
        F.col("b.held").alias("after"),
        kind.alias("kind"),
    )
    counts = StateDiff.of_nothing().counts
    for row in joined.groupBy("kind").count().collect():
        counts[row["kind"]] = row["count"]
    order = [name for name in ("key", "id") if name in joined.columns]
    first = joined.where("kind != 'same'").orderBy(*order).limit(limit)
    rows = first.select("id", "before", "after").collect()
    return StateDiff(counts, tuple(KeyChange(*row) for row in rows))


def _same_keys(left: DataFrame, right: DataFrame) -> bool:
    """Say whether the keys of both have one type, and so can be sorted by value."""
    return left.schema["key"].dataType == right.schema["key"].dataType
