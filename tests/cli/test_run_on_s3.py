"""A pipeline whose store and table are in a bucket: killed, its scratch lost, exact in the end.

All requests go over real sockets to a real S3 server, through a gateway that loses answers; the
table is read by another reader than the one that writes it.
"""

import json
import random
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import SPARK_DEADLINE_S, command, cutwater, environment
from tests.cli.test_run_on_spark import wait_for
from tests.contract.bucket_table import bucket_at, names_in, rows_in
from tests.servers.gateway import Gateway, Request, gateway_to, ignore_conditions, lose_the_answer
from tests.servers.s3 import CREDENTIALS, S3Server, s3_server

from cutwater.protocol.decisions import Claim
from cutwater.store.backends.location import backend_at
from cutwater.store.pipeline_store import PipelineStore
from cutwater.store.records.catalog import find_pipeline
from cutwater.store.records.lease import claimant

KEYS = 20_000
ONCE = """
from pyspark.sql import functions as F
from cutwater import Pipeline, sinks, sources


def create(rate, table):
    made = Pipeline("once")

    @made.source(chain=False)
    def numbers(spark):
        return sources.sequence(spark, total=40_000, rate=float(rate))

    @made.step(partitions=2)
    def once(numbers):
        return numbers.select((F.col("value") % 20_000).alias("key")).dropDuplicates(["key"])

    made.sink("table", sinks.delta(table), of=once)
    return made
"""
"""Every key comes twice, half the input apart: only a step that keeps its state drops one."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def gateway(s3: S3Server) -> Iterator[Gateway]:
    with gateway_to(s3.port) as gateway:
        yield gateway


@pytest.fixture
def store(s3: S3Server, gateway: Gateway) -> str:
    return s3.url(f"{uuid.uuid4().hex}/store", gateway.endpoint)


def run_of(directory: Path, store: str, *more: str) -> tuple[str, ...]:
    (directory / "once.py").write_text(ONCE)
    places = ("--store", store, "--scratch", str(directory / "scratch"))
    # So slow that the first rows are committed long before half of the input has come.
    table = ("--param", "rate=300", "--param", f"table={table_beside(store)}")
    return ("run", "once.py:create", "--master", "local[2]", *places, *table, *more)


def table_beside(store: str) -> str:
    return store.replace("/store?", "/table?")


def test_a_killed_run_goes_on_exactly_from_a_bucket_although_answers_are_lost(
    tmp_path: Path, s3: S3Server, store: str, gateway: Gateway
) -> None:
    table = bucket_at(table_beside(store).replace(gateway.endpoint, s3.endpoint))
    # The very first version is empty.
    first = f"_delta_log/{1:020}.json"
    chance = random.Random(7)

    def lose_some(request: Request) -> bool:
        return chance.random() > 0.1 or lose_the_answer(request)

    gateway.always = lose_some
    process = subprocess.Popen(
        command(*run_of(tmp_path, store, "--interval", "500ms")),
        cwd=tmp_path,
        env=environment(**CREDENTIALS),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(process, lambda: first in names_in(table), first)
    finally:
        process.kill()
        process.communicate()
    before = [row["key"] for row in rows_in(table)]
    # Nothing but the store is left, and the JVM, which may outlive its driver by a moment.
    shutil.rmtree(tmp_path / "scratch", ignore_errors=True)
    run = cutwater(
        *run_of(tmp_path, store, "--available-now"),
        cwd=tmp_path,
        env=environment(**CREDENTIALS),
        deadline_s=SPARK_DEADLINE_S,
    )

    assert run.returncode == 0, run.stderr
    assert 0 < len(before) < KEYS
    assert sorted(row["key"] for row in rows_in(table)) == list(range(KEYS))
    opened = PipelineStore.of(backend_at(store), find_pipeline(backend_at(store), "once"))
    # A process claims more than once if the answer to a decision is lost.
    claims = [entry for entry in opened.log.read().entries if isinstance(entry, Claim)]
    assert len({claimant(claim.nonce) for claim in claims}) == 2
    assert not list(tmp_path.rglob("pipelines"))


def test_doctor_tries_a_bucket_and_says_when_it_cannot_be_a_store(
    store: str, gateway: Gateway
) -> None:
    env = environment(**CREDENTIALS)
    doctor = ("doctor", "--store", store, "--output", "json")

    sound = cutwater(*doctor, env=env)
    gateway.always = ignore_conditions
    ignoring = cutwater(*doctor, env=env)

    assert "keeps what it is given" in store_finding(sound)["found"]
    assert store_finding(ignoring)["status"] == "wrong"
    assert "create-if-absent" in store_finding(ignoring)["found"]
    assert "a secret" not in sound.stdout + ignoring.stdout


def store_finding(run: "subprocess.CompletedProcess[str]") -> dict[str, str]:
    found: dict[str, str]
    found = next(check for check in json.loads(run.stdout)["checks"] if check["name"] == "Store")
    return found
