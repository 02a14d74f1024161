"""A step's keyed state at a checkpoint, read from the store without the pipeline running.

The query's directory is rebuilt somewhere temporary, exactly as a restore does it, and read by
Spark's own `statestore` source. Neither the store nor a pipeline is ever written to. Rows are
Spark's: `key`, what is kept for it, `partition_id`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType

from cutwater.errors import ConfigError, SessionError
from cutwater.ids import NO_BATCH, BatchId, CheckpointId, Generation, StepId
from cutwater.protocol.cut import Cut
from cutwater.sinks.base import STRICT_READING, share_disk
from cutwater.spark.checkpoint_dir import files as query_files
from cutwater.spark.checkpoint_dir import logs as query_log
from cutwater.spark.checkpoint_dir.state_files import Operator, operators
from cutwater.step_state.parts import StatePart, choose_part, parts_of
from cutwater.store.pipeline_store import PipelineStore

_DOCUMENTS: Final = (StructType, ArrayType, MapType)
_FORMAT: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_PARTITION: Final = "partition_id"
_JSON: Final = {"ignoreNullFields": "false"}
_KEPT: Final = "kept"
_SIDE: Final = "joinSide"
_VALUE: Final = "value"
_ROW: Final = "row"


@dataclass(frozen=True, slots=True)
class StepState:
    """The state of one step at one checkpoint, on this machine.

    Attributes:
        step: The step.
        checkpoint_id: The checkpoint.
        batch: The last batch whose changes are in it; `NO_BATCH` if there was none.
        in_flight_events: How many Events in front of the step are not in it yet.
        directory: Where the query's files are.
        operators: The operators that keep state.
    """

    step: StepId
    checkpoint_id: CheckpointId
    batch: BatchId
    in_flight_events: int
    directory: Path
    operators: tuple[Operator, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the step had not run a batch, so that nothing was kept yet."""
        return self.batch == NO_BATCH

    def part(self, text: str | None) -> StatePart:
        """Return the part of the state that a text means; without a text, the only one.

        Raises:
            ConfigError: If there is none, or more than one.
        """
        return choose_part(parts_of(self.operators), text, self.step)

    def frame(self, spark: SparkSession, part: StatePart) -> DataFrame:
        """Return a part as rows; `directory` must stay while they are used.

        Raises:
            SessionError: If the session's executors cannot see the directory.
        """
        if not share_disk(spark):
            raise SessionError(
                "State is read from a directory of this machine, and this session's executors run "
                "elsewhere: use one with a local master, such as local[4]."
            )
        reader = _session_for(spark, self.directory, self.batch).read.format("statestore")
        frame = reader.options(batchId=self.batch, **part.options).load(str(self.directory))
        return _without_hidden_fields(frame) if _SIDE in part.options else frame


def fetch_state(store: PipelineStore, cut: Cut, step: str, into: Path) -> StepState:
    """Rebuild the query of a step, as a checkpoint has it, in a directory that is not there yet.

    Raises:
        ConfigError: If the checkpoint has no such step, or the step keeps no state.
        Corrupt: If the checkpoint is damaged; the object is named.
        StoreError: If the store does not answer.
    """
    snapshot = cut.snapshots.get(StepId(step))
    if snapshot is None:
        steps = ", ".join(sorted(cut.snapshots))
        raise ConfigError(
            "STEP", f"checkpoint {cut.checkpoint_id} has no step {step}; it has {steps}"
        )
    if snapshot.step in cut.without_state:
        reason = f"checkpoint {cut.checkpoint_id} is damaged: it has no file of step {step}"
        raise ConfigError("STEP", f"{reason}; `cutwater checkpoints verify` finds a sound one")
    waiting = sum(len(one.events) for one in snapshot.in_flight)
    found: tuple[Operator, ...] = ()
    if snapshot.batch != NO_BATCH and snapshot.state:
        # Reading needs no generation of its own.
        store.blobs(Generation(0)).fetch_tree(snapshot.state, into)
        query_files.settle(into)
        found = operators(into, snapshot.batch)
    identity = cut.identities.get(StepId(step))
    expected = identity is not None and bool(identity.operators)
    if not found and not (snapshot.batch == NO_BATCH and expected):
        keeping = ", ".join(sorted(name for name, one in cut.identities.items() if one.operators))
        raise ConfigError("STEP", f"{step} keeps no state; steps that do: {keeping or 'none'}")
    return StepState(snapshot.step, cut.checkpoint_id, snapshot.batch, waiting, into, found)


def _session_for(spark: SparkSession, directory: Path, batch: BatchId) -> SparkSession:
    """Return a session that can read the state: an adopted query's may be of an older format."""
    if query_log.state_ids(directory, batch) is not None:
        return spark
    other = spark.newSession()
    other.conf.set(_FORMAT, "1")
    return other


def _without_hidden_fields(frame: DataFrame) -> DataFrame:
    """Cut a join's rows to the fields that they are said to have.

    Spark's reader hands out rows with one field more, whether the row has met a partner; whoever
    goes over a row by its length, as `to_json` does, falls over it.
    """
    value = frame.schema[_VALUE].dataType
    assert isinstance(value, StructType)
    fields = [F.col(_VALUE).getField(one).alias(one) for one in value.names]
    whole = F.when(F.col(_VALUE).isNotNull(), F.struct(*fields))
    return frame.withColumn(_VALUE, whole)


# -- choosing rows


def with_key(frame: DataFrame, part: StatePart, wanted: Sequence[str]) -> DataFrame:
    """Keep the rows of keys that people wrote down.

    Args:
        frame: The rows.
        part: What they are of.
        wanted: `field=value`, where the field may be one within another (`window.start`), or only
            a value if the key has one field. All must hold.

    Raises:
        ConfigError: If the key has no such field.
    """
    for text in wanted:
        frame = frame.where(_condition(frame, part, text))
    return frame


def _condition(frame: DataFrame, part: StatePart, text: str) -> Column:
    key = frame.schema[part.keys[0]].dataType
    fields = _fields(key) if isinstance(key, StructType) else []
    name, equals, value = text.partition("=")
    if not (equals and name in fields):
        if len(fields) != 1:
            known = ", ".join(fields) or "no fields"
            raise ConfigError(
                "--key", f"{text!r} names no field of the key; write FIELD=VALUE: {known}"
            )
        name, value = fields[0], text
    column = F.col(".".join(f"`{one}`" for one in (part.keys[0], *name.split("."))))
    return column.cast("string").eqNullSafe(F.lit(value))


def _fields(struct: StructType, before: str = "") -> list[str]:
    found: list[str] = []
    for one in struct.fields:
        if isinstance(one.dataType, StructType):
            found += _fields(one.dataType, f"{before}{one.name}.")
        else:
            found.append(f"{before}{one.name}")
    return found


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of state that were read once and lie on this machine, since opening state costs.

    Attributes:
        frame: Their keys, what is kept for them (`kept`) and all of them (`row`), as JSON.
        part: What they are of.
    """

    frame: DataFrame
    part: StatePart

    @classmethod
    def of(cls, frame: DataFrame, part: StatePart, into: Path) -> "Rows":
        """Read them into a directory that is not there yet, and must stay while they are used."""
        row = F.to_json(F.struct("*"), _JSON)
        kept = _kept_json(frame, part)
        frame.select(*part.keys, kept.alias(_KEPT), row.alias(_ROW)).write.parquet(str(into))
        return cls(frame.sparkSession.read.options(**STRICT_READING).parquet(str(into)), part)

    def count(self) -> int:
        """Return how many there are."""
        return self.frame.count()

    def first(self, limit: int) -> list[str]:
        """Return some as JSON, sorted by key, and rows of one key by what they hold."""
        ordered = self.frame.orderBy(*self.part.keys, _KEPT).limit(limit)
        return [row[0] for row in ordered.select(_ROW).collect()]

    def by_key(self) -> DataFrame:
        """Return one row for each key: its JSON (`id`), itself, and all that is `held` for it."""
        keys = self.part.keys
        key = F.struct(*keys) if len(keys) > 1 else F.col(keys[0])
        found = self.frame.select(F.to_json(key, _JSON).alias("id"), key.alias("key"), _KEPT)
        # A join keeps any number of rows for a key, in an order that means nothing.
        held = F.array_join(F.sort_array(F.collect_list(_KEPT)), ",")
        return found.groupBy("id").agg(
            F.first("key").alias("key"), F.concat(F.lit("["), held, F.lit("]")).alias("held")
        )


def _kept_json(frame: DataFrame, part: StatePart) -> Column:
    """Return what is kept for a key as JSON, never null: a key with nothing beside it is there."""
    names = [one for one in frame.columns if one not in {*part.keys, _PARTITION}]
    only = frame.schema[names[0]].dataType if len(names) == 1 else None
    # JSON begins with an object, a list or a map; anything else gets its column's name.
    kept = F.col(names[0]) if isinstance(only, _DOCUMENTS) else F.struct(*names)
    return F.coalesce(F.to_json(kept, _JSON), F.lit("null"))
