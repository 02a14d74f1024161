"""A process that commits a slot to Kafka and ends, or stops, at a step of the commit.

    python -m tests.contract.kafka_child ORDER

The order is a JSON object (`Order`). It prints the version, or the error, of a commit that came to
its end.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from tests.contract.kafka_rows import Orders, permit

from cutwater.errors import CutwaterError
from cutwater.ids import BatchId, Generation
from cutwater.protocol.cut import BlobRef, Committable
from cutwater.sinks.kafka.settings import KafkaSettings
from cutwater.sinks.kafka.target import KafkaExtras

STEPS = ("before init", "after init", "begun", "sent", "committing", "committed")
_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Order:
    """What a child is to commit, and where it ends.

    Attributes:
        step: One of `STEPS`; "" to come to the end.
        signal: What happens at the step: SIGKILL or SIGSTOP.
    """

    bootstrap: str
    topic: str
    staging: str
    slot: int
    staged: Sequence[dict[str, Any]]
    step: str = ""
    signal: int = signal.SIGKILL
    extras: KafkaExtras = field(default_factory=KafkaExtras)

    def start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "tests.contract.kafka_child", json.dumps(asdict(self))],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self) -> tuple[int, str]:
        """Return the exit code and what was printed."""
        with self.start() as child:
            told, _ = child.communicate(timeout=_DEADLINE_S * 2)
        return child.returncode, told.strip()


def pack(staged: Sequence[Committable]) -> list[dict[str, Any]]:
    return [asdict(committable) for committable in staged]


def _unpack(values: dict[str, Any]) -> Committable:
    blobs = tuple(BlobRef(**blob) for blob in values["blobs"])
    place = Generation(values["generation"]), BatchId(values["batch"])
    return Committable(values["sink"], *place, values["rows"], blobs)


def _dying(step: str, number: int) -> type[Producer]:
    """Return a producer that sends its process a signal at a step."""

    def reach(reached: str) -> None:
        if step == reached:
            os.kill(os.getpid(), number)

    class DyingProducer(Producer):
        def init_transactions(self, *given: Any) -> None:  # noqa: ANN401
            reach("before init")
            super().init_transactions(*given)
            reach("after init")

        def begin_transaction(self) -> None:
            super().begin_transaction()
            reach("begun")

        def commit_transaction(self, *given: Any) -> None:  # noqa: ANN401
            if step == "sent":
                assert not self.flush(_DEADLINE_S)
                reach("sent")
            timer = threading.Timer(0.002, reach, ["committing"])
            if step == "committing":
                assert not self.flush(_DEADLINE_S)
                timer.start()
            super().commit_transaction(*given)
            if step == "committing":
                timer.join()
            reach("committed")

    return DyingProducer


def main(order: Order) -> None:
    """Commit, with a producer that may be the end of this process."""
    kind = _dying(order.step, order.signal)

    def produce(settings: KafkaSettings, transactional_id: str) -> Producer:
        return kind(settings.producer_config(transactional_id))

    KafkaSettings.producer = produce  # type: ignore[method-assign, assignment]
    orders = Orders(order.bootstrap, order.topic, Path(order.staging), order.extras)
    try:
        told = orders.open().commit(permit(order.slot), [_unpack(one) for one in order.staged])
    except CutwaterError as error:
        told = f"{type(error).__name__}: {error}"
    sys.stdout.write(f"{told}\n")


if __name__ == "__main__":
    main(Order(**json.loads(sys.argv[1])))
