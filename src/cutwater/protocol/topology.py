"""The shape of a pipeline as the protocol sees it: steps, their inputs, their sinks.

A topology is fixed for a generation, so the participants of every attempt are a fixed set (I2);
adding or removing a step starts a new generation. A step without inputs is a source and gets
barriers from its injector; every other step has an aligner; no step has both (rule F11).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cutwater.errors import ConfigError
from cutwater.ids import ChannelId, InputId, ReaderId, SinkId, StepId
from cutwater.protocol.evolution.identity import StepIdentity
from cutwater.protocol.options import UnalignedOptions


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One step.

    Attributes:
        inputs: The channels it reads, in plan order; none for a source.
        sink: The sink whose writer runs in this step, if any.
        is_sink: The step accepts only aligned checkpoints: it never overtakes, and declines an
            attempt whose barrier has overtaken data upstream. In a topology the same holds for all
            steps that feed it. A writer that can record its input does not need this; the
            committer after every sink always behaves like this.
        pinned_start: For a source: a restart before the first batch begins at the same place,
            so a snapshot without any batch is sound (rule F12).
        identity: What the step is, for the manifest; None if the step was not analysed.
        alignment_timeout_ms: How long this step waits before it overtakes; None uses the run's
            option.
        forced: Whether this step overtakes as soon as it sees a barrier; None uses the run's
            option.
    """

    step: StepId
    inputs: tuple[InputId, ...] = ()
    sink: SinkId | None = None
    is_sink: bool = False
    pinned_start: bool = True
    identity: StepIdentity | None = None
    alignment_timeout_ms: int | None = None
    forced: bool | None = None

    def unaligned(self, options: UnalignedOptions) -> UnalignedOptions:
        """Return when this step may overtake: its own options first, then those of the run.

        If overtaking is disabled for the run, no step overtakes.
        """
        if not options.enabled:
            return options
        own_ms, forced = self.alignment_timeout_ms, self.forced
        return replace(
            options,
            forced=(options.forced and own_ms is None) if forced is None else forced,
            alignment_timeout_ms=options.alignment_timeout_ms if own_ms is None else own_ms,
        )

    @property
    def is_source(self) -> bool:
        """Whether barriers enter the pipeline here."""
        return not self.inputs

    @property
    def output(self) -> ChannelId:
        """The channel this step writes if it has readers."""
        return ChannelId(self.step)


@dataclass(frozen=True, slots=True)
class Topology:
    """All steps of a pipeline, sources first, each after the steps it reads from."""

    steps: tuple[StepSpec, ...]
    _by_id: Mapping[StepId, StepSpec] = field(init=False, repr=False, compare=False)
    _readers: Mapping[ChannelId, tuple[ReaderId, ...]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Refuse no steps, two of one name, an unknown or later input, or two sinks of one name."""
        by_id: dict[StepId, StepSpec] = {}
        sinks: set[SinkId] = set()
        readers: dict[ChannelId, list[ReaderId]] = {}
        if not self.steps:
            raise ConfigError("steps", "a pipeline needs at least one step")
        for spec in self.steps:
            self._check_step(spec, by_id, sinks)
            by_id[spec.step] = spec
            if spec.sink is not None:
                sinks.add(spec.sink)
            for source in spec.inputs:
                readers.setdefault(source.channel, []).append(ReaderId(spec.step, source))
        object.__setattr__(self, "steps", self._whole_cuts_upstream(self.steps))
        object.__setattr__(self, "_by_id", {spec.step: spec for spec in self.steps})
        object.__setattr__(
            self, "_readers", {channel: tuple(found) for channel, found in readers.items()}
        )

    @staticmethod
    def _whole_cuts_upstream(steps: tuple[StepSpec, ...]) -> tuple[StepSpec, ...]:
        """Mark every step that feeds a step which accepts only aligned checkpoints.

        A barrier that overtook further upstream would make that step decline every attempt.
        """
        marked: set[StepId] = set()
        found = []
        for spec in reversed(steps):
            if spec.is_sink or spec.step in marked:
                marked.update(StepId(source.channel) for source in spec.inputs)
                spec = replace(spec, is_sink=True)  # noqa: PLW2901 - the marked one
            found.append(spec)
        return tuple(reversed(found))

    @staticmethod
    def _check_step(
        spec: StepSpec, known: Mapping[StepId, StepSpec], sinks: Iterable[SinkId]
    ) -> None:
        if spec.step in known:
            raise ConfigError("steps", f"two steps are called {spec.step}")
        if spec.sink is not None and spec.sink in sinks:
            raise ConfigError("steps", f"two sinks are called {spec.sink}")
        for ordinal, source in enumerate(spec.inputs):
            if source.ordinal != ordinal:
                raise ConfigError("steps", f"input {source} of {spec.step} is number {ordinal}")
            if StepId(source.channel) not in known:
                raise ConfigError(
                    "steps", f"{spec.step} reads {source.channel}, which no earlier step writes"
                )

    def __getitem__(self, step: StepId) -> StepSpec:
        return self._by_id[step]

    def __contains__(self, step: StepId) -> bool:
        return step in self._by_id

    def readers(self, channel: ChannelId) -> tuple[ReaderId, ...]:
        """Return the readers of the channel; empty when the step has no consumers."""
        return self._readers.get(channel, ())

    @property
    def participants(self) -> frozenset[StepId]:
        """All steps that must acknowledge an attempt."""
        return frozenset(self._by_id)

    @property
    def identities(self) -> Mapping[StepId, StepIdentity]:
        return {step.step: step.identity for step in self.steps if step.identity is not None}

    @property
    def sinks(self) -> tuple[SinkId, ...]:
        """All sinks, in plan order."""
        return tuple(spec.sink for spec in self.steps if spec.sink is not None)

    @property
    def sources(self) -> tuple[StepId, ...]:
        """All steps where barriers enter the pipeline."""
        return tuple(spec.step for spec in self.steps if spec.is_source)


def inputs_of(*channels: str) -> tuple[InputId, ...]:
    """Number the channels in the order given, as a step's inputs."""
    return tuple(InputId(ordinal, ChannelId(name)) for ordinal, name in enumerate(channels))
