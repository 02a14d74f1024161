"""`cutwater adopt` and `cutwater eject`: move queries between plain Spark and Cutwater.

`adopt` takes over stopped plain queries at their last committed batches. It examines everything
first and shows the result; only `--yes` writes, and only to the store. Each directory is examined
before Spark starts and again afterwards, so that a query that still writes to it is noticed.

`eject` writes a checkpoint as plain Spark checkpoint directories. It needs no Spark: the files are
in the store. The output, a README beside the directories and `eject.json` say what each directory
can be used for.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cutwater.cli.load import load, parse_pairs
from cutwater.cli.lookup import LATEST, FoundPipeline, checkpoint_of, find
from cutwater.cli.options import (
    DEFAULT_STORE,
    Conf,
    Debug,
    Master,
    OutputForm,
    Parameters,
    PipelineName,
    StoreUrl,
    Target,
    store_location,
)
from cutwater.cli.output import SUCCESS, Output, bytes_text, count_text, say, say_json
from cutwater.cli.session import SessionStarter
from cutwater.config.settings import MASTER_DEFAULT
from cutwater.errors import AdoptionRefused, ConfigError, NotFound, RecoveryError
from cutwater.planning.planner import plan
from cutwater.protocol.decisions import Decision
from cutwater.store.backends.directories import is_directory
from cutwater.store.backends.location import backend_for_writing
from cutwater.store.paths import NAMES
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import find_pipeline, open_pipeline

if TYPE_CHECKING:
    from cutwater.operations.migration.adopt import AdoptedStep, Adoption, Looked
    from cutwater.protocol.decisions import Decision
    from cutwater.spark.checkpoint_dir.offsets import Stream


ADOPT_HELP: Final = """Take over stopped plain streaming queries, state and all.

Each query's last committed batch becomes a part of the pipeline's first checkpoint: `run` then
resumes from there, with state and source positions. Without --yes it only shows what it would do.
The queries' own directories are only read. Steps without a query start empty. Sinks start with the
next row: what the queries have written so far stays where it is.

Steps may share a source if their queries have stopped at the same place in it. A step may read the
rows of another adopted step if its query has read all files that the other one has written.

\b
  cutwater adopt orders.py --query totals=/data/checkpoints/totals
  cutwater adopt orders.py --query totals=/data/checkpoints/totals --yes
  cutwater run orders.py
"""

WATCHED_S: Final = 2.0
"""The minimum time between the two examinations of a directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptArguments:
    target: Target
    query: Annotated[
        list[str],
        typer.Option(
            "--query",
            metavar="STEP=DIRECTORY",
            help="A step and the checkpoint directory of the query it continues; may be repeated.",
        ),
    ]
    param: Parameters = field(default_factory=list)
    store: StoreUrl = DEFAULT_STORE
    yes: Annotated[bool, typer.Option("--yes", help="Do it; otherwise only show it.")] = False
    allow_uncommitted: Annotated[
        bool,
        typer.Option(
            "--allow-uncommitted",
            help="Reprocess the input of a batch that a query started and did not commit.",
        ),
    ] = False
    master: Master = MASTER_DEFAULT
    conf: Conf = field(default_factory=list)
    output: OutputForm = Output.TEXT
    debug: Debug = False


def adopt_command(arguments: AdoptArguments) -> int:
    """Show what would be adopted, and adopt it with --yes."""
    given = parse_pairs("--query", arguments.query)
    conf = parse_pairs("--conf", arguments.conf)

    # Imported here: `plan`, `doctor` and `--help` must work without Spark.
    from cutwater.operations.migration.adopt import adopt, examine  # noqa: PLC0415
    from cutwater.run import stored_targets  # noqa: PLC0415
    from cutwater.spark.analysis.explain import look  # noqa: PLC0415
    from cutwater.spark.engine.kafka_brokers import identify_topics  # noqa: PLC0415
    from cutwater.spark.jvm.internals import Internals  # noqa: PLC0415

    session = SessionStarter(arguments.master, "cutwater adopt", conf)
    loaded = load(arguments.target, parse_pairs("--param", arguments.param), session)
    planned = plan(loaded.pipeline)
    _check_new(arguments.store, planned.pipeline)
    examined = _examine_queries(planned.pipeline, given)
    began_s = time.monotonic()
    forms = identify_topics(Internals(session()), look(planned, session()))
    time.sleep(max(0.0, WATCHED_S - (time.monotonic() - began_s)))
    adoption = examine(planned, forms, examined, allow_uncommitted=arguments.allow_uncommitted)
    if arguments.output is Output.TEXT:
        say(_adoption_text(adoption, arguments.store))
    decision = None
    if arguments.yes:
        backend = backend_for_writing(arguments.store)
        store = PipelineStore.of(backend, open_pipeline(backend, planned.pipeline))
        decision = adopt(adoption, store, stored_targets(planned))
    if arguments.output is Output.JSON:
        say_json(_adoption_json(adoption, decision), indent=2)
    elif decision is None:
        say("Nothing was written. Add --yes to do it.")
    else:
        say(
            f"Adopted as checkpoint {decision.checkpoint_id} of {planned.pipeline}, kept as "
            f"savepoint adopted. Continue with: cutwater run {arguments.target} --store "
            f"{arguments.store}"
        )
    return SUCCESS


def _check_new(url: str, pipeline: str) -> None:
    """Refuse a pipeline that has checkpoints, before Spark starts."""
    from cutwater.operations.migration.adopt import has_checkpoints  # noqa: PLC0415 - as above

    location = store_location(url)
    if location.directory is not None and not is_directory(location.directory / NAMES):
        # No store yet: opening it would create one, and nothing is written without --yes.
        return
    backend = location.backend()
    try:
        store = PipelineStore.of(backend, find_pipeline(backend, pipeline))
    except NotFound:
        return
    if store.log.read().head is not None:
        raise AdoptionRefused(pipeline, has_checkpoints(pipeline))


def _examine_queries(pipeline: str, given: Mapping[str, str]) -> dict[str, "Looked"]:
    from cutwater.operations.migration.adopt import Looked  # noqa: PLC0415 - as above
    from cutwater.operations.migration.plain_query import look, trace  # noqa: PLC0415 - as above

    found: dict[str, Looked] = {}
    problems = []
    for step, directory in given.items():
        # Before it is read, so that a change during reading is noticed too.
        path = Path(directory.removeprefix("file://"))
        seen = trace(path)
        try:
            found[step] = Looked(look(path), seen)
        except RecoveryError as error:
            problems.append(f"{step}: {error.message}")
    if problems:
        raise AdoptionRefused(pipeline, *problems)
    return found


# -- output


def _adoption_text(adoption: "Adoption", store: str) -> str:
    lines = [f"pipeline {adoption.plan.pipeline}"]
    for step in adoption.steps:
        lines += ["", f"  {step.step}  continues {step.query.directory}"]
        lines += [f"    {name:<12}{text}" for name, text in _step_facts(step)]
    for source in adoption.sources:
        lines += ["", f"  {source.step}  reads for {', '.join(source.readers)}"]
        for name, text in _stream_facts(source.streams, source.offsets):
            lines.append(f"    {name:<12}{text}")
    lines.append("")
    if adoption.empty:
        lines.append(f"  start empty   {', '.join(adoption.empty)}")
    sinks = ", ".join(str(step.sink.name) for step in adoption.plan.steps if step.sink)
    lines += [
        f"  sinks         {sinks or 'none'}: start with the first row after these batches; what "
        "the queries wrote",
        "                so far stays where it is and is not copied",
        f"  stored in     {store}, as the pipeline's first checkpoint",
        "  only read     the queries' directories. A query that is idle looks like one that has",
        "                stopped: make sure that none of them runs",
        "",
    ]
    return "\n".join(lines)


def _step_facts(step: "AdoptedStep") -> Iterator[tuple[str, str]]:
    query = step.query
    yield "batch", f"{query.batch} is the last one committed"
    yield from _stream_facts(step.streams, step.offsets)
    yield "watermark", _time_text(query.watermark_ms) or "none"
    if query.operators:
        for operator in query.operators:
            yield "state", f"{operator.name or 'operator'} {operator.id}"
        yield "kept by", f"{query.provider}, checkpoint format {query.format}"
        yield "partitions", str(query.partitions or "unknown")
    else:
        yield "state", "none"
    yield "size", f"{bytes_text(query.size_bytes)} in {count_text(len(query.files), 'file')}"
    for note in step.notes:
        yield "note", note


def _stream_facts(
    streams: "Sequence[Stream]", offsets: Sequence[str | None]
) -> Iterator[tuple[str, str]]:
    for at, (stream, line) in enumerate(zip(streams, offsets, strict=True)):
        if stream.kind.value == "channel":
            yield "reads", f"channel {stream.name}, which starts empty"
        elif stream.description:
            yield "source", f"{at}:{stream.name}  {stream.description}"
            yield "", f"at {line or 'its beginning'}"


def _time_text(at_ms: int) -> str | None:
    if not at_ms:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _adoption_json(adoption: "Adoption", decision: "Decision | None") -> dict[str, object]:
    return {
        "pipeline": adoption.plan.pipeline,
        "adopted": None if decision is None else decision.checkpoint_id,
        "queries": [
            {
                "step": step.step,
                "directory": str(step.query.directory),
                "batch": step.query.batch,
                "uncommitted_batch": step.query.planned,
                "offsets": dict(step.positions),
                "watermark": _time_text(step.query.watermark_ms),
                "state_operators": [operator.name for operator in step.query.operators],
                "state_provider": step.query.provider or None,
                "state_format": step.query.format,
                "partitions": step.query.partitions,
                "files": len(step.query.files),
                "size": step.query.size_bytes,
                "notes": list(step.notes),
            }
            for step in adoption.steps
        ],
        "sources": [
            {
                "step": source.step,
                "readers": list(source.readers),
                "offsets": dict(source.positions),
            }
            for source in adoption.sources
        ],
        "start_empty": list(adoption.empty),
    }


EJECT_HELP: Final = """Write a checkpoint as checkpoint directories of plain streaming queries.

Writes one directory for each step that runs as a query, and a README.txt that says how each can be
used. A step that reads external sources continues exactly as a plain query; a step that reads
channels keeps its state and needs another source. The pipeline and its store are only read. Take a
savepoint first: a checkpoint with rows in flight cannot be ejected.

\b
  cutwater eject orders --to /data/checkpoints/orders
  cutwater eject orders --checkpoint 17 --to /data/checkpoints/orders
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EjectArguments:
    pipeline: PipelineName
    to: Annotated[
        Path, typer.Option(metavar="DIRECTORY", help="A new or empty directory to write to.")
    ]
    checkpoint: Annotated[
        str,
        typer.Option(metavar="latest|ID|NAME", help="The checkpoint, or a savepoint by its name."),
    ] = LATEST
    store: StoreUrl = DEFAULT_STORE
    output: OutputForm = Output.TEXT
    debug: Debug = False


def eject_command(arguments: EjectArguments) -> int:
    from cutwater.operations.migration.eject import README, as_json, eject  # noqa: PLC0415 - slow

    found = find(arguments.store, arguments.pipeline)
    decision = _find_decision(found, arguments.checkpoint)
    ejection = eject(found.name, found.store, decision, arguments.to)
    if arguments.output is Output.JSON:
        say_json(as_json(ejection), indent=2)
        return SUCCESS
    say(f"checkpoint {decision.checkpoint_id} of {arguments.pipeline} is in {ejection.directory}")
    if ejection.warning:
        say(ejection.warning)
    for step in ejection.steps:
        say(f"\n  {step.step}: {step.ending.value}\n    {step.explanation}")
    say(f"\n{ejection.directory / README} says the same.")
    return SUCCESS


def _find_decision(found: FoundPipeline, text: str) -> Decision:
    """Return the decision of a checkpoint whose manifest is still kept."""
    log = found.store.log.read()
    if log.head is None:
        raise ConfigError("--checkpoint", f"{found.name} has no checkpoint yet")
    if text == LATEST:
        return log.head
    chosen = checkpoint_of(found, text)
    if chosen not in found.store.manifests.ids():
        raise ConfigError("--checkpoint", f"{text} has been pruned; see cutwater checkpoints list")
    return next(decision for decision in log.decisions if decision.checkpoint_id == chosen)
