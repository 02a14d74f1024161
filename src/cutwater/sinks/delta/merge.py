"""What one commit does to a Delta table: which files it adds and which it removes.

The change is computed at the commit, against the current version; if another program writes a
version at the same time, the change is computed again (docs/adr/0022). Added rows stay in the files
that Spark wrote, except where copies are needed anyway or where many small files are merged.

- append: the staged files are added.
- overwrite: the files of the last batch are added, all others are removed.
- upsert: the staged files are added; a file with a row whose key occurs again is replaced by a copy
  without such rows. Of several batches the later one wins.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import pyarrow as pa
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql.types import StructType

from cutwater.sinks.delta.data_files import Copies, DataFile, Part, calendars_of
from cutwater.sinks.delta.foreign_types import Calendars
from cutwater.sinks.delta.merge_keys import Keys, KeySet, Mask

SMALL_BYTES: Final = 1 << 20
"""A file below this size is small. At high rates files are larger anyway, and the core that would
copy them is needed elsewhere."""

JOINED_MIN: Final = 8
"""This many small files of one partition are merged; fewer are not worth a copy."""

JOINED_BYTES: Final = 32 << 20
"""The approximate maximum size of a merged file."""

COPIED_BYTES: Final = 64 << 20
"""How many bytes of small files one commit copies at most, so that it takes a second at most."""


@dataclass(frozen=True, slots=True)
class Change:
    """The files that a commit adds, and those that it removes."""

    added: Sequence[DataFile]
    removed: Sequence[DataFile] = ()

    def actions(self, schema: StructType) -> list[AddAction | RemoveAction]:
        return [
            *(file.removal() for file in self.removed),
            *(file.addition(schema) for file in self.added),
        ]


def append_files(staged: Sequence[DataFile], copies: Copies) -> Change:
    return Change(_settle([Part(file) for file in staged], copies))


def overwrite_files(
    staged: Sequence[DataFile], there: Sequence[DataFile], copies: Copies
) -> Change:
    return Change(_settle([Part(file) for file in staged], copies), there)


def upsert_files(
    batches: Sequence[Sequence[DataFile]], there: Sequence[DataFile], keys: Keys, copies: Copies
) -> Change:
    """Replace rows with the same key; `batches` are oldest first, `there` is the table."""
    parts: list[Part] = []
    later: list[pa.Table] = []
    for batch in reversed(batches):
        masks: Iterable[Mask | None] = [None] * len(batch)
        if later:
            masks = KeySet(keys, pa.concat_tables(later)).masks(batch)
        parts += [Part(*pair) for pair in zip(batch, masks, strict=True)]
        later.append(keys.read(batch))
    wanted = KeySet(keys, pa.concat_tables(later))
    bounds = keys.bounds(wanted.found)
    may_meet = [
        file
        for file in there
        if all(bounds[name].may_meet(its) for name, its in file.bounds.items())
    ]
    touched = [
        Part(file, mask)
        for file, mask in zip(may_meet, wanted.masks(may_meet), strict=True)
        if mask is not None
    ]
    return Change(_settle([*parts, *touched], copies), [part.file for part in touched])


def _settle(parts: Sequence[Part], copies: Copies) -> list[DataFile]:
    """Return the files that the table gets: copies where rows are unwanted or files are small."""
    left = [part for part in parts if part.unwanted is None or not part.unwanted.all()]
    files = [part.file for part in left if part.unwanted is None and not _is_small(part)]
    files += [
        copies.copy([part]) for part in left if part.unwanted is not None and not _is_small(part)
    ]
    budget_bytes = COPIED_BYTES
    for group in _alike([part for part in left if _is_small(part)]):
        size_bytes = sum(part.size_bytes for part in group)
        if len(group) < JOINED_MIN or size_bytes > budget_bytes:
            files += [part.file if part.unwanted is None else copies.copy([part]) for part in group]
        else:
            budget_bytes -= size_bytes
            files.append(copies.copy(group))
    return files


def _is_small(part: Part) -> bool:
    return part.size_bytes < SMALL_BYTES


def _alike(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Group small files that may be merged into one file each."""
    if len(parts) < JOINED_MIN:
        yield list(parts)
        return
    ordered = sorted(parts, key=lambda part: _place(part.file.values))
    for _, members in groupby(ordered, key=lambda part: _place(part.file.values)):
        kinds: list[tuple[Calendars, list[Part]]] = []
        for part in members:
            calendars = calendars_of(part.file)
            same = next((group for kind, group in kinds if kind == calendars), None)
            if same is None or sum(each.size_bytes for each in same) >= JOINED_BYTES:
                kinds = [kind for kind in kinds if kind[1] is not same]
                if same is not None:
                    yield same
                same = []
                kinds.append((calendars, same))
            same.append(part)
        yield from (group for _, group in kinds)


def _place(values: Mapping[str, str | None]) -> tuple[tuple[str, bool, str], ...]:
    """Return partition values in a sortable form."""
    return tuple((name, value is None, value or "") for name, value in sorted(values.items()))
