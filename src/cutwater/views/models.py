"""The JSON bodies of the API, field by field; the OpenAPI document is generated from them.

Names are those of Flink's REST interface where it has one, and follow its style otherwise. Times
are milliseconds since 1970, durations milliseconds, sizes bytes; an unknown value is null. A step
is what Flink calls a vertex, with one subtask. First come checkpoints and requests, then the
pipeline as a whole: its steps, channels, recoveries and tables.
"""

from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from cutwater.store.records.requests import REASON_MAX

COUNT_MAX = 2**53 - 1
"""The largest whole number that every reader of JSON understands."""

Status = Literal["IN_PROGRESS", "COMPLETED", "FAILED"]
Name = Annotated[str, Field(min_length=1, max_length=100)]
TriggerId = Annotated[str | None, Field(alias="triggerId", pattern="^[0-9a-f]{32}$")]
Format = Annotated[Literal["CANONICAL", "NATIVE"], Field(alias="formatType")]

# Flink spells it in one way for savepoints and in another for stops; both are accepted.
_TARGET = Field(validation_alias=AliasChoices("target-directory", "targetDirectory"))


class ResponseModel(BaseModel):
    """Base of all response bodies."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)


class RequestModel(BaseModel):
    """Base of all request bodies: unknown fields are refused, and 1 is not `true`.

    The names of the classes below are schema names in the OpenAPI document, which generated clients
    use; hence `CheckpointQuestion` and not `CheckpointRequest`.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True, extra="forbid", strict=True)


class Problem(ResponseModel):
    """Why a request failed. `errors` is as in Flink."""

    errors: list[str]
    code: str = ""
    next_step: str = ""


class Spread(ResponseModel):
    """The distribution of a number over checkpoints."""

    min: int
    max: int
    avg: int
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float


class Task(ResponseModel):
    """One step's part of a checkpoint."""

    id: int
    status: Status
    latest_ack_timestamp: int | None = None
    checkpointed_size: int | None = None
    state_size: int | None = None
    end_to_end_duration: int | None = None
    alignment_buffered: int = 0
    processed_data: int = 0
    persisted_data: int | None = None
    num_subtasks: int = 1
    num_acknowledged_subtasks: int = 0
    inputs: int | None = None
    aligned_inputs: int | None = None
    start_delay: int | None = None
    alignment_duration: int | None = None
    sync_duration: int | None = None
    async_duration: int | None = None
    unaligned_checkpoint: bool | None = None
    batch: int | None = None
    watermark: int | None = None
    offsets: dict[str, str] = Field(default_factory=dict)
    partitions: dict[str, dict[str, int]] = Field(default_factory=dict)
    positions: dict[str, int] = Field(default_factory=dict)
    in_flight_events: int | None = None
    cause: str | None = None
    finished: bool | None = None
    objects: int | None = None


class Checkpoint(ResponseModel):
    """One attempt to take a checkpoint, or a rewind."""

    class_name: Annotated[str, Field(alias="className")]
    id: int
    status: Status
    is_savepoint: bool
    savepoint_format: Annotated[str | None, Field(alias="savepointFormat")] = None
    trigger_timestamp: int | None
    latest_ack_timestamp: int | None = None
    checkpointed_size: int | None = None
    state_size: int | None = None
    end_to_end_duration: int | None = None
    alignment_buffered: int = 0
    processed_data: int = 0
    persisted_data: int | None = None
    num_subtasks: int = 0
    num_acknowledged_subtasks: int = 0
    checkpoint_type: str
    external_path: str | None = None
    discarded: bool | None = None
    failure_timestamp: int | None = None
    failure_message: str | None = None
    kind: str | None = None
    name: str | None = None
    generation: int | None = None
    slot: int | None = None
    commit_point: bool | None = None
    commit_duration: int | None = None
    is_current: bool = False
    rewinds_to: int | None = None
    sink_versions: dict[str, str] | None = None
    problem: str | None = None


class CheckpointDetail(Checkpoint):
    """A checkpoint with its steps."""

    tasks: dict[str, Task] = Field(default_factory=dict)


class Restored(ResponseModel):
    """The checkpoint that the newest generation was restored from."""

    id: int
    restore_timestamp: int
    is_savepoint: bool
    external_path: str | None = None


class Counts(ResponseModel):
    """How many checkpoints there are, among those in the list."""

    restored: int
    total: int
    in_progress: int
    completed: int
    failed: int


class Latest(ResponseModel):
    """The newest of each kind."""

    completed: Checkpoint | None = None
    savepoint: Checkpoint | None = None
    failed: Checkpoint | None = None
    restored: Restored | None = None


class Summary(ResponseModel):
    """Statistics of the completed checkpoints in the list; null for an unknown number."""

    checkpointed_size: Spread | None = None
    state_size: Spread | None = None
    end_to_end_duration: Spread | None = None
    commit_duration: Spread | None = None
    alignment_buffered: Spread | None = None
    processed_data: Spread | None = None
    persisted_data: Spread | None = None


class CheckpointList(ResponseModel):
    """The newest checkpoints, newest first, with counts and statistics."""

    counts: Counts
    summary: Summary
    latest: Latest
    history: list[Checkpoint]
    version: int
    """Changes whenever anything in the list changes."""
    complete: bool
    """Whether the whole list has been read from the store."""


class Externalization(ResponseModel):
    """What happens to checkpoints when the pipeline ends: they are kept."""

    enabled: bool = True
    delete_on_cancellation: bool = False


class CheckpointSettings(ResponseModel):
    """How checkpoints are taken; null where unknown, because no process runs the pipeline."""

    mode: str = "exactly_once"
    interval: int | None = None
    timeout: int | None = None
    savepoint_timeout: int | None = None
    min_pause: int | None = None
    max_concurrent: int | None = None
    externalization: Externalization = Externalization()
    state_backend: str = "spark"
    checkpoint_storage: str
    unaligned_checkpoints: bool | None = None
    forced_unaligned: bool | None = None
    max_inflight_bytes: int | None = None
    tolerable_failed_checkpoints: int | None = None
    aligned_checkpoint_timeout: int | None = None
    retained: int | None = None
    incremental: bool | None = None
    commit_unaligned: bool | None = None
    checkpoints_after_tasks_finish: bool = True
    state_changelog_enabled: bool = False


class Phased(ResponseModel):
    """The durations of a step's synchronous and asynchronous parts."""

    sync: int | None = None
    async_: Annotated[int | None, Field(alias="async")] = None


class Alignment(ResponseModel):
    """The alignment of a step's inputs."""

    buffered: int = 0
    processed: int = 0
    persisted: int | None = None
    duration: int | None = None


class Subtask(ResponseModel):
    """The only subtask of a step."""

    index: int = 0
    status: str
    ack_timestamp: int | None = None
    end_to_end_duration: int | None = None
    checkpointed_size: int | None = None
    state_size: int | None = None
    checkpoint: Phased = Phased()
    alignment: Alignment = Alignment()
    start_delay: int | None = None
    unaligned_checkpoint: bool | None = None
    aborted: bool = False


class TaskDetail(Task):
    """One step's part of a checkpoint, with its only subtask."""

    subtasks: list[Subtask]


class CheckpointQuestion(RequestModel):
    """Requests a checkpoint."""

    checkpoint_type: Annotated[
        Literal["CONFIGURED", "FULL", "INCREMENTAL"], Field(alias="checkpointType")
    ] = "CONFIGURED"
    trigger_id: TriggerId = None


class AbortQuestion(RequestModel):
    """Requests that a pending checkpoint is aborted."""

    reason: Annotated[str, Field(min_length=1, max_length=REASON_MAX)]
    checkpoint_id: Annotated[int | None, Field(alias="checkpointId", ge=1, le=COUNT_MAX)] = None
    trigger_id: TriggerId = None


class SavepointQuestion(RequestModel):
    """Requests a savepoint."""

    name: Name | None = None
    cancel_job: Annotated[bool, Field(alias="cancel-job")] = False
    format_type: Format = "NATIVE"
    target_directory: Annotated[str | None, _TARGET] = None
    trigger_id: TriggerId = None


class StopQuestion(RequestModel):
    """Requests a stop with a last checkpoint, or with a savepoint if it names one."""

    savepoint: Name | None = None
    drain: bool = False
    format_type: Format = "NATIVE"
    target_directory: Annotated[str | None, _TARGET] = None
    trigger_id: TriggerId = None


class Triggered(ResponseModel):
    """The id under which the state of a request can be read."""

    request_id: Annotated[str, Field(alias="request-id")]


class OperationStatus(ResponseModel):
    """Whether a request is completed."""

    id: Literal["IN_PROGRESS", "COMPLETED"]


class FailureCause(ResponseModel):
    """Why a request failed."""

    message: str


class Operation(ResponseModel):
    """The result of a request."""

    checkpoint_id: Annotated[int | None, Field(alias="checkpointId")] = None
    location: str | None = None
    name: str | None = None
    message: str = ""
    failure_cause: Annotated[FailureCause | None, Field(alias="failure-cause")] = None


class OperationState(ResponseModel):
    """The state of a request; `operation` is null until it is completed."""

    status: OperationStatus
    operation: Operation | None = None


class InputAlignment(ResponseModel):
    """How far the inputs of a step are aligned for the open checkpoint; sizes in bytes."""

    inputs: int
    aligned: list[str]
    """The inputs that were read up to their barrier, each as its ordinal and channel."""
    waiting: list[str]
    held: int
    """What has arrived after the barrier on aligned inputs, and waits for the others."""
    behind: int
    """What is still to be read before the barriers that have arrived."""
    recorded: int
    """What the barrier has overtaken so far; it is stored with the checkpoint."""


class TopicLag(ResponseModel):
    """How far a source is behind the end of one partition of Kafka, in offsets."""

    source: str
    topic: str
    partition: int
    position: int
    end: int
    lag: int


class StepNode(ResponseModel):
    """A step of the DAG, with its current activity if a process runs the pipeline."""

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
    lag: list[TopicLag] = Field(default_factory=list)


class ChannelEdge(ResponseModel):
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
    """Whether the open checkpoint's barrier is in it: sent, and not yet forwarded by the reader."""


class Dag(ResponseModel):
    """The steps and channels of a pipeline; sources first, each step after those it reads."""

    jid: str
    name: str
    live: bool
    checkpoint: int | None = None
    """The checkpoint in progress."""
    steps: list[StepNode]
    channels: list[ChannelEdge]


class ChannelList(ResponseModel):
    """All channels."""

    channels: list[ChannelEdge]


class Vertex(ResponseModel):
    """A step, as Flink lists it."""

    id: str
    name: str
    status: str
    parallelism: int = 1
    metrics: dict[str, int] = Field(default_factory=dict)


class Job(ResponseModel):
    """A pipeline."""

    jid: str
    name: str
    state: str
    start_time: Annotated[int | None, Field(alias="start-time")] = None
    generation: int
    restarts: int = 0
    detail: str = ""
    live: bool
    """Whether the process that responds runs it."""
    url: str | None = None
    """The API of the process that runs it, if that is another process with a known address."""
    holder: str | None = None
    """The process that runs it, or ran it last."""
    store: str
    can_change: bool
    """Whether checkpoints, savepoints and stops can be requested."""
    token_hint: str = ""
    """Where to find the token for changes."""


class JobDetail(Job):
    """A pipeline with its steps."""

    vertices: list[Vertex]


class JobList(ResponseModel):
    """All pipelines of this server."""

    jobs: list[Job]


class Now(ResponseModel):
    """Everything about a pipeline that changes every second, in one response."""

    job: Job
    dag: Dag
    recent: list[CheckpointDetail]
    """The newest attempts of the running process, newest first; with steps if in progress."""
    version: int
    """The version of the list of checkpoints."""
    at: int


class State(ResponseModel):
    """The response to a probe."""

    state: str


class Recovery(ResponseModel):
    """The recovery that a generation started with, phase by phase."""

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


class RecoveryList(ResponseModel):
    """The newest recoveries, newest first."""

    recoveries: list[Recovery]


class SinkTable(ResponseModel):
    """A sink's target."""

    sink: str
    format: str
    target: str


class TablesAt(ResponseModel):
    """The visible table versions at one cut."""

    checkpoint: int
    timestamp: int | None
    name: str | None
    is_current: bool
    versions: dict[str, str]


class TableList(ResponseModel):
    """The sinks, and their table versions at the newest cuts at which they committed."""

    sinks: list[SinkTable]
    cuts: list[TablesAt]


class StepBack(ResponseModel):
    """What a rewind does to a step."""

    step: str
    batch: int | None
    batch_then: int
    state_bytes: int
    in_flight_bytes: int


class SourceBack(ResponseModel):
    """Where a source resumes after a rewind."""

    stream: str
    position: str | None
    position_then: str | None
    checked: bool
    unchecked: str = ""
    replayed: int | None = None


class SinkBack(ResponseModel):
    """What a rewind does to a sink."""

    sink: str
    target: str
    version: str | None
    version_then: str | None
    rows: int | None
    rows_then: int | None
    rows_removed: int | None
    obstacle: str | None


class RewindPreview(ResponseModel):
    """What a rewind would do; only the command does it, while no process runs the pipeline."""

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
