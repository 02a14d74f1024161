"""A pipeline from Kafka to Kafka over TLS with a password, and every place that might show it.

The pipeline runs as users run it, with `cutwater run` in a process of its own, with Spark's event
log, its web interface and its log.
"""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._resource import ResourceType
from tests.servers.jars import connector_jars
from tests.servers.kafka_security import SecuredKafka, secured_kafka
from tests.servers.ports import free_port
from tests.waiting import wait_until

SECRET = "Xq7-do-not-show-Zt9"
WRONG = "Wr5-not-the-right-one-Kp3"
ROWS = [(str(number % 3), f"order {number}") for number in range(30)]
RUN_S = 300.0
PAGES = ("environment/", "SQL/", "jobs/", "stages/", "StreamingQuery/", "executors/")
FILE = """
import os

from cutwater import Pipeline, sinks

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def create(bootstrap: str, certificate: str, directory: str, to: str, copied: str) -> Pipeline:
    pipeline = Pipeline("secured")

    @pipeline.source(consumer_group="secured", materialize=copied == "yes")
    def orders(spark):
        login = f'{MODULE} required username="shop" password="%s";'
        options = {
            "kafka.bootstrap.servers": bootstrap,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": login % os.environ["SOURCE_PASSWORD"],
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": certificate,
            "subscribe": "incoming",
            "startingOffsets": "earliest",
        }
        return spark.readStream.format("kafka").options(**options).load()

    @pipeline.step(output_mode="complete", partitions=2)
    def counts(orders):
        return orders.selectExpr("string(key) AS key").groupBy("key").count()

    topic = sinks.kafka(
        bootstrap,
        topic=to,
        staging=f"{directory}/staging",
        options={
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": certificate,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "shop",
            "sasl.password": "env:SINK_PASSWORD",
        },
    )
    counted = sinks.files(f"{directory}/counts", "json", write="overwrite")
    pipeline.sink("copied", topic, of=lambda orders: orders.select("key", "value"))
    pipeline.sink("counted", counted, of=counts)
    return pipeline
"""
READ = (AclOperation.READ, AclOperation.DESCRIBE)
WRITE = (AclOperation.WRITE, AclOperation.DESCRIBE)
OWN = (*READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DESCRIBE_CONFIGS)


@pytest.fixture(scope="module")
def kafka() -> Iterator[SecuredKafka]:
    with secured_kafka({"shop": SECRET}) as secured:
        for topic in ("incoming", "outgoing", "forbidden"):
            secured.cluster.make_topic(topic)
        secured.cluster.produce("incoming", ROWS)
        for kind, name, operations in (
            (ResourceType.TOPIC, "incoming", (*READ, AclOperation.DESCRIBE_CONFIGS)),
            (ResourceType.TOPIC, "outgoing", WRITE),
            (ResourceType.TOPIC, "forbidden", (AclOperation.DESCRIBE,)),
            (ResourceType.TOPIC, "cutwater.", OWN),
            (ResourceType.TRANSACTIONAL_ID, "cutwater.", WRITE),
            (ResourceType.GROUP, "spark-kafka-source", (AclOperation.READ,)),
            (ResourceType.GROUP, "secured", (AclOperation.READ,)),
        ):
            secured.allow("shop", kind, name, operations)
        yield secured


def jars() -> str:
    return ",".join(map(str, connector_jars()))


class Secured:
    """The commands of one pipeline, and everything that they have written."""

    def __init__(
        self, kafka: SecuredKafka, directory: Path, to: str, *, copied: bool = False
    ) -> None:
        self._directory = directory
        self._port = free_port()
        file = directory / "secured.py"
        file.write_text(FILE, encoding="utf-8")
        given = {
            "bootstrap": kafka.login,
            "certificate": str(kafka.certificate),
            "directory": str(directory),
            "to": to,
            "copied": "yes" if copied else "no",
        }
        self._file = [f"{file}:create", *(f"--param={name}={at}" for name, at in given.items())]

    @property
    def told(self) -> str:
        return (self._directory / "told").read_text(errors="replace")

    @contextmanager
    def running(
        self, passwords: Mapping[str, str], *words: str
    ) -> Iterator["subprocess.Popen[bytes]"]:
        events = self._directory / "events"
        events.mkdir(exist_ok=True)
        conf = {
            "spark.jars": jars(),
            "spark.ui.enabled": "true",
            "spark.ui.port": str(self._port),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.log.level": "INFO",
        }
        options = [f"--conf={name}={value}" for name, value in conf.items()]
        options += ["--master=local[2]", "--interval=1s", "--serve=off", *words]
        options += [f"--scratch={self._directory / 'scratch'}"]
        with (self._directory / "told").open("ab") as told:
            process = subprocess.Popen(
                self._command("run", *self._file, *options),
                env={**os.environ, **passwords},
                stdout=told,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait(60)

    def ask(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        """Return what a command that looks at the pipeline prints."""
        done = subprocess.run(
            self._command(*words),
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.returncode, done.stderr
        return done.stdout + done.stderr

    def plan(self, passwords: Mapping[str, str]) -> str:
        return self.ask("plan", *self._file, f"--conf=spark.jars={jars()}", environment=passwords)

    def pages(self) -> dict[str, str]:
        """Return what Spark's web interface and its API show."""
        (application,) = json.loads(self._get("api/v1/applications"))
        api = f"api/v1/applications/{application['id']}"
        found = {
            place: self._get(place)
            for place in (
                *PAGES,
                f"{api}/environment",
                f"{api}/jobs",
                f"{api}/stages?details=true",
                f"{api}/sql?details=true&planDescription=true&length=1000",
            )
        }
        executions = json.loads(found[f"{api}/sql?details=true&planDescription=true&length=1000"])
        for execution in executions[:20]:
            place = f"SQL/execution/?id={execution['id']}"
            found[place] = self._get(place)
        return found

    def files(self) -> dict[str, bytes]:
        """Return every file of the pipeline: store, scratch, staging, tables, events and output."""
        return {
            str(path): path.read_bytes() for path in self._directory.rglob("*") if path.is_file()
        }

    def _get(self, place: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{place}", timeout=60) as page:
            return str(page.read().decode())

    def _command(self, word: str, *words: str) -> list[str]:
        store = f"--store={self._directory / 'store'}"
        return [sys.executable, "-m", "cutwater.cli.main", word, *words, store]


def shown(texts: Mapping[str, str | bytes], secret: str) -> list[str]:
    """Return which of some texts show a secret."""
    return [
        name
        for name, text in texts.items()
        if secret in (text if isinstance(text, str) else text.decode(errors="replace"))
    ]


def test_a_pipeline_reads_and_writes_with_a_password_that_is_shown_nowhere(
    kafka: SecuredKafka, tmp_path: Path
) -> None:
    secured = Secured(kafka, tmp_path, "outgoing")
    passwords = {"SOURCE_PASSWORD": SECRET, "SINK_PASSWORD": SECRET}
    with secured.running(passwords) as process:
        wait_until(
            lambda: process.poll() is not None or len(kafka.cluster.read("outgoing")) == len(ROWS),
            "all rows are written",
            deadline_s=RUN_S,
        )
        assert process.poll() is None, secured.told[-4000:]
        pages = secured.pages()
        process.send_signal(signal.SIGTERM)
        assert process.wait(RUN_S) == 0, secured.told[-4000:]

    written = [(message.key(), message.value()) for message in kafka.cluster.read("outgoing")]
    assert written == [(key.encode(), value.encode()) for key, value in ROWS]
    counts = [json.loads(line) for line in _lines(tmp_path / "counts")]
    assert {row["key"]: row["count"] for row in counts} == Counter(key for key, _ in ROWS)
    # The places would show it if anything did: the topic and the options beside it are there.
    (environment,) = (text for place, text in pages.items() if place.endswith("/environment"))
    assert "spark.eventLog.dir" in environment
    assert shown(pages, "afka")
    assert shown({name: at for name, at in secured.files().items() if "/events/" in name}, "afka")
    said = {
        "plan": secured.plan(passwords),
        "checkpoints": secured.ask("checkpoints", "list", "secured"),
    }
    assert "Kafka topic outgoing" in said["plan"]
    assert shown({**pages, **secured.files(), **said}, SECRET) == []


def _lines(directory: Path) -> list[str]:
    """Return the lines of the files that a reader sees."""
    files = [path for path in directory.glob("*.json") if path.is_file()]
    return [line for path in files for line in path.read_text().splitlines()]


@pytest.mark.parametrize("wrong", ["SOURCE_PASSWORD", "SINK_PASSWORD"])
def test_a_wrong_password_is_the_reason_that_a_run_gives(
    kafka: SecuredKafka, tmp_path: Path, wrong: str
) -> None:
    secured = Secured(kafka, tmp_path, "outgoing", copied=True)
    passwords = {"SOURCE_PASSWORD": SECRET, "SINK_PASSWORD": SECRET, wrong: WRONG}
    with secured.running(passwords, "--available-now") as process:
        assert process.wait(RUN_S) == 1, secured.told[-4000:]

    last = " ".join(secured.told.splitlines()[-20:])
    assert re.search(r"Authentication failed .*invalid credentials", last), last
    assert shown(secured.files(), WRONG) == []
    assert shown(secured.files(), SECRET) == []


def test_a_topic_that_may_not_be_written_to_is_named_and_blocks_the_commit(
    kafka: SecuredKafka, tmp_path: Path
) -> None:
    secured = Secured(kafka, tmp_path, "forbidden")
    passwords = {"SOURCE_PASSWORD": SECRET, "SINK_PASSWORD": SECRET}
    with secured.running(passwords) as process:
        wait_until(
            lambda: process.poll() is not None or "not authorised to write" in secured.told,
            "the reason",
            deadline_s=RUN_S,
        )
        assert process.poll() is None, secured.told[-4000:]
        kafka.allow("shop", ResourceType.TOPIC, "forbidden", WRITE)
        wait_until(
            lambda: process.poll() is not None or len(kafka.cluster.read("forbidden")) == len(ROWS),
            "all rows are written",
            deadline_s=RUN_S,
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(RUN_S) == 0, secured.told[-4000:]

    assert re.search(r"sink copied.*topics? .*forbidden.*: not authorised to write", secured.told)
    assert shown(secured.files(), SECRET) == []
