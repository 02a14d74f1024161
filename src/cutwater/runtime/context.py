"""What a pipeline runs with: the session, its store, its sinks, its options.

Made once per process by whoever starts the pipeline; every generation uses the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What all generations of one process share.

    Attributes:
        plan: The steps.
        engine: What runs the steps.
        store: The pipeline in its store.
        sinks: All sinks, opened.
        options: The protocol's options.
        bound: How far a channel's slowest reader may lie behind.
        scratch: A directory for generations; its content may be lost at any time.
        available_now: Run until what is there now is processed.
        targets: Where the sinks write, as the store remembers it.
        is_fork: Whether it began from another pipeline's cut, which may run at the same time.
        allowed: What a restore into changed code may do.
        blob_cache: What recovery has brought to this machine for the generation that is built next.
    """

    plan: PhysicalPlan
    engine: Engine
    store: PipelineStore
    sinks: Mapping[SinkId, OpenSink]
    options: CheckpointOptions
    bound: Bound
    scratch: Path
    available_now: bool = False
    targets: SinkTargets = field(default_factory=dict)
    is_fork: bool = False
    allowed: Allowances = field(default_factory=Allowances)
    blob_cache: BlobCache | None = None

    @property
    def pipeline(self) -> PipelineId:
        """The pipeline's uuid."""
        return self.store.pipeline
