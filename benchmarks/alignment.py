"""What alignment costs: an idle poll, an Event and a barrier, beside what a plain deque costs.

Nothing here is a test. Every measured loop is run in turn with its plain counterpart, several
times, in one process, so that both see the same machine in the same mood; shown are medians with
the quartiles of processor time. Events and barriers are made beforehand: what is timed is the
aligner alone.

    python benchmarks/alignment.py [--repeats N] [--messages N]
"""

import argparse
import gc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from time import process_time_ns

from cutwater.ids import CheckpointId, Generation, InputId, StepId
from cutwater.protocol.messages import START, Barrier, Place
from cutwater.protocol.options import UnalignedOptions
from cutwater.protocol.step.aligner import Aligner
from cutwater.protocol.step.aligner_events import (
    Advanced,
    AlignerEvent,
    AttemptOver,
    BarrierSeen,
    Emit,
)
from cutwater.protocol.step.injector import Injector
from cutwater.protocol.topology import inputs_of

GENERATION = Generation(1)
FAN_INS = (2, 16, 200)
FAR = Place(2**40, 2**50)

Run = Callable[[], int]
"""Does the work once and returns the nanoseconds it took."""


@dataclass(frozen=True)
class Case:
    """One thing that is measured.

    Attributes:
        kind: What is measured; kinds are compared over the number of inputs.
        inputs: How many inputs the step has.
        messages: How many messages one run takes.
        plain: The counterpart.
        measured: The real thing.
    """

    kind: str
    inputs: int
    messages: int
    plain: Run
    measured: Run

    @property
    def name(self) -> str:
        """What the row is called."""
        return f"{self.kind}, {self.inputs} inputs" if self.inputs else self.kind


@dataclass(frozen=True)
class Costs:
    """Nanoseconds per message, one number per repetition."""

    samples: tuple[float, ...]

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.samples)

    def __str__(self) -> str:
        low, high = self.samples[0], self.samples[0]
        if len(self.samples) > 1:
            low, _, high = quantiles(self.samples, n=4, method="inclusive")
        return f"{self.middle:7.1f} ({low:.1f}..{high:.1f})"


# -- the idle poll


def poll_case(messages: int) -> Case:
    handle = Injector(StepId("source"), GENERATION).poll_handle()
    waiting: deque[Barrier] = deque()

    def check() -> Barrier | None:
        if not waiting:
            return None
        return waiting.popleft()

    return Case("idle poll", 0, messages, calls(check, messages), calls(handle.poll, messages))


def calls(function: Callable[[], object], times: int) -> Run:
    def run() -> int:
        start_ns = process_time_ns()
        for _ in range(times):
            function()
        return process_time_ns() - start_ns

    return run


# -- Events and barriers


def inputs(count: int) -> tuple[InputId, ...]:
    return inputs_of(*(f"channel{number}" for number in range(count)))


def aligner_of(count: int, options: UnalignedOptions) -> Aligner:
    return Aligner(dict.fromkeys(inputs(count), START), options, generation=GENERATION)


def fed(make: Callable[[], Aligner], events: Sequence[AlignerEvent], emitted: int) -> Run:
    """Feed a new aligner; it must let exactly so many barriers out, or nothing was measured."""

    def run() -> int:
        handle = make().handle
        barriers = 0
        start_ns = process_time_ns()
        for event in events:
            for command in handle(event):
                barriers += type(command) is Emit
        taken_ns = process_time_ns() - start_ns
        assert barriers == emitted
        return taken_ns

    return run


def plain_queues(count: int, messages: Sequence[object]) -> Run:
    """Append every message to one of the queues in turn and take it out again."""

    def run() -> int:
        queues: list[deque[object]] = [deque() for _ in range(count)]
        turns = [queues[number % count] for number in range(len(messages))]
        start_ns = process_time_ns()
        for queue, message in zip(turns, messages, strict=True):
            queue.append(message)
            queue.popleft()
        return process_time_ns() - start_ns

    return run


def reads(count: int, messages: int) -> list[AlignerEvent]:
    """One `Advanced` per Event, the inputs in turn."""
    sources = inputs(count)
    return [
        Advanced({sources[number % count]: Place(number // count + 1, number // count + 1)})
        for number in range(messages)
    ]


def rounds(count: int, attempts: int) -> Iterator[AlignerEvent]:
    """Attempt after attempt: its barrier on every input, then its end."""
    sources = inputs(count)
    for number in range(1, attempts + 1):
        barrier = Barrier(CheckpointId(number), GENERATION)
        yield from (BarrierSeen(source, barrier, START) for source in sources)
        yield AttemptOver(CheckpointId(number))


def event_case(count: int, messages: int) -> Case:
    events = reads(count, messages)
    return Case(
        "Event",
        count,
        messages,
        plain_queues(count, events),
        fed(lambda: aligner_of(count, UnalignedOptions()), events, 0),
    )


def held_event_case(kind: str, count: int, messages: int, options: UnalignedOptions) -> Case:
    """The same while an attempt is open whose barriers lie far ahead, on all inputs but one."""
    events = reads(count, messages)

    def make() -> Aligner:
        aligner = aligner_of(count, options)
        for source in inputs(count)[1:]:
            aligner.handle(BarrierSeen(source, Barrier(CheckpointId(1), GENERATION), FAR))
        return aligner

    return Case(kind, count, messages, plain_queues(count, events), fed(make, events, 0))


def barrier_case(kind: str, count: int, messages: int, options: UnalignedOptions) -> Case:
    attempts = max(1, messages // count)
    barriers = list(rounds(count, attempts))
    return Case(
        kind,
        count,
        attempts * count,
        plain_queues(count, barriers[: attempts * count]),
        fed(lambda: aligner_of(count, options), barriers, attempts),
    )


def cases(messages: int) -> list[Case]:
    aligned, forced = UnalignedOptions(enabled=False), UnalignedOptions(forced=True)
    # Wants to overtake at every message, and has too much in flight to do so.
    refused, few = UnalignedOptions(forced=True, max_inflight_bytes=1), max(1, messages // 10)
    return [
        poll_case(messages),
        *(event_case(count, messages) for count in FAN_INS),
        *(held_event_case("Event, aligning", count, messages, aligned) for count in FAN_INS),
        *(held_event_case("Event, over bound", count, few, refused) for count in FAN_INS),
        *(barrier_case("barrier, aligned", count, messages, aligned) for count in FAN_INS),
        *(barrier_case("barrier, overtaking", count, messages, forced) for count in FAN_INS),
    ]


# -- measuring and showing


def measure(found: Sequence[Case], repeats: int) -> dict[Case, tuple[Costs, Costs]]:
    """Run every case and its counterpart in turn, after one run each that does not count."""
    taken: dict[Case, list[tuple[float, float]]] = {case: [] for case in found}
    gc.collect()
    gc.disable()
    try:
        for repeat in range(repeats + 1):
            for case in found:
                plain_ns, measured_ns = case.plain(), case.measured()
                if repeat:
                    taken[case].append((plain_ns / case.messages, measured_ns / case.messages))
    finally:
        gc.enable()
    return {
        case: (Costs(tuple(pair for pair, _ in pairs)), Costs(tuple(pair for _, pair in pairs)))
        for case, pairs in taken.items()
    }


def show(found: dict[Case, tuple[Costs, Costs]]) -> None:
    row = "{:<32} {:>24} {:>24} {:>8} {:>12}"
    print("Nanoseconds per message: median (quartiles).\n")
    print(row.format("", "plain", "Cutwater", "times", "per second"))
    for case, (plain, measured) in found.items():
        times = measured.middle / plain.middle
        per_second = f"{1e9 / measured.middle:,.0f}"
        print(row.format(case.name, str(plain), str(measured), f"{times:.1f}", per_second))
    fewest, most = FAN_INS[0], FAN_INS[-1]
    print(f"\nCost of one message with {most} inputs, over that with {fewest}:\n")
    by_size = {(case.kind, case.inputs): measured for case, (_, measured) in found.items()}
    for kind in dict.fromkeys(case.kind for case in found if case.inputs):
        ratio = by_size[kind, most].middle / by_size[kind, fewest].middle
        print(f"{kind:<32} {ratio:24.2f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of alignment.")
    parser.add_argument("--repeats", type=int, default=9, help="how often each loop is run")
    parser.add_argument("--messages", type=int, default=50_000, help="how many per loop")
    given = parser.parse_args(arguments)
    show(measure(cases(given.messages), given.repeats))


if __name__ == "__main__":
    main()
