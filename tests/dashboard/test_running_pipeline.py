"""A pipeline on Spark, started by the command: its API, metrics, events and dashboard.

One run for all of it. Every fiftieth row of its source is an hour late, so that the window's
operator drops rows, and a program and a person ask it for things at the same time.
"""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, expect
from prometheus_client.parser import text_string_to_metric_families
from tests.cli.command import SPARK_DEADLINE_S, command, cutwater, environment
from tests.dashboard.browser import opened

PIPELINE = """
from pyspark.sql import functions as F

from cutwater import Pipeline, sinks, sources


def create(tables):
    shop = Pipeline("shop")

    @shop.source(chain=False)
    def clicks(spark):
        numbers = sources.sequence(spark, rate=200.0)
        late = F.col("at") - F.expr("INTERVAL 1 HOUR")
        is_late = (F.col("value") % 50 == 0) & (F.col("value") > 400)
        return numbers.withColumn("at", F.when(is_late, late).otherwise(F.col("at")))

    @shop.step
    def per_second(clicks):
        marked = clicks.withWatermark("at", "1 second")
        counted = marked.groupBy(F.window("at", "1 second")).count()
        return counted.select("window.start", "count")

    shop.sink("counts", sinks.delta(f"{tables}/counts"), of=per_second)
    shop.sink("all_clicks", sinks.delta(f"{tables}/clicks"), of=lambda clicks: clicks)
    return shop
"""

DEADLINE_S = 240.0
ANSWER_S = 60.0
"""Long, since the process that answers runs Spark on a machine with two cores."""


@dataclass
class Run:
    """A run, what it has said, and where it answers."""

    process: subprocess.Popen[str]
    store: Path
    said: list[Any] = field(default_factory=list)
    logged: list[Any] = field(default_factory=list)
    url: str = ""
    token: str = ""

    def listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("{"):
                self.logged.append(json.loads(line))

    def wait_for_address(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))
            text = self.said[-1].get("text", "")
            if text.startswith("dashboard and API at "):
                self.url = text.removeprefix("dashboard and API at ")
            if text.startswith("to make changes there: "):
                self.token = Path(text.partition("the token is in ")[2]).read_text().strip()
                return
        raise AssertionError(f"it ended before it was served: {self.said} {self.logged}")

    def get(self, path: str) -> Any:  # noqa: ANN401 - any JSON
        answer = httpx.get(f"{self.url}{path}", timeout=ANSWER_S)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metric(self, name: str, **labels: str) -> float:
        text = httpx.get(f"{self.url}metrics", timeout=ANSWER_S).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def wait_until(self, found: Any, what: str) -> None:  # noqa: ANN401 - a condition
        end_s = time.monotonic() + DEADLINE_S
        while not found():
            assert time.monotonic() < end_s, f"not in time: {what}; {self.get('jobs/shop/now')}"
            time.sleep(0.2)


@contextmanager
def running(directory: Path) -> Iterator[Run]:
    (directory / "shop.py").write_text(PIPELINE)
    arguments = ["run", "shop.py:create", "--param", f"tables={directory / 'tables'}"]
    given = ["--store", "store", "--interval", "2s", "--master", "local[2]", "--serve", "0"]
    forms = ["--output", "json", "--log-format", "json"]
    process = subprocess.Popen(
        command(*arguments, *given, *forms),
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    made = Run(process, directory / "store")
    listening = threading.Thread(target=made.listen, daemon=True)
    listening.start()
    try:
        made.wait_for_address()
        yield made
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout, process.stderr:
            made.said += [json.loads(line) for line in process.stdout]
            process.wait(SPARK_DEADLINE_S)
            listening.join(DEADLINE_S)


def test_a_pipeline_on_spark_is_watched_and_asked(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as run:
        bearer = {"Authorization": f"Bearer {run.token}"}
        counts = "jobs/shop/checkpoints"
        run.wait_until(lambda: run.get(counts)["counts"]["completed"] >= 2, "two checkpoints")

        assert run.get("livez") == run.get("readyz") == {"state": "RUNNING"}
        # A stranger may look and not touch; others find it by its store.
        stranger = {"Authorization": "Bearer no"}
        refused = httpx.post(f"{run.url}jobs/shop/stop", headers=stranger, timeout=ANSWER_S)
        found = cutwater("checkpoints", "list", "shop", "--store", str(run.store))
        dag = run.get("jobs/shop/dag")
        newest = run.get(counts)["latest"]["completed"]
        detail = run.get(f"jobs/shop/checkpoints/details/{newest['id']}")
        config = run.get("jobs/shop/checkpoints/config")
        late = "cutwater_step_late_rows_dropped_total"
        run.wait_until(lambda: run.metric(late, step="per_second") > 0, "late rows are counted")

        # A person takes a savepoint by click, and sees it complete.
        with opened(browser, f"{run.url}#history") as page:
            page.evaluate("(token) => sessionStorage.setItem('cutwater-token', token)", run.token)
            page.get_by_role("button", name="Savepoint").click()
            page.get_by_label("Name").fill("by-click")
            page.get_by_role("button", name="Take it").click()
            # It comes after the checkpoint that is under way, behind whatever flows just now.
            done = page.locator(".toast.completed")
            expect(done).to_contain_text("by-click is complete", timeout=DEADLINE_S * 1000)
            expect(page.locator(".tag.savepoint")).to_have_text("by-click")
        saved = run.get(counts)["latest"]["savepoint"]
        # Of the others only the newest ten are kept, and this one may be an old one by now.
        preview = run.get(f"jobs/shop/rewind?to={saved['id']}")

        # And stops it.
        body = {"savepoint": "the-end", "drain": True}
        asked = httpx.post(f"{run.url}jobs/shop/stop", json=body, headers=bearer, timeout=ANSWER_S)
        run.process.wait(SPARK_DEADLINE_S)

    assert refused.status_code == 401
    assert f"Its dashboard is at {run.url}" in found.stdout
    assert {step["id"] for step in dag["steps"]} == {"clicks", "per_second", "all_clicks"}
    assert all(step["rows"] is not None for step in dag["steps"])
    assert {(channel["source"], channel["reader"]) for channel in dag["channels"]} == {
        ("clicks", "per_second"),
        ("clicks", "all_clicks"),
    }
    assert config["interval"] == 2000
    assert detail["status"] == "COMPLETED"
    assert set(detail["tasks"]) == {"clicks", "per_second", "all_clicks"}
    assert all(task["end_to_end_duration"] >= 0 for task in detail["tasks"].values())
    assert saved["name"] == "by-click"
    assert "is run by process" in preview["refused"][0]
    assert {sink["sink"] for sink in preview["sinks"]} == {"counts", "all_clicks"}
    assert asked.status_code == 202
    assert run.process.returncode == 0
    _check_events(run, saved["id"])


def _check_events(run: Run, saved: int) -> None:
    """Every change of state was told once, by the pipeline, the generation and the checkpoint."""
    events = [entry for entry in run.logged if entry["event"] != "log"]
    assert {event["pipeline"] for event in events} == {"shop"}
    states = [event["state"] for event in events if event["event"] == "pipeline.state"]
    assert states == ["RUNNING", "STOPPING", "FINISHED"]
    told = [event["event"] for event in events if event.get("checkpoint") == saved]
    assert told[:1] == ["checkpoint.started"]
    assert sorted(told[1:4]) == ["checkpoint.acknowledged"] * 3
    assert told[4:] == ["checkpoint.completed", "checkpoint.committed"]
    steps = {event.get("step") for event in events if event.get("checkpoint") == saved} - {None}
    assert steps == {"clicks", "per_second", "all_clicks"}
    (recovered,) = [event for event in events if event["event"] == "pipeline.recovered"]
    assert (recovered["generation"], recovered["first_batch_ms"] > 0) == (1, True)
    assert run.token not in json.dumps(run.logged) + json.dumps(run.said)
