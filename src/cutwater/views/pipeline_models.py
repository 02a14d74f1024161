"""What the API answers about a pipeline as a whole: its steps, channels, recoveries and tables.

The rest of the forms, and what holds for all of them, is in `forms`.
"""

from typing import Annotated

from pydantic import Field

from cutwater.views.models import CheckpointDetail, Form


class InputAlignment(Form):
    """How the inputs of a step meet the barrier of the open checkpoint; sizes in bytes."""

    inputs: int
    aligned: list[str]
    """The inputs that were read up to their barrier, each as its ordinal and channel."""
    waiting: list[str]
    held: int
    """What has arrived behind the barrier on aligned inputs, and waits for the others."""
    behind: int
    """What is still to be read before the barriers that have arrived."""
    recorded: int
    """What the barrier has overtaken so far; it is stored with the checkpoint."""


class StepNode(Form):
    """A step of the DAG, with what it does just now where somebody runs it."""

    id: str
    kind: str
    description: str = ""
    sources: list[str] = Field(default_factory=list)
    sink: str | None = None
    target: str | None = None
    is_source: bool
    stateful: bool | None = None
    batch: int | None = None
    rows: int | None = None
    rows_per_second: float | None = None
    late_rows: int | None = None
    watermark: int | None = None
    finished: bool | None = None
    barrier: str = "NONE"
    alignment: InputAlignment | None = None


class ChannelEdge(Form):
    """A channel as read by one step."""

    channel: str
    source: str
    reader: str
    reason: str = ""
    rows_per_second: float | None = None
    watermark: int | None = None
    backlog_messages: int | None = None
    backlog_bytes: int | None = None
    barrier: bool = False
    """Whether the open checkpoint's barrier is in it: sent, and not yet sent on by the reader."""


class Dag(Form):
    """The steps and channels of a pipeline; sources first, each step after those it reads."""

    jid: str
    name: str
    live: bool
    checkpoint: int | None = None
    """The checkpoint whose barrier is under way."""
    steps: list[StepNode]
    channels: list[ChannelEdge]


class ChannelList(Form):
    """All channels."""

    channels: list[ChannelEdge]


class Vertex(Form):
    """A step, as Flink lists it."""

    id: str
    name: str
    status: str
    parallelism: int = 1
    metrics: dict[str, int] = Field(default_factory=dict)


class Job(Form):
    """A pipeline."""

    jid: str
    name: str
    state: str
    start_time: Annotated[int | None, Field(alias="start-time")] = None
    generation: int
    restarts: int = 0
    detail: str = ""
    live: bool
    """Whether the process that answers runs it."""
    url: str | None = None
    """Where the process that runs it answers, if that is another one and it has said so."""
    holder: str | None = None
    """Which process runs it, or did last."""
    store: str
    can_change: bool
    """Whether checkpoints, savepoints and stops can be asked for."""
    token_hint: str = ""
    """Where the token for changes is found."""


class JobDetail(Job):
    """A pipeline with its steps."""

    vertices: list[Vertex]


class JobList(Form):
    """All pipelines that are served."""

    jobs: list[Job]


class Now(Form):
    """All of a pipeline that changes from second to second, in one answer."""

    job: Job
    dag: Dag
    recent: list[CheckpointDetail]
    """The newest attempts of the running process, newest first; steps of what is under way."""
    version: int
    """That of the list of checkpoints."""
    at: int


class State(Form):
    """What a probe is told."""

    state: str


class Recovery(Form):
    """How a generation came to run, phase by phase."""

    generation: int
    checkpoint_id: int | None
    timestamp: int
    reason: str | None
    choose: int
    commit_replay: int
    fetch: int
    start: int
    first_batch: int | None
    total: int
    repeated_commits: int
    state_size: int


class RecoveryList(Form):
    """The newest recoveries, newest first."""

    recoveries: list[Recovery]


class SinkTable(Form):
    """A sink's target."""

    sink: str
    format: str
    target: str


class TablesAt(Form):
    """What the sinks showed at one cut."""

    checkpoint: int
    timestamp: int | None
    name: str | None
    is_current: bool
    versions: dict[str, str]


class TableList(Form):
    """The sinks, and what they showed at the newest cuts at which they committed."""

    sinks: list[SinkTable]
    cuts: list[TablesAt]


class StepBack(Form):
    """What a rewind does to a step."""

    step: str
    batch: int | None
    batch_then: int
    state_bytes: int
    in_flight_bytes: int


class SourceBack(Form):
    """Where reading goes on after a rewind."""

    stream: str
    position: str | None
    position_then: str | None
    checked: bool


class SinkBack(Form):
    """What a rewind does to a sink."""

    sink: str
    target: str
    version: str | None
    version_then: str | None
    rows: int | None
    rows_then: int | None
    rows_removed: int | None
    obstacle: str | None


class RewindPreview(Form):
    """What a rewind would do; it is done by the command, while nobody runs the pipeline."""

    pipeline: str
    to: int
    title: str
    timestamp: int
    current: int
    undone: list[int]
    steps: list[StepBack]
    sources: list[SourceBack]
    sinks: list[SinkBack]
    refused: list[str]
    commands: list[str]
