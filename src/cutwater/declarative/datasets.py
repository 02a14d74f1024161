"""The datasets of a project with the flows that write to them, under whole names.

Everything that can be wrong with the declarations alone is found here: two datasets of one name, a
flow without a target, a table without a flow, a format that Cutwater cannot commit to. What flows
read is found by `discovery`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cutwater.declarative.definitions import (
    DatasetDefinition,
    DatasetKind,
    Definitions,
    FlowDefinition,
)
from cutwater.declarative.names import PARTS_MAX, Namespace, TableName
from cutwater.planning.validation import Problem

FORMAT: Final = "parquet"
"""The only format of tables whose files Cutwater can commit and Spark's catalog reads."""

SESSION_CATALOG: Final = "spark_catalog"

_NO_FLOW: Final = "has no flow, so nothing would be written to it; give it one or remove it"


@dataclass(frozen=True, slots=True)
class Dataset:
    """One dataset or sink, and its flows in the order of their declaration.

    Attributes:
        key: Its name in the pipeline; unique in the project.
        table: Its whole name, for what is in the catalog; None for a temporary view or a sink.
    """

    key: str
    definition: DatasetDefinition
    flows: tuple[FlowDefinition, ...]
    table: TableName | None = None

    @property
    def kind(self) -> DatasetKind:
        return self.definition.kind

    @property
    def title(self) -> str:
        return self.definition.title

    @property
    def alias(self) -> tuple[str, ...]:
        """The parts that may be written before its columns."""
        return (self.key,) if self.table is None else tuple(self.table)

    def flow_key(self, flow: FlowDefinition) -> str:
        """Return the name of a flow in the pipeline."""
        own = flow.name in {self.definition.name, self.definition.name[-1:]}
        return f"{self.key if own else '-'.join(flow.name)}-flow"


class Datasets:
    """All datasets and sinks of a project, by what flows call them."""

    def __init__(self, namespace: Namespace, datasets: Sequence[Dataset]) -> None:
        self._namespace = namespace
        self.all = tuple(datasets)
        readable = [dataset for dataset in datasets if dataset.kind is not DatasetKind.SINK]
        self._views = {dataset.key: dataset for dataset in readable if dataset.table is None}
        self._tables = {dataset.table: dataset for dataset in readable if dataset.table}

    def find(self, parts: Sequence[str]) -> Dataset | None:
        """Return the dataset that a name means; a temporary view comes before a table."""
        if len(parts) == 1 and parts[0] in self._views:
            return self._views[parts[0]]
        if len(parts) > PARTS_MAX:
            return None
        return self._tables.get(self._namespace.qualify(parts))


def assemble(
    definitions: Definitions, namespace: Namespace, default_format: str
) -> tuple[Datasets, list[Problem]]:
    """Give every dataset its whole name and its flows; return all problems with them."""
    problems = list(definitions.problems)
    flows: dict[str, list[FlowDefinition]] = {}
    keys = {_key(namespace, definition): definition for definition in definitions.datasets}
    for flow in definitions.flows:
        key = _target_key(namespace, flow, keys)
        if key is None:
            target = ".".join(flow.target)
            reason = f"{flow.title} writes to {target}, and no table or sink is called that"
            problems.append(Problem(flow.place, reason))
        else:
            flows.setdefault(key, []).append(flow)
    datasets = []
    for key, definition in keys.items():
        table = None if _is_unqualified(definition) else namespace.qualify(definition.name)
        datasets.append(Dataset(key, definition, tuple(flows.get(key, ())), table))
    problems += _repeated(definitions, namespace)
    problems += [
        Problem(dataset.definition.place, f"{dataset.title} {reason}")
        for dataset in datasets
        for reason in _refusals(dataset, default_format)
        if reason != _NO_FLOW or dataset.definition.name not in definitions.refused_targets
    ]
    return Datasets(namespace, datasets), problems


def _is_unqualified(definition: DatasetDefinition) -> bool:
    return definition.kind in {DatasetKind.TEMPORARY_VIEW, DatasetKind.SINK}


def _key(namespace: Namespace, definition: DatasetDefinition) -> str:
    if _is_unqualified(definition):
        return "-".join(definition.name)
    return namespace.node_name(namespace.qualify(definition.name))


def _target_key(
    namespace: Namespace, flow: FlowDefinition, keys: Mapping[str, DatasetDefinition]
) -> str | None:
    plain = "-".join(flow.target)
    if plain in keys and _is_unqualified(keys[plain]):
        return plain
    key = namespace.node_name(namespace.qualify(flow.target))
    return key if key in keys else None


def _repeated(definitions: Definitions, namespace: Namespace) -> Iterator[Problem]:
    seen: dict[str, DatasetDefinition] = {}
    for definition in definitions.datasets:
        # Spark's session catalog knows tables by lower-case names.
        first = seen.setdefault(_key(namespace, definition).lower(), definition)
        if first is not definition:
            reason = f"{definition.title} has the name of {first.title}, declared at {first.place}"
            yield Problem(definition.place, reason)


def _refusals(dataset: Dataset, default_format: str) -> Iterator[str]:
    """Yield what is wrong with one dataset, as ends of a sentence that begins with it."""
    flows, kind = dataset.flows, dataset.kind
    if not flows:
        yield _NO_FLOW
    if len(flows) > 1 and kind not in {DatasetKind.STREAMING_TABLE, DatasetKind.SINK}:
        lines = ", ".join(str(flow.place) for flow in flows)
        yield f"has {len(flows)} flows ({lines}); only streaming tables and sinks have several"
    names = Counter(flow.name for flow in flows)
    for name in sorted(name for name, count in names.items() if count > 1):
        yield f"has {names[name]} flows called {'.'.join(name)}; give each a name of its own"
    if dataset.table is not None and dataset.table.catalog != SESSION_CATALOG:
        yield (
            f"is in the catalog {dataset.table.catalog}, which has no commit that takes a key "
            f"along; use {SESSION_CATALOG}"
        )
    if kind.is_table:
        format_name = (dataset.definition.format or default_format).lower()
        if format_name != FORMAT:
            yield _format_refusal(format_name)


def _format_refusal(format_name: str) -> str:
    reason = f"has the format {format_name}, and tables of the catalog are {FORMAT} here"
    if format_name == "delta":
        return (
            f"{reason}: Spark's catalog has no commit of Delta that takes a key along; declare a "
            "sink with create_sink(format='delta', options={'path': …})"
        )
    return f"{reason}; leave the format out or use {FORMAT}"
