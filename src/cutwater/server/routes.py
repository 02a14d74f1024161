"""The REST API: Flink's paths and fields for checkpoints, and paths for the rest of a pipeline.

Every handler is a plain function, so that it runs on a thread of the server's pool: a handler that
waits for the store or a lock blocks neither the server's loop nor the pipeline. Responses are
bounded. docs/reference/api.md describes each path.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import APIRouter, HTTPException, Path, Query

from cutwater.clock import wall_ms
from cutwater.ids import CheckpointId, StepId
from cutwater.operations.rewind.preview import Rewind
from cutwater.server.errors import RESPONSES
from cutwater.server.pipeline_view import PipelineView
from cutwater.server.pipelines import Pipelines, job_of
from cutwater.store.records.requests import Abort, RequestKind, Wanted, abort_reason
from cutwater.store.records.savepoints import default_savepoint_name, savepoint_name
from cutwater.views import models
from cutwater.views.build import settings_of, subtask_of, summary_of
from cutwater.views.history import LISTED_MAX

JobId = Annotated[str, Path(min_length=1, max_length=255, description="The uuid, or the name.")]
CheckpointNumber = Annotated[int, Path(ge=0, le=models.COUNT_MAX)]
StepName = Annotated[str, Path(min_length=1, max_length=255)]
TriggerId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
Limit = Annotated[int, Query(ge=1, le=LISTED_MAX, description="How many are listed.")]

_RECENT: Final = 8
_TEXT: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,200}")


def routes(pipelines: Pipelines) -> APIRouter:
    router = APIRouter(responses=RESPONSES)
    _add_jobs(router, pipelines)
    _add_checkpoints(router, pipelines)
    _add_tables(router, pipelines)
    _add_changes(router, pipelines)
    return router


def _add_jobs(router: APIRouter, pipelines: Pipelines) -> None:
    @router.get("/jobs/overview", operation_id="listJobs")
    def jobs() -> models.JobList:
        """List the pipelines that are served."""
        return models.JobList(jobs=[job_of(pipeline) for pipeline in pipelines.all()])

    @router.get("/jobs/{jobid}", operation_id="getJob")
    def job(jobid: JobId) -> models.JobDetail:
        """Return one pipeline, and its steps."""
        pipeline = pipelines.find(jobid)
        found = pipeline.job()
        vertices = [_vertex(step, found.state) for step in pipeline.dag().steps]
        return models.JobDetail(**found.model_dump(), vertices=vertices)

    @router.get("/jobs/{jobid}/dag", operation_id="getDag")
    def dag(jobid: JobId) -> models.Dag:
        """Return the steps and channels, with their current activity."""
        return pipelines.find(jobid).dag()

    @router.get("/jobs/{jobid}/channels", operation_id="getChannels")
    def channels(jobid: JobId) -> models.ChannelList:
        """Return the channels: rates, backlogs, watermarks, and where the barrier is."""
        return models.ChannelList(channels=pipelines.find(jobid).dag().channels)

    @router.get("/jobs/{jobid}/now", operation_id="getNow")
    def now(jobid: JobId) -> models.Now:
        """Return everything that changes every second, for a dashboard."""
        pipeline = pipelines.find(jobid)
        return models.Now(
            job=pipeline.job(),
            dag=pipeline.dag(),
            recent=[_brief(detail) for detail in pipeline.recent()[:_RECENT]],
            version=pipeline.history.read().version,
            at=wall_ms(),
        )

    @router.get("/jobs/{jobid}/recoveries", operation_id="getRecoveries")
    def recoveries(jobid: JobId) -> models.RecoveryList:
        """Return the newest recoveries, phase by phase."""
        return models.RecoveryList(recoveries=list(pipelines.find(jobid).checkpoints().recoveries))


def _add_checkpoints(router: APIRouter, pipelines: Pipelines) -> None:
    @router.get("/jobs/{jobid}/checkpoints", operation_id="listCheckpoints")
    def checkpoints(jobid: JobId, limit: Limit = 500) -> models.CheckpointList:
        """List the newest checkpoints, with their counts and a summary."""
        return _list(pipelines.find(jobid), limit)

    @router.get("/jobs/{jobid}/checkpoints/config", operation_id="getCheckpointConfig")
    def config(jobid: JobId) -> models.CheckpointSettings:
        """Return how checkpoints are taken."""
        pipeline = pipelines.find(jobid)
        options = pipeline.live.options if pipeline.live else None
        return settings_of(options, pipeline.store.backend.url)

    @router.get("/jobs/{jobid}/checkpoints/details/{checkpointid}", operation_id="getCheckpoint")
    def details(jobid: JobId, checkpointid: CheckpointNumber) -> models.CheckpointDetail:
        """Return one checkpoint, step by step."""
        return _detail(pipelines.find(jobid), checkpointid)

    @router.get(
        "/jobs/{jobid}/checkpoints/details/{checkpointid}/subtasks/{vertexid}",
        operation_id="getCheckpointStep",
    )
    def subtasks(
        jobid: JobId, checkpointid: CheckpointNumber, vertexid: StepName
    ) -> models.TaskDetail:
        """Return one step's part of a checkpoint."""
        found = _detail(pipelines.find(jobid), checkpointid)
        if vertexid not in found.tasks:
            raise HTTPException(404, f"checkpoint {checkpointid} has no such step")
        return subtask_of(found.tasks[vertexid])

    @router.get("/jobs/{jobid}/checkpoints/{triggerid}", operation_id="getCheckpointTrigger")
    def checkpoint_trigger(jobid: JobId, triggerid: TriggerId) -> models.OperationState:
        """Return the state of a request for a checkpoint or an abort."""
        return _state(pipelines.find(jobid), triggerid)

    @router.get("/jobs/{jobid}/savepoints/{triggerid}", operation_id="getSavepointTrigger")
    def savepoint_trigger(jobid: JobId, triggerid: TriggerId) -> models.OperationState:
        """Return the state of a request for a savepoint or a stop."""
        return _state(pipelines.find(jobid), triggerid)


def _add_tables(router: APIRouter, pipelines: Pipelines) -> None:
    @router.get("/jobs/{jobid}/tables", operation_id="getTables")
    def tables(jobid: JobId, limit: Limit = 100) -> models.TableList:
        """Return the table versions at the newest cuts at which the sinks committed."""
        pipeline = pipelines.find(jobid)
        sinks = [
            models.SinkTable(sink=sink, format=target.format, target=target.uri)
            for sink, target in sorted(pipeline.targets().items())
        ]
        cuts = [
            models.TablesAt(
                checkpoint=checkpoint.id,
                timestamp=checkpoint.trigger_timestamp,
                name=checkpoint.name,
                is_current=checkpoint.is_current,
                versions=checkpoint.sink_versions,
            )
            for checkpoint in pipeline.checkpoints().checkpoints
            if checkpoint.sink_versions
        ]
        return models.TableList(sinks=sinks, cuts=cuts[:limit])

    @router.get("/jobs/{jobid}/rewind", operation_id="previewRewind")
    def rewind(
        jobid: JobId,
        to: Annotated[
            str,
            Query(
                min_length=1,
                max_length=200,
                description="A checkpoint's number, a savepoint's name, or a time.",
            ),
        ],
    ) -> models.RewindPreview:
        """Return what a rewind would do to every step, source and sink, and how to do it."""
        if not _TEXT.fullmatch(to):
            raise HTTPException(400, "to: a number, a name or a time has no control characters")
        pipeline = pipelines.find(jobid)
        return _preview(pipeline, pipeline.preview(to))


def _add_changes(router: APIRouter, pipelines: Pipelines) -> None:
    @router.post("/jobs/{jobid}/checkpoints", status_code=202, operation_id="triggerCheckpoint")
    def checkpoint(jobid: JobId, body: models.CheckpointQuestion | None = None) -> models.Triggered:
        """Take a checkpoint now."""
        request = body or models.CheckpointQuestion()
        wanted = Wanted(RequestKind.CHECKPOINT, full=request.checkpoint_type == "FULL")
        return _submit(pipelines.find(jobid), wanted, request.trigger_id)

    @router.post("/jobs/{jobid}/checkpoints/abort", status_code=202, operation_id="abortCheckpoint")
    def abort(jobid: JobId, body: models.AbortQuestion) -> models.Triggered:
        """Abort the pending checkpoint, with a reason that is stored with it."""
        number = None if body.checkpoint_id is None else CheckpointId(body.checkpoint_id)
        reason = abort_reason(body.reason)
        wanted = Wanted(RequestKind.ABORT, abort=Abort(checkpoint_id=number, reason=reason))
        return _submit(pipelines.find(jobid), wanted, body.trigger_id)

    @router.post("/jobs/{jobid}/savepoints", status_code=202, operation_id="triggerSavepoint")
    def savepoint(jobid: JobId, body: models.SavepointQuestion | None = None) -> models.Triggered:
        """Take a savepoint now; with `cancel-job`, then stop."""
        request = body or models.SavepointQuestion()
        _check_target(request.target_directory)
        name = savepoint_name(request.name or default_savepoint_name(), "name")
        kind = RequestKind.STOP if request.cancel_job else RequestKind.SAVEPOINT
        return _submit(pipelines.find(jobid), Wanted(kind, name=name), request.trigger_id)

    @router.post("/jobs/{jobid}/stop", status_code=202, operation_id="stopJob")
    def stop(jobid: JobId, body: models.StopQuestion | None = None) -> models.Triggered:
        """Stop with a last checkpoint, or with a savepoint."""
        request = body or models.StopQuestion()
        _check_target(request.target_directory)
        name = None if request.savepoint is None else savepoint_name(request.savepoint, "savepoint")
        wanted = Wanted(RequestKind.STOP, name=name, drain=request.drain)
        return _submit(pipelines.find(jobid), wanted, request.trigger_id)


# -- parts


_STATUSES: Final = ("IN_PROGRESS", "COMPLETED", "FAILED")


def _list(pipeline: PipelineView, limit: int) -> models.CheckpointList:
    listed = pipeline.checkpoints()
    shown = listed.checkpoints[:limit]
    status = {
        name: [checkpoint for checkpoint in shown if checkpoint.status == name]
        for name in _STATUSES
    }
    recovery = next(
        (recovery for recovery in listed.recoveries if recovery.checkpoint_id is not None), None
    )
    known = {checkpoint.id: checkpoint for checkpoint in listed.checkpoints}
    return models.CheckpointList(
        counts=models.Counts(
            restored=sum(recovery.checkpoint_id is not None for recovery in listed.recoveries),
            total=len(shown),
            in_progress=len(status["IN_PROGRESS"]),
            completed=len(status["COMPLETED"]),
            failed=len(status["FAILED"]),
        ),
        summary=summary_of(shown),
        latest=models.Latest(
            completed=next(iter(status["COMPLETED"]), None),
            savepoint=next(
                (checkpoint for checkpoint in status["COMPLETED"] if checkpoint.is_savepoint), None
            ),
            failed=next(iter(status["FAILED"]), None),
            restored=None if recovery is None else _restored_from(recovery, known),
        ),
        history=list(shown),
        version=listed.version,
        complete=listed.complete,
    )


def _brief(detail: models.CheckpointDetail) -> models.CheckpointDetail:
    """Leave the steps of finished attempts out: the response is requested every second."""
    return detail if detail.status == "IN_PROGRESS" else detail.model_copy(update={"tasks": {}})


def _restored_from(
    recovery: models.Recovery, known: Mapping[int, models.Checkpoint]
) -> models.Restored:
    number = recovery.checkpoint_id or 0
    origin = known.get(number)
    return models.Restored(
        id=number,
        restore_timestamp=recovery.timestamp,
        is_savepoint=origin is not None and origin.is_savepoint,
        external_path=None if origin is None else origin.external_path,
    )


def _detail(pipeline: PipelineView, checkpoint_id: int) -> models.CheckpointDetail:
    found = pipeline.checkpoint(CheckpointId(checkpoint_id))
    if found is None:
        raise HTTPException(404, f"{pipeline.name} has no checkpoint {checkpoint_id}")
    return found


def _state(pipeline: PipelineView, trigger_id: str) -> models.OperationState:
    found = pipeline.operations.state(trigger_id)
    if found is None:
        raise HTTPException(404, "there is no request with this id, or it is too old")
    return found


def _submit(pipeline: PipelineView, wanted: Wanted, trigger_id: str | None) -> models.Triggered:
    return models.Triggered(request_id=pipeline.operations.submit(wanted, trigger_id))


def _check_target(directory: str | None) -> None:
    if directory is not None:
        reason = "savepoints are kept in the pipeline's store: leave the target directory out"
        raise HTTPException(400, reason)


def _vertex(step: models.StepNode, state: str) -> models.Vertex:
    metrics = {} if step.rows is None else {"write-records": step.rows}
    return models.Vertex(
        id=StepId(step.id),
        name=step.id,
        status="FINISHED" if step.finished else state,
        metrics=metrics,
    )


def _preview(pipeline: PipelineView, found: Rewind) -> models.RewindPreview:
    name, url = shlex.quote(pipeline.name), shlex.quote(pipeline.store.backend.url)
    commands = [f"cutwater rewind {name} --to {found.to} --store {url} --yes"]
    if pipeline.is_running:
        commands.insert(0, f"cutwater stop {name} --store {url}")
    return models.RewindPreview(
        pipeline=found.pipeline,
        to=found.to,
        title=found.title,
        timestamp=found.at_ms,
        current=found.head,
        undone=list(found.undone),
        steps=[models.StepBack.model_validate(step, from_attributes=True) for step in found.steps],
        sources=[
            models.SourceBack.model_validate(source, from_attributes=True)
            for source in found.sources
        ],
        sinks=[models.SinkBack.model_validate(sink, from_attributes=True) for sink in found.sinks],
        refused=list(found.refused),
        commands=commands,
    )
