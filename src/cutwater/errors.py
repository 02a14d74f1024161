"""Every error Cutwater raises, in one tree, each with a stable code and a next step.

    CutwaterError
    ├── UserError              something the user wrote or requested
    │   ├── ConfigError        CW-101  an option has a value that cannot work
    │   ├── DeclarationError   CW-102  a pipeline or one of its nodes is declared wrongly
    │   └── PlanError          CW-103  the nodes of a pipeline do not fit together
    │       └── AdoptionRefused  CW-104  plain queries do not fit the pipeline's steps
    ├── ProtocolViolation      CW-201  an event that the protocol forbids in this state
    │   └── InvariantBroken    CW-202  a promise of PROTOCOL.md does not hold
    ├── StoreError             CW-300  the store failed to carry out a call
    │   ├── NotFound           CW-301  there is no object of that name
    │   ├── Conflict           CW-302  something else has that name already
    │   ├── Corrupt            CW-303  an object is not what was written
    │   ├── Unavailable        CW-304  the store cannot be read or written now; nothing changed
    │   ├── OutcomeUnknown     CW-305  a write may or may not have happened
    │   ├── NewerFormat        CW-306  an object was written by a newer Cutwater
    │   └── InvalidPath        CW-307  a name that no object can have
    ├── Fenced                 CW-401  a newer generation has claimed the pipeline
    ├── Superseded             CW-402  a sink has acted on a later decision than this one
    ├── SinkError              CW-501  a sink failed to carry out a call
    │   └── TargetBehind       CW-502  a target lacks a commit that the store has recorded
    ├── SourceUnavailable      CW-503  the broker of a source does not answer
    ├── NotReadable            CW-510  a sink cannot be read as it was at a checkpoint
    ├── RunError               CW-600  a pipeline could not be run
    │   ├── SessionError       CW-601  this Spark session or Java cannot run a pipeline
    │   ├── StepError          CW-602  a step failed, with the user's function and line
    │   ├── RecoveryError      CW-603  the pipeline cannot resume from its last checkpoint
    │   │   ├── CodeChanged    CW-608  its code has changed in a way that needs a decision
    │   │   └── RecordsLost    CW-609  a source no longer has the records that come next
    │   ├── PipelineHeld       CW-604  another process runs the pipeline
    │   ├── HolderUnknown      CW-613  it is unknown whether one does
    │   ├── NotRunning         CW-611  no process runs the pipeline
    │   └── RequestFailed      CW-612  a running pipeline refused or failed a request
    └── MoveRefused            CW-701  a rewind or fork that cannot be done

Expected outcomes (a duplicate acknowledgement, a lost race, nothing to recover) are enums, not
errors. All classes survive pickling, since they cross process boundaries on Spark. Everything that
reads or writes a store may raise `StoreError`; a docstring names it only where a kind means more.

A `UserError` is found before anything is started or written. A broken invariant stops the process,
because continuing could lose rows. No `RunError` or `MoveRefused` loses anything that was decided.
"""

from typing import ClassVar

from cutwater.ids import CheckpointId, Generation, PipelineId, SinkId, Slot, StepId

__all__ = [
    "AdoptionRefused",
    "CodeChanged",
    "ConfigError",
    "Conflict",
    "Corrupt",
    "CutwaterError",
    "DeclarationError",
    "Fenced",
    "HolderUnknown",
    "InvalidPath",
    "InvariantBroken",
    "MoveRefused",
    "NewerFormat",
    "NotFound",
    "NotReadable",
    "NotRunning",
    "OutcomeUnknown",
    "PipelineHeld",
    "PlanError",
    "ProtocolViolation",
    "RecordsLost",
    "RecoveryError",
    "RequestFailed",
    "RunError",
    "SessionError",
    "SinkError",
    "SourceUnavailable",
    "StepError",
    "StoreError",
    "Superseded",
    "TargetBehind",
    "Unavailable",
    "UserError",
]


class CutwaterError(Exception):
    """Base of all errors of this package; never raised itself.

    Attributes:
        code: The stable code of the error class, such as `CW-101`.
        retryable: Whether the same call may succeed later without any change.
        next_step: What the reader of the message can do.
        parameters: The attributes that hold its arguments, in order: the error is pickled by them
            and not by the finished message.
    """

    code: ClassVar[str] = "CW-000"
    retryable: ClassVar[bool] = False
    next_step: ClassVar[str] = ""
    parameters: ClassVar[tuple[str, ...]] = ("message",)

    def __init__(self, message: str) -> None:
        """Keep the plain message; `str()` adds the code and the next step."""
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        text = f"[{self.code}] {self.message}"
        return f"{text} {self.next_step}" if self.next_step else text

    def __reduce__(self) -> tuple[type["CutwaterError"], tuple[object, ...]]:
        return (type(self), tuple(getattr(self, name) for name in self.parameters))


class UserError(CutwaterError):
    """Something that the user wrote or requested cannot work."""

    code = "CW-100"


class ConfigError(UserError):
    """An option has a value that cannot work.

    Attributes:
        option: The option's name as the user writes it.
    """

    code = "CW-101"
    parameters: ClassVar[tuple[str, ...]] = ("option", "reason")
    next_step = "Change the option and start again; nothing was written."

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}.")
        self.option = option
        self.reason = reason


class DeclarationError(UserError):
    """A pipeline, or one of its nodes, is declared in a way that cannot work.

    Attributes:
        where: The line that declares it, as `file:line`.
        reason: What is wrong with it.
    """

    code = "CW-102"
    parameters: ClassVar[tuple[str, ...]] = ("where", "reason")
    next_step = "Change the declaration and run it again; nothing was started."

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}.")
        self.where = where
        self.reason = reason


class PlanError(UserError):
    """The nodes of a pipeline do not fit together; all problems are reported together.

    Attributes:
        problems: One sentence each, beginning with its `file:line`.
    """

    code = "CW-103"
    next_step = "Change the pipeline and plan it again; nothing was started."

    def __init__(self, pipeline: str, *problems: str) -> None:
        count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
        listed = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"pipeline {pipeline} has {count}:{listed}\n")
        self.pipeline = pipeline
        self.problems = problems

    def __str__(self) -> str:
        """Return the code, one line per problem, and the next step on a separate line."""
        return f"[{self.code}] {self.message}{self.next_step}"

    def __reduce__(self) -> tuple[type["PlanError"], tuple[str, ...]]:
        return (type(self), (self.pipeline, *self.problems))


class AdoptionRefused(PlanError):
    """Plain queries cannot be adopted as they are; all problems are reported together.

    Attributes:
        problems: One sentence or more each, beginning with the step.
    """

    code = "CW-104"
    next_step = "Nothing was decided, and the queries are as they were."


class ProtocolViolation(CutwaterError):
    """An event arrived that the protocol forbids in the machine's current state.

    The machine that raises it has not changed: a caller that can continue may continue.
    """

    code = "CW-201"
    next_step = "This is a defect of Cutwater, not of your pipeline: please report it."


class InvariantBroken(ProtocolViolation):
    """A numbered promise of PROTOCOL.md does not hold.

    Attributes:
        invariant: Its number, such as `I4`.
    """

    code = "CW-202"
    parameters: ClassVar[tuple[str, ...]] = ("invariant", "reason")

    def __init__(self, invariant: str, reason: str) -> None:
        super().__init__(f"{invariant} does not hold: {reason}.")
        self.invariant = invariant
        self.reason = reason


class StoreError(CutwaterError):
    """The store did not do what was requested.

    Attributes:
        path: The object's path in the store.
        reason: What is wrong, in words that follow the path.
    """

    code = "CW-300"
    parameters: ClassVar[tuple[str, ...]] = ("path", "reason")
    next_step = "Look at the object and at the store's address."

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}.")
        self.path = path
        self.reason = reason


class NotFound(StoreError):
    """There is no object of that name, and the store itself is available."""

    code = "CW-301"
    parameters: ClassVar[tuple[str, ...]] = ("path",)
    next_step = "Check the name and the store's address; what was deleted does not come back."

    def __init__(self, path: str) -> None:
        super().__init__(path, "there is no such object")


class Conflict(StoreError):
    """Something else has that name already; it was not changed."""

    code = "CW-302"
    next_step = "Nothing was overwritten; find out what else writes to this store."


class Corrupt(StoreError):
    """An object is not what was written, or a required object is missing."""

    code = "CW-303"
    next_step = "Bring it back from a copy, or rewind to a checkpoint that does not need it."


class Unavailable(StoreError):
    """The store cannot be read or written now; the call has changed nothing."""

    code = "CW-304"
    retryable = True
    next_step = "Nothing was changed; try again when the cause is gone."


class OutcomeUnknown(StoreError):
    """A write may or may not have happened, or may not survive a crash of the machine."""

    code = "CW-305"
    next_step = "Read it back before anything else; do not assume either."


class NewerFormat(StoreError):
    """An object is intact, but written in a format that this version does not know.

    Attributes:
        found: The format it is written in.
        supported: The newest format this version reads.
    """

    code = "CW-306"
    parameters: ClassVar[tuple[str, ...]] = ("path", "found", "supported")
    next_step = "Use the version of Cutwater that wrote it, or a newer one."

    def __init__(self, path: str, found: int, supported: int) -> None:
        super().__init__(path, f"it has format {found}, and this version reads up to {supported}")
        self.found = found
        self.supported = supported


class InvalidPath(StoreError):
    """A call named an object with an impossible name; the store was not touched."""

    code = "CW-307"
    next_step = "This is a defect of Cutwater, not of your pipeline: please report it."


class Fenced(CutwaterError):
    """A newer generation has claimed the pipeline: this process may not write any more.

    Attributes:
        generation: The generation that was fenced out.
        newer: The generation that owns the pipeline now.
    """

    code = "CW-401"
    parameters: ClassVar[tuple[str, ...]] = ("pipeline", "generation", "newer")
    next_step = "Let the newer process run; this one must end."

    def __init__(self, pipeline: PipelineId, generation: Generation, newer: Generation) -> None:
        super().__init__(
            f"Generation {generation} of pipeline {pipeline} is fenced out: generation {newer} "
            f"has claimed it."
        )
        self.pipeline = pipeline
        self.generation = generation
        self.newer = newer


class Superseded(CutwaterError):
    """A sink has committed a later slot and never this one: another process owns it now.

    A process whose successor is in the log ends with `Fenced` instead.

    Attributes:
        slot: The slot that was to be committed.
        newer: The slot that the sink has committed.
    """

    code = "CW-402"
    parameters: ClassVar[tuple[str, ...]] = ("sink", "slot", "newer")
    next_step = "Find the other process, or the other copy of this store, that acts on the sink."

    def __init__(self, sink: SinkId, slot: Slot, newer: Slot) -> None:
        super().__init__(f"sink {sink} has acted on slot {newer} and never on slot {slot}.")
        self.sink = sink
        self.slot = slot
        self.newer = newer


class SinkError(CutwaterError):
    """A sink could not do what was requested; the request is repeated.

    Attributes:
        reason: Why, in words that follow the sink's name.
    """

    code = "CW-501"
    parameters: ClassVar[tuple[str, ...]] = ("sink", "reason")
    retryable = True
    next_step = "It is repeated by itself when the cause is gone; nothing is lost."

    def __init__(self, sink: SinkId, reason: str) -> None:
        super().__init__(f"sink {sink}: {reason}.")
        self.sink = sink
        self.reason = reason


class TargetBehind(SinkError):
    """A sink's target lacks a commit that the store has recorded; nothing is committed on top.

    Attributes:
        found: What its target shows, in words.
        recorded: What it showed according to the store, in words.
        way_out: What the user can do, in sentences.
    """

    code = "CW-502"
    parameters: ClassVar[tuple[str, ...]] = ("sink", "found", "recorded", "way_out")
    retryable = False
    next_step = "Nothing was committed on top of it, and nothing is until this is resolved."

    def __init__(self, sink: SinkId, found: str, recorded: str, way_out: str = "") -> None:
        reason = (
            "its target lacks a commit that the store has recorded. "
            f"It shows {found}; the store has recorded {recorded}"
        )
        super().__init__(sink, f"{reason}. {way_out.rstrip('.')}" if way_out else reason)
        self.found = found
        self.recorded = recorded
        self.way_out = way_out


class SourceUnavailable(CutwaterError):
    """The broker of a source does not answer, or cannot be asked.

    Attributes:
        place: Which broker.
        reason: What went wrong; contains no secret.
    """

    code = "CW-503"
    retryable = True
    next_step = "Check that it runs and that the settings of the connection are right."
    parameters: ClassVar[tuple[str, ...]] = ("place", "reason")

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"the broker at {place} cannot be asked: {reason}.")
        self.place = place
        self.reason = reason


class NotReadable(CutwaterError):
    """A sink cannot be read as it was at a checkpoint.

    Attributes:
        reason: Why, in words.
    """

    code = "CW-510"
    parameters: ClassVar[tuple[str, ...]] = ("sink", "checkpoint_id", "reason")
    next_step = "`cutwater tables` says what every sink showed; read it with its own tools."

    def __init__(self, sink: SinkId, checkpoint_id: CheckpointId, reason: str) -> None:
        super().__init__(f"sink {sink} cannot be read at checkpoint {checkpoint_id}: {reason}.")
        self.sink = sink
        self.checkpoint_id = checkpoint_id
        self.reason = reason


class RunError(CutwaterError):
    """A pipeline could not be run."""

    code = "CW-600"
    next_step = "Read the cause above; a restart resumes from the last checkpoint."


class SessionError(RunError):
    """This Spark session, or the Java under it, cannot run a pipeline."""

    code = "CW-601"
    next_step = "Nothing was started; `cutwater doctor` shows what was found."


class StepError(RunError):
    """A step failed.

    Attributes:
        where: The user's function and line.
        reason: The cause, in words.
    """

    code = "CW-602"
    parameters: ClassVar[tuple[str, ...]] = ("step", "where", "reason")
    next_step = "Nothing half-done was committed; a restart resumes from the last checkpoint."

    def __init__(self, step: StepId, where: str, reason: str) -> None:
        super().__init__(f"step {step} ({where}) failed: {reason}")
        self.step = step
        self.where = where
        self.reason = reason


class RecoveryError(RunError):
    """The pipeline cannot resume from its last checkpoint automatically."""

    code = "CW-603"
    next_step = "Nothing was changed; rewind to a sound checkpoint, or bring the object back."


class CodeChanged(RecoveryError):
    """A checkpoint cannot be restored into the current code; all problems are reported together.

    `problems` has one sentence for each problem.
    """

    code = "CW-608"
    parameters: ClassVar[tuple[str, ...]] = ("checkpoint_id", "problems")
    next_step = "Nothing was changed; `cutwater plan FILE --against PIPELINE` shows all of it."

    def __init__(self, checkpoint_id: CheckpointId, problems: tuple[str, ...]) -> None:
        start = f"checkpoint {checkpoint_id} cannot be restored into the pipeline as it is now:"
        super().__init__("\n  ".join((start, *problems)) + "\n")
        self.checkpoint_id = checkpoint_id
        self.problems = problems


class RecordsLost(RecoveryError):
    """A source no longer has the records that come after a checkpoint.

    Attributes:
        source: The source's name in the pipeline.
        problems: One sentence for each partition: where it resumes, and what is left.
    """

    code = "CW-609"
    parameters: ClassVar[tuple[str, ...]] = ("checkpoint_id", "source", "problems")
    next_step = (
        "Nothing was changed. To continue with what is left, set the option failOnDataLoss of the "
        'source to "false" and run `cutwater run FILE` again; the records in between are not read.'
    )

    def __init__(self, checkpoint_id: CheckpointId, source: str, problems: tuple[str, ...]) -> None:
        start = f"source {source} cannot resume from checkpoint {checkpoint_id}:"
        super().__init__("\n  ".join((start, *problems)) + "\n")
        self.checkpoint_id = checkpoint_id
        self.source = source
        self.problems = problems


class PipelineHeld(RunError):
    """Another process runs the pipeline.

    Attributes:
        host: The other process's machine.
        process: Its process id there.
        age_s: The age of its last heartbeat.
    """

    code = "CW-604"
    parameters: ClassVar[tuple[str, ...]] = ("pipeline", "host", "process", "age_s")
    next_step = "Stop that one first, or start with --takeover, which fences it out."

    def __init__(self, pipeline: str, host: str, process: int, age_s: int) -> None:
        super().__init__(
            f"pipeline {pipeline} is run by process {process} on {host}, which showed a sign "
            f"of life {age_s} s ago."
        )
        self.pipeline = pipeline
        self.host = host
        self.process = process
        self.age_s = age_s


class HolderUnknown(RunError):
    """It is unknown whether the pipeline runs, because its lease cannot be read.

    Attributes:
        path: The path of the lease.
        reason: What is wrong with it.
    """

    code = "CW-613"
    parameters: ClassVar[tuple[str, ...]] = ("pipeline", "path", "reason")
    next_step = "See that no process runs it; then --takeover (run, rewind) replaces it."

    def __init__(self, pipeline: str, path: str, reason: str) -> None:
        super().__init__(f"it is unknown whether pipeline {pipeline} runs: {path}: {reason}.")
        self.pipeline = pipeline
        self.path = path
        self.reason = reason


class NotRunning(RunError):
    """No process runs the pipeline, so the request cannot be executed."""

    code = "CW-611"
    next_step = "Start it with `cutwater run`; what it has is in `cutwater checkpoints list`."


class RequestFailed(RunError):
    """A running pipeline did not do what was requested."""

    code = "CW-612"
    next_step = "Nothing is lost; `cutwater checkpoints list` shows how its attempts went."


class MoveRefused(CutwaterError):
    """A rewind or fork of the pipeline cannot be done; nothing was changed."""

    code = "CW-701"
    parameters: ClassVar[tuple[str, ...]] = ("pipeline", "reason")
    next_step = "Nothing was changed; choose another checkpoint, or remove what is in the way."

    def __init__(self, pipeline: str, reason: str) -> None:
        super().__init__(f"pipeline {pipeline} stays as it is: {reason}.")
        self.pipeline = pipeline
        self.reason = reason
