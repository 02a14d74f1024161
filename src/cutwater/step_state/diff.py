"""What has changed in a step's state from one checkpoint to another, key by key.

Rows are compared as JSON, within Spark, so that state of any size and type can be. The result is
bounded; the counts are of everything.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cutwater.step_state.reading import Rows


@dataclass(frozen=True, slots=True)
class KeyChange:
    """What happened to one key from one checkpoint to another.

    Attributes:
        key: The key, as JSON.
        before: What was kept for it, as a JSON list; None for nothing.
        after: What is kept for it, as a JSON list; None for nothing.
    """

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
    """How a part of a step's state has changed.

    Attributes:
        counts: How many keys were added, removed, changed, and are as they were.
        changes: The first of them, by key.
    """

    counts: dict[str, int]
    changes: tuple[KeyChange, ...]

    @classmethod
    def of_nothing(cls) -> "StateDiff":
        """Return what there is to say if nothing was kept at either."""
        return cls({"added": 0, "removed": 0, "changed": 0, "same": 0}, ())

    @property
    def total(self) -> int:
        """How many keys are not as they were."""
        return sum(count for kind, count in self.counts.items() if kind != "same")


def diff_state(before: Rows | None, after: Rows | None, limit: int) -> StateDiff:
    """Compare a part of the state of a step at two checkpoints, key by key.

    Args:
        before: The rows at one; None if there were none yet.
        after: The rows at the other, likewise.
        limit: How many keys to return; all are counted.
    """
    old, new = (None if one is None else one.by_key() for one in (before, after))
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
    order = [one for one in ("key", "id") if one in joined.columns]
    first = joined.where("kind != 'same'").orderBy(*order).limit(limit)
    rows = first.select("id", "before", "after").collect()
    return StateDiff(counts, tuple(KeyChange(*row) for row in rows))


def _same_keys(left: DataFrame, right: DataFrame) -> bool:
    """Say whether keys of both can be compared, and so be sorted as what they are."""
    return left.schema["key"].dataType == right.schema["key"].dataType
