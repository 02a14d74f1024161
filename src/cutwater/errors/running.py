"""What can stop a pipeline that runs, or keep one from starting or moving.

Nothing that was decided is lost by any of them.
"""

from typing import ClassVar

from cutwater.errors.base import CutwaterError
from cutwater.ids import CheckpointId, SinkId, StepId


class SinkError(CutwaterError):
    """A sink could not do what was asked of it; it is asked again.

    Attributes:
        sink: The sink.
        reason: Why, in words that follow the sink's name.
    """

    code = "CW-501"
    parameters: ClassVar[tuple[str, ...]] = ("sink", "reason")
    retryable = True
    next_step = "It is repeated by itself when the cause is gone; nothing is lost."

    def __init__(self, sink: SinkId, reason: str) -> None:
        """Name the sink and say what is wrong."""
        super().__init__(f"sink {sink}: {reason}.")
        self.sink = sink
        self.reason = reason


class TargetBehind(SinkError):
    """A sink's target lacks a commit that the store has recorded; nothing is committed on top.

    Attributes:
        sink: The sink.
        found: What its target shows, in words.
        recorded: What the store says that it showed, in words.
        way_out: What can be done about it, as sentences.
    """

    code = "CW-502"
    parameters: ClassVar[tuple[str, ...]] = ("sink", "found", "recorded", "way_out")
    retryable = False
    next_step = "Nothing was committed on top of it, and nothing is until this is resolved."

    def __init__(self, sink: SinkId, found: str, recorded: str, way_out: str = "") -> None:
        """Name the sink, what its target shows, and what it should show."""
        reason = (
            "its target lacks a commit that the store has recorded. "
            f"It shows {found}; the store has recorded {recorded}"
        )
        super().__init__(sink, f"{reason}. {way_out.rstrip('.')}" if way_out else reason)
        self.found = found
        self.recorded = recorded
        self.way_out = way_out


class NotReadable(CutwaterError):
    """A sink cannot be read as it was at a checkpoint.

    Attributes:
        sink: The sink.
        checkpoint_id: The checkpoint.
        reason: Why, in words.
    """

    code = "CW-510"
    parameters: ClassVar[tuple[str, ...]] = ("sink", "checkpoint_id", "reason")
    next_step = "`cutwater tables` says what every sink showed; read it with its own tools."

    def __init__(self, sink: SinkId, checkpoint_id: CheckpointId, reason: str) -> None:
        """Name the sink and the checkpoint and say what is wrong."""
        super().__init__(f"sink {sink} cannot be read at checkpoint {checkpoint_id}: {reason}.")
        self.sink = sink
        self.checkpoint_id = checkpoint_id
        self.reason = reason


class RunError(CutwaterError):
    """A pipeline could not be run."""

    code = "CW-600"
    next_step = "Read the cause above; a restart goes on from the last checkpoint."


class SessionError(RunError):
    """This Spark session, or the Java under it, cannot run a pipeline."""

    code = "CW-601"
    next_step = "Nothing was started; `cutwater doctor` tells what was found."


class StepError(RunError):
    """A step failed.

    Attributes:
        step: The step.
        where: The user's function and line.
        reason: The cause, in words.
    """

    code = "CW-602"
    parameters: ClassVar[tuple[str, ...]] = ("step", "where", "reason")
    next_step = "Nothing half-done was committed; a restart goes on from the last checkpoint."

    def __init__(self, step: StepId, where: str, reason: str) -> None:
        """Name the step, the user's function and line, and the cause."""
        super().__init__(f"step {step} ({where}) failed: {reason}")
        self.step = step
        self.where = where
        self.reason = reason


class RecoveryError(RunError):
    """The pipeline cannot go on from its last checkpoint by itself."""

    code = "CW-603"
    next_step = "Nothing was changed; rewind to a sound checkpoint, or bring the object back."


class CodeChanged(RecoveryError):
    """A checkpoint cannot be restored into the code as it is now; all that is against it is said.

    `problems` has one sentence for each thing that stands against it.
    """

    code = "CW-608"
    parameters: ClassVar[tuple[str, ...]] = ("checkpoint_id", "problems")
    next_step = "Nothing was changed; `cutwater plan FILE --against PIPELINE` shows all of it."

    def __init__(self, checkpoint_id: CheckpointId, problems: tuple[str, ...]) -> None:
        """Name the checkpoint and say all that stands against it."""
        start = f"checkpoint {checkpoint_id} cannot be restored into the pipeline as it is now:"
        super().__init__("\n  ".join((start, *problems)) + "\n")
        self.checkpoint_id = checkpoint_id
        self.problems = problems


class PipelineHeld(RunError):
    """Another process runs the pipeline.

    Attributes:
        pipeline: The pipeline's name.
        host: The other process's machine.
        process: Its number there.
        age_s: How long ago it showed that it is alive.
    """

    code = "CW-604"
    parameters: ClassVar[tuple[str, ...]] = ("pipeline", "host", "process", "age_s")
    next_step = "Stop that one first, or start with --takeover, which fences it out."

    def __init__(self, pipeline: str, host: str, process: int, age_s: int) -> None:
        """Name the pipeline and who runs it."""
        super().__init__(
            f"pipeline {pipeline} is run by process {process} on {host}, which showed a sign "
            f"of life {age_s} s ago."
        )
        self.pipeline = pipeline
        self.host = host
        self.process = process
        self.age_s = age_s


class HolderUnknown(RunError):
    """Nobody can tell whether the pipeline runs: what says so cannot be read.

    Attributes:
        pipeline: The pipeline's name.
        path: The object that says who runs it.
        reason: What is wrong with it.
    """

    code = "CW-613"
    parameters: ClassVar[tuple[str, ...]] = ("pipeline", "path", "reason")
    next_step = "See that no process runs it; then --takeover (run, rewind) writes it anew."

    def __init__(self, pipeline: str, path: str, reason: str) -> None:
        """Name the pipeline, the object and what is wrong with it."""
        super().__init__(f"nobody can tell whether pipeline {pipeline} runs: {path}: {reason}.")
        self.pipeline = pipeline
        self.path = path
        self.reason = reason


class NotRunning(RunError):
    """Nobody runs the pipeline, so nobody can do what was asked."""

    code = "CW-611"
    next_step = "Start it with `cutwater run`; what it has is in `cutwater checkpoints list`."


class RequestFailed(RunError):
    """A running pipeline did not do what it was asked for."""

    code = "CW-612"
    next_step = "Nothing is lost; `cutwater checkpoints list` shows how its attempts went."


class MoveRefused(CutwaterError):
    """A rewind or fork of the pipeline cannot be done; nothing was changed."""

    code = "CW-701"
    parameters: ClassVar[tuple[str, ...]] = ("pipeline", "reason")
    next_step = "Nothing was changed; choose another checkpoint, or remove what is in the way."

    def __init__(self, pipeline: str, reason: str) -> None:
        """Name the pipeline and say what stands against it."""
        super().__init__(f"pipeline {pipeline} stays as it is: {reason}.")
        self.pipeline = pipeline
        self.reason = reason
