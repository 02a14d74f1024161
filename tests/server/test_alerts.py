"""The alerts and the Grafana dashboard that we hand out: every expression has an answer.

Metrics and labels are those of a real answer to a scrape. `promtool` lets each alert
fire once, with `make long` and where there is one.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.server.api_client import ApiClient
from tests.server.promql import SCRAPED, Exposed, Shape, Wrong, read
from tests.server.sparkless_run import SparklessRun

from cutwater.server.metrics import METRICS, STATES, Kind

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
EXPOSED = {
    **{
        metric.name: Exposed(frozenset(metric.labels), metric.kind is Kind.COUNTER)
        for metric in METRICS
    },
    # Prometheus's own: whether a target answers.
    "up": Exposed(frozenset(), is_counter=False),
}


def alerts() -> list[dict[str, Any]]:
    loaded = yaml.safe_load((REFERENCE / "alerts.yml").read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def panels() -> list[tuple[str, str, str]]:
    """Return the title, the expression and the legend of everything that is drawn."""
    dashboard = json.loads((REFERENCE / "grafana.json").read_text())
    return [
        (panel["title"], target["expr"].replace("$pipeline", "orders"), target["legendFormat"])
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]


def test_the_metrics_of_the_table_have_these_labels_when_they_are_scraped(
    live: ApiClient, running: SparklessRun
) -> None:
    running.checkpoint()

    text = live.anonymous.get("/metrics").text

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert set(sample.labels) == EXPOSED[sample.name].labels, sample.name


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_can_fire_and_names_what_it_is_about(rule: dict[str, Any]) -> None:
    value = read(rule["expr"], EXPOSED)

    assert value.shape is Shape.VECTOR
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"page", "warn"}
    assert set(rule["annotations"]) == {"summary", "action"}
    named = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    assert named
    assert named <= value.labels
    assert set(re.findall(r'state="(\w+)"', rule["expr"])) <= set(STATES)


@pytest.mark.parametrize(("title", "expression", "legend"), panels())
def test_a_panel_can_be_drawn(title: str, expression: str, legend: str) -> None:
    value = read(expression, EXPOSED)

    assert value.shape is Shape.VECTOR, title
    assert set(re.findall(r"{{(\w+)}}", legend)) <= value.labels


def test_the_dashboard_of_grafana_is_whole() -> None:
    dashboard = json.loads((REFERENCE / "grafana.json").read_text())
    variables = {entry["name"]: entry for entry in dashboard["templating"]["list"]}
    ids = [panel["id"] for panel in dashboard["panels"]]
    places = [tuple(panel["gridPos"][text] for text in "xywh") for panel in dashboard["panels"]]

    metric, label = re.fullmatch(
        r"label_values\((\w+), (\w+)\)", variables["pipeline"]["query"]
    ).groups()  # type: ignore[union-attr]
    assert label in EXPOSED[metric].labels
    assert len(set(ids)) == len(ids)
    assert len(set(places)) == len(places)
    assert all(x + width <= 24 for x, _, width, _ in places)
    sources = {json.dumps(panel["datasource"]) for panel in dashboard["panels"]}
    assert sources == {json.dumps({"type": "prometheus", "uid": "${source}"})}
    # What was true an hour ago is not shown as if it were so now.
    shown = [panel["targets"] for panel in dashboard["panels"] if panel["type"] == "stat"]
    assert all(target["instant"] for targets in shown for target in targets)


def test_late_rows_and_failed_attempts_raise_alerts() -> None:
    watched = " ".join(rule["expr"] for rule in alerts())

    assert "cutwater_step_late_rows_dropped_total" in watched
    assert "cutwater_checkpoints_failed_total" in watched


def test_every_alert_is_tried_by_its_rule_test() -> None:
    tried = yaml.safe_load((REFERENCE / "alerts.test.yml").read_text())["tests"]
    fired = {
        entry["alertname"]
        for test in tried
        for entry in test["alert_rule_test"]
        if entry["exp_alerts"]
    }

    assert fired == {rule["alert"] for rule in alerts()}


@pytest.mark.long
@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed here")
def test_prometheus_lets_every_alert_fire() -> None:
    for arguments in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]):
        done = subprocess.run(
            ["promtool", *arguments], cwd=REFERENCE, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cutwater_pipeline_upp == 0", "no metric cutwater_pipeline_upp"),
        ('cutwater_pipeline_up{step="totals"} == 0', "has no label step"),
        ("increase(cutwater_checkpoints_failed_total) > 3", "takes a range"),
        ("increase(cutwater_pipeline_generation[15m]) > 3", "only for counters"),
        ("changes(cutwater_checkpoints_failed_total[15m]) > 3", "not for counters"),
        ("cutwater_pipeline_up[5m]", "a range is no answer"),
        ("(cutwater_pipeline_up == 0", "ends too early"),
        ("cutwater_pipeline_up == 0)", "nothing may follow"),
        ("cutwater_pipeline_up == ", "ends too early"),
        ("cutwater_pipeline_up[15 m] == 0", "cannot be read"),
        ("cutwater_pipeline_up and cutwater_step_finished", "never match: {'step'}"),
        ("cutwater_pipeline_up and on (step) cutwater_step_finished", "not on both sides"),
        ("cutwater_pipeline_up or 1", "or of a number"),
        ("deriv(cutwater_pipeline_up[5m])", "no function deriv"),
    ],
)
def test_an_expression_without_an_answer_would_be_noticed(text: str, complaint: str) -> None:
    with pytest.raises(Wrong, match=re.escape(complaint)):
        read(text, EXPOSED)


def test_labels_are_those_of_the_answer() -> None:
    both = "cutwater_step_finished == 1 and on (pipeline) cutwater_pipeline_up == 1"

    assert read(both, EXPOSED).labels == {"pipeline", "step"} | SCRAPED
    assert read("time() - cutwater_pipeline_up", EXPOSED).labels == {"pipeline"} | SCRAPED
