"""A step's keyed state at a checkpoint, read from the store without the pipeline running.

The query's directory is rebuilt in a temporary directory, exactly as a restore does it, and read by
Spark's own `statestore` source. Neither the store nor a pipeline is ever written to. Rows are
Spark's: `key`, what is kept for it, `partition_id`.

A query has stateful operators, numbered in the order of its plan, and each has one or more parts.
An aggregation or a deduplication keeps one value for a key; a join keeps the rows of two sides;
`transformWithState` keeps the variables that its author declared, and timers. A user names a part
by the operator's number or name, by its name within the operator, or by both: `0`, `left`,
`0:left`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType

from cutwater.errors import ConfigError, RecoveryError, SessionError
from cutwater.ids import NO_BATCH, BatchId, CheckpointId, Generation, StepId
from cutwater.protocol.cut import Cut
from cutwater.sinks.base import STRICT_READING, share_disk
from cutwater.spark.checkpoint_dir import files as query_files
from cutwater.spark.checkpoint_dir import logs as query_log
from cutwater.spark.checkpoint_dir.state_files import Operator, operators
from cutwater.spark.versions import STATE_READING, lost_state, refusal
from cutwater.store.pipeline_store import PipelineStore

TIMERS: Final = "timers"
_JOIN: Final = "symmetricHashJoin"
_VARIABLES: Final = "transformWithState"
_MAP: Final = "MapState"
_TIMER: Final = "TimerState"
_KEY: Final = "key"
_MAP_KEY: Final = "user_map_key"
_DOCUMENTS: Final = (StructType, ArrayType, MapType)
_FORMAT: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_PARTITION: Final = "partition_id"
_JSON: Final = {"ignoreNullFields": "false"}
_KEPT: Final = "kept"
_SIDE: Final = "joinSide"
_VALUE: Final = "value"
_ROW: Final = "row"


@dataclass(frozen=True, slots=True)
class StatePart:
    """One part of the state of one operator.

    Attributes:
        operator: The operator's number in the plan.
        name: The side of a join, the variable, or `timers`; empty if the operator has one part.
        keys: The columns that identify a row; the others hold what is kept for it.
        partitions: How many partitions the state has; None if not known.
    """

    operator: str
    operator_name: str
    name: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = (_KEY,)
    partitions: int | None = None

    @property
    def title(self) -> str:
        """Its name in messages and options: `0:left`, or `0`."""
        return f"{self.operator}:{self.name}" if self.name else self.operator

    def answers_to(self, text: str) -> bool:
        """Say whether a text names this part; it may name others too."""
        operators = (self.operator, self.operator_name)
        if text in operators or (self.name and text == self.name):
            return True
        return bool(self.name) and text in {f"{operator}:{self.name}" for operator in operators}


class _Variable(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="stateName")
    kind: str = msgspec.field(name="stateVariableType", default="")


class _Properties(msgspec.Struct, frozen=True):
    time_mode: str = msgspec.field(name="timeMode", default="")
    variables: tuple[_Variable, ...] = msgspec.field(name="stateVariables", default=())


_PROPERTIES: Final = msgspec.json.Decoder(_Properties)


def parts_of(operators: Sequence[Operator]) -> tuple[StatePart, ...]:
    """Return the readable parts of these operators, in their order."""
    return tuple(part for operator in operators for part in _parts(operator))


def _parts(operator: Operator) -> list[StatePart]:
    if operator.name == _JOIN:
        return [_part(operator, side, {"joinSide": side}) for side in ("left", "right")]
    if not operator.name.startswith(_VARIABLES):
        return [_part(operator, "", {})]
    try:
        properties = _PROPERTIES.decode(operator.properties)
    except msgspec.DecodeError as error:
        reason = f"operator {operator.id} does not say which variables it has: {error}."
        raise RecoveryError(reason) from error
    found = [
        _part(
            operator,
            variable.name,
            {
                "stateVarName": variable.name,
                # A list is read whole, since its order counts; a map one entry at a time.
                "flattenCollectionTypes": str(variable.kind == _MAP).lower(),
            },
            (_KEY, _MAP_KEY) if variable.kind == _MAP else (_KEY,),
        )
        for variable in properties.variables
        if variable.kind != _TIMER
    ]
    if properties.time_mode not in {"", "NoTime"}:
        found.append(_part(operator, TIMERS, {"readRegisteredTimers": "true"}))
    return found


def _part(
    operator: Operator, name: str, options: Mapping[str, str], keys: tuple[str, ...] = (_KEY,)
) -> StatePart:
    all_options = {"operatorId": operator.id, **options}
    return StatePart(operator.id, operator.name, name, all_options, keys, operator.partitions)


def choose_part(parts: Sequence[StatePart], text: str | None, step: str) -> StatePart:
    """Return the part that a text names; without a text, the only part.

    The error lists the parts if none or several match.
    """
    found = [part for part in parts if text is None or part.answers_to(text)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{part.title} ({part.operator_name})" for part in found or parts)
    if found:
        raise ConfigError("--operator", f"{step} keeps several things; name one of {listed}")
    raise ConfigError("--operator", f"{step} keeps nothing called {text}; it has {listed}")


@dataclass(frozen=True, slots=True)
class StepState:
    """The state of one step at one checkpoint, on this machine.

    Attributes:
        batch: The last batch whose changes are in it; `NO_BATCH` if there was none.
        in_flight_events: How many Events in flight to the step are not in it yet.
        kinds: The nodes of the step's plan that keep it, as the checkpoint names them.
        written_by: The version of Spark that wrote it; empty if the checkpoint does not say.
    """

    step: StepId
    checkpoint_id: CheckpointId
    batch: BatchId
    in_flight_events: int
    directory: Path
    operators: tuple[Operator, ...]
    kinds: tuple[str, ...] = ()
    written_by: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the step had not run a batch yet and so has no state."""
        return self.batch == NO_BATCH

    def part(self, text: str | None) -> StatePart:
        """As `choose_part` does."""
        return choose_part(parts_of(self.operators), text, self.step)

    def frame(self, spark: SparkSession, part: StatePart) -> DataFrame:
        """Return a part as rows; `directory` must exist while the rows are used."""
        if not share_disk(spark):
            raise SessionError(
                "State is read from a directory of this machine, and this session's executors run "
                "elsewhere: use one with a local master, such as local[4]."
            )
        self._check_version(spark.version)
        reader = _session_for(spark, self.directory, self.batch).read.format("statestore")
        frame = reader.options(batchId=self.batch, **part.options).load(str(self.directory))
        return _without_hidden_fields(frame) if _SIDE in part.options else frame

    def _check_version(self, here: str) -> None:
        has_ids = query_log.state_ids(self.directory, self.batch) is not None
        missing = refusal(STATE_READING, here)
        if missing is not None and has_ids:
            raise SessionError(f"{missing}: {STATE_READING.instead}.")
        for kind in self.kinds:
            reason = lost_state(kind, self.written_by, here)
            if reason is not None:
                raise SessionError(
                    f"Spark {here} cannot read the state of {self.step} that Spark "
                    f"{self.written_by} wrote: {reason}."
                )


def fetch_state(store: PipelineStore, cut: Cut, step: str, into: Path) -> StepState:
    """Rebuild the query of a step, as a checkpoint has it, in a directory that is not there yet."""
    snapshot = cut.snapshots.get(StepId(step))
    if snapshot is None:
        steps = ", ".join(sorted(cut.snapshots))
        raise ConfigError(
            "STEP", f"checkpoint {cut.checkpoint_id} has no step {step}; it has {steps}"
        )
    if snapshot.step in cut.without_state:
        reason = f"checkpoint {cut.checkpoint_id} is damaged: it has no file of step {step}"
        raise ConfigError("STEP", f"{reason}; `cutwater checkpoints verify` finds a sound one")
    waiting = sum(len(part.events) for part in snapshot.in_flight)
    found: tuple[Operator, ...] = ()
    if snapshot.batch != NO_BATCH and snapshot.state:
        # Reading needs no generation of its own.
        store.blobs(Generation(0)).fetch_tree(snapshot.state, into)
        query_files.settle(into)
        found = operators(into, snapshot.batch)
    identity = cut.identities.get(StepId(step))
    expected = identity is not None and bool(identity.operators)
    if not found and not (snapshot.batch == NO_BATCH and expected):
        stateful = (name for name, known in cut.identities.items() if known.operators)
        keeping = ", ".join(sorted(stateful))
        raise ConfigError("STEP", f"{step} keeps no state; steps that do: {keeping or 'none'}")
    return StepState(
        step=snapshot.step,
        checkpoint_id=cut.checkpoint_id,
        batch=snapshot.batch,
        in_flight_events=waiting,
        directory=into,
        operators=found,
        kinds=tuple(one.kind for one in identity.operators) if identity else (),
        written_by=identity.spark if identity else "",
    )


def _session_for(spark: SparkSession, directory: Path, batch: BatchId) -> SparkSession:
    """Return a session that can read the state: an adopted query may have an older format."""
    if query_log.state_ids(directory, batch) is not None:
        return spark
    other = spark.newSession()
    other.conf.set(_FORMAT, "1")
    return other


def _without_hidden_fields(frame: DataFrame) -> DataFrame:
    """Reduce a join's rows to the fields of their schema.

    Spark's reader returns rows with one extra field: whether the row has been matched. Code that
    iterates over a row by its length, as `to_json` does, fails on that field.
    """
    value = frame.schema[_VALUE].dataType
    assert isinstance(value, StructType)
    fields = [F.col(_VALUE).getField(name).alias(name) for name in value.names]
    whole = F.when(F.col(_VALUE).isNotNull(), F.struct(*fields))
    return frame.withColumn(_VALUE, whole)


# -- choosing rows


def with_key(frame: DataFrame, part: StatePart, wanted: Sequence[str]) -> DataFrame:
    """Keep the rows whose keys match everything that the user wrote.

    That is `field=value`, where the field may be nested (`window.start`), or only a value if the
    key has one field. ConfigError if the key has no such field.
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
    column = F.col(".".join(f"`{level}`" for level in (part.keys[0], *name.split("."))))
    return column.cast("string").eqNullSafe(F.lit(value))


def _fields(struct: StructType, before: str = "") -> list[str]:
    found: list[str] = []
    for column in struct.fields:
        if isinstance(column.dataType, StructType):
            found += _fields(column.dataType, f"{before}{column.name}.")
        else:
            found.append(f"{before}{column.name}")
    return found


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of state, read once and kept on this machine because opening state is slow.

    The frame has their keys, what is kept for each key (`kept`) and the whole row (`row`), as JSON.
    """

    frame: DataFrame
    part: StatePart

    @classmethod
    def of(cls, frame: DataFrame, part: StatePart, into: Path) -> "Rows":
        """Read rows into a new directory, which must exist while the rows are used."""
        row = F.to_json(F.struct("*"), _JSON)
        kept = _kept_json(frame, part)
        frame.select(*part.keys, kept.alias(_KEPT), row.alias(_ROW)).write.parquet(str(into))
        return cls(frame.sparkSession.read.options(**STRICT_READING).parquet(str(into)), part)

    def count(self) -> int:
        return self.frame.count()

    def first(self, limit: int) -> list[str]:
        """Return the first rows as JSON, sorted by key and then by what is kept."""
        ordered = self.frame.orderBy(*self.part.keys, _KEPT).limit(limit)
        return [row[0] for row in ordered.select(_ROW).collect()]

    def by_key(self) -> DataFrame:
        """Return one row for each key: its JSON (`id`), the `key`, and what is `held` for it."""
        keys = self.part.keys
        key = F.struct(*keys) if len(keys) > 1 else F.col(keys[0])
        found = self.frame.select(F.to_json(key, _JSON).alias("id"), key.alias("key"), _KEPT)
        # A join keeps any number of rows for a key, in no particular order.
        held = F.array_join(F.sort_array(F.collect_list(_KEPT)), ",")
        return found.groupBy("id").agg(
            F.first("key").alias("key"), F.concat(F.lit("["), held, F.lit("]")).alias("held")
        )


def _kept_json(frame: DataFrame, part: StatePart) -> Column:
    """Return what is kept for a key as JSON, never null: a key may have no other columns."""
    names = [name for name in frame.columns if name not in {*part.keys, _PARTITION}]
    only = frame.schema[names[0]].dataType if len(names) == 1 else None
    # `to_json` needs a struct, a list or a map; any other value is wrapped with its column name.
    kept = F.col(names[0]) if isinstance(only, _DOCUMENTS) else F.struct(*names)
    return F.coalesce(F.to_json(kept, _JSON), F.lit("null"))
