"""What a Delta table stages: files beside it that wait for a decision, wherever the table is.

On this machine's file system the executors write them where they wait (`StagedFiles`). This module
says what a table asks of them, and adds what a commit needs: a place for copies being written.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from cutwater.ids import BatchId, Generation
from cutwater.protocol.cut import BlobRef, Committable
from cutwater.sinks.rows import Rows
from cutwater.sinks.staging.parquet import StagedFiles
from cutwater.store.backends.directories import matching, try_to_remove_tree

_SPOOLS = "copies-*"


class Staging(Protocol):
    """What waits for a decision; `StagedFiles` says what each of these does."""

    def write(
        self,
        rows: Rows,
        place: tuple[Generation, BatchId],
        partition_by: Sequence[str],
        check: Callable[[Sequence[Path]], None] | None = None,
    ) -> tuple[int, tuple[BlobRef, ...]]:
        """Write the rows of a batch with one Spark action."""
        ...

    def write_schema(self, text: str, generation: Generation) -> BlobRef:
        """Write the schema of staged rows beside them."""
        ...

    def schema_text(self, committable: Committable) -> str:
        """Read the schema that was staged with a batch."""
        ...

    def data(self, committables: Sequence[Committable]) -> Iterator[BlobRef]:
        """Give the files with rows, in order."""
        ...

    def settle(self, blobs: Sequence[BlobRef]) -> dict[BlobRef, str]:
        """Give files their last names in the table."""
        ...

    def note_committed(self, committables: Sequence[Committable]) -> None:
        """Let `retain` delete these batches as soon as nothing keeps them."""
        ...

    def retain(self, keep: Sequence[Committable]) -> None:
        """Delete what is left of batches that are committed and not to be kept."""
        ...

    def problem(self, committable: Committable) -> str | None:
        """Say what is wrong with something staged; None if it is sound."""
        ...

    def discard(self, generation: Generation, keep: Sequence[Committable]) -> None:
        """Delete what older generations staged and nobody will commit."""
        ...

    def spool(self, name: str) -> Path:
        """Return a local directory for copies being written."""
        ...

    def clear_spools(self, own: str) -> None:
        """Remove such directories of others, who are dead."""
        ...


class LocalStaging(StagedFiles):
    """Staged files on this machine's file system; fills `Staging`."""

    def spool(self, name: str) -> Path:
        """Return a directory for copies being written, on the disk of the table."""
        return self.base / name

    def clear_spools(self, own: str) -> None:
        """Remove what dead processes were writing; one that lives begins again."""
        for directory in matching(self.base, _SPOOLS):
            if directory.name != own:
                try_to_remove_tree(directory)
