"""The files sink without Spark: pyarrow writes the rows, everything else is the real sink."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

from cutwater import sinks
from cutwater.ids import BatchId, CheckpointId, Generation, PipelineId, SinkId, Slot
from cutwater.protocol.commit import CommitPermit, grant
from cutwater.protocol.cut import Committable
from cutwater.sinks.base import OpenSink, SinkContext

PIPELINE = PipelineId("11c4f9b2-5a55-4e0e-8a06-3a2f2c6f7d01")
SINK = SinkId("out")


@dataclass(frozen=True)
class ArrowRows:
    """The rows of one batch; pyarrow writes each row to a file of its own."""

    ids: tuple[int, ...]
    columns: Mapping[str, str] = field(default_factory=lambda: {"id": "long"})

    @property
    def schema(self) -> StructType:
        kinds = {"long": LongType(), "string": StringType()}
        return StructType([StructField(name, kinds[kind]) for name, kind in self.columns.items()])

    @property
    def frame(self) -> DataFrame:
        raise NotImplementedError

    def gathered(self) -> "ArrowRows":
        return self

    def count(self) -> int:
        return len(self.ids)

    def write_parquet(
        self, directory: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> int:
        del options
        place = Path(directory.removeprefix("file://"))
        place.mkdir(parents=True)
        for number in self.ids:
            inner = place
            if partition_by:
                inner = place / f"{partition_by[0]}={number % 2}"
                inner.mkdir(exist_ok=True)
            data = {
                name: [number if kind == "long" else str(number)]
                for name, kind in self.columns.items()
            }
            kept = {name: values for name, values in data.items() if name not in partition_by}
            pq.write_table(pa.table(kept), inner / f"part-{number:05d}-c000.parquet")
        if not self.ids:
            pq.write_table(pa.table({"id": pa.array([], pa.int64())}), place / "part-0.parquet")
        return len(self.ids)


def permit(slot: int) -> CommitPermit:
    return grant(PIPELINE, Slot(slot), CheckpointId(slot + 100))


def open_sink(
    root: Path,
    *,
    sink: SinkId = SINK,
    write: str = "append",
    partition_by: Sequence[str] = (),
    keep_past: int = 100,
) -> OpenSink:
    target = sinks.files(str(root), write=write, partition_by=partition_by, keep_past=keep_past)
    return target.open(SinkContext(None, PIPELINE, sink))


def stage_rows(
    sink: OpenSink, batch: int, *ids: int, generation: int = 1, **columns: str
) -> tuple[Committable, ...]:
    rows = ArrowRows(ids, columns or {"id": "long"})
    found = sink.stage(rows, Generation(generation), BatchId(batch))
    return () if found is None else (found,)


def visible_files(root: Path) -> list[Path]:
    """Return the files that a reader without knowledge of Cutwater finds."""
    found = (path for path in root.rglob("*.parquet") if path.is_file())
    return sorted(
        path for path in found if not any(part[0] in "._" for part in path.relative_to(root).parts)
    )


def ids_in(root: Path) -> list[int]:
    """Return the ids in the visible files, sorted."""
    return sorted(
        entry
        for path in visible_files(root)
        for entry in pq.ParquetFile(path).read(columns=["id"])["id"].to_pylist()
    )
