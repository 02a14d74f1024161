"""What a pipeline runs with: its engine, store, sinks, options, and the ports to time and threads.

Created once per process, when the pipeline is started; all generations share it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cutwater.clock import SYSTEM_CLOCK, Clock
from cutwater.ids import PipelineId, SinkId
from cutwater.planning.physical_plan import PhysicalPlan
from cutwater.protocol.channel_log import Bound
from cutwater.protocol.evolution.mapping import Allowances
from cutwater.protocol.options import CheckpointOptions
from cutwater.runtime.engine import Engine
from cutwater.sinks.base import OpenSink
from cutwater.store.blobs.local_cache import BlobCache
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.targets import SinkTargets
from cutwater.tasks import THREADS, Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What all generations of one process share.

    Attributes:
        bound: The max lag of a channel's slowest reader.
        target_batch_ms: How long a batch of a step that lags may take; 0 for no larger batches.
        scratch: A directory for generations; its content may be lost at any time.
        available_now: Run until all data that is available now is processed.
        is_fork: Whether the pipeline started from a cut of another one, which may run as well.
        allowed: What a restore into changed code may do.
        blob_cache: The objects that recovery has fetched for the next generation.
        observe: Called with every event and command of the coordinator; must not block.
    """

    plan: PhysicalPlan
    engine: Engine
    store: PipelineStore
    sinks: Mapping[SinkId, OpenSink]
    options: CheckpointOptions
    bound: Bound
    scratch: Path
    target_batch_ms: int = 0
    available_now: bool = False
    targets: SinkTargets = field(default_factory=dict)
    is_fork: bool = False
    allowed: Allowances = field(default_factory=Allowances)
    blob_cache: BlobCache | None = None
    clock: Clock = SYSTEM_CLOCK
    tasks: Tasks = THREADS
    observe: Callable[[object], None] = lambda _: None

    @property
    def pipeline(self) -> PipelineId:
        return self.store.pipeline
