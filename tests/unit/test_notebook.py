"""What a notebook shows of pipelines, plans, runs and checkpoints; read with a parser of HTML."""

from html.parser import HTMLParser

from tests.unit.fake_spark import Target
from tests.unit.store.checkpoint_writer import step_report

from cutwater import Pipeline
from cutwater.ids import CheckpointId, StepId
from cutwater.planning.planner import plan
from cutwater.runtime.reporting.status import ChannelStatus, CheckpointReport, RunStatus, StepStatus


class Cells(HTMLParser):
    """The text between tags, in order; fails at a tag that is not expected."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, _attributes: object) -> None:
        assert tag in {"table", "caption", "thead", "tbody", "tr", "th", "td", "pre"}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def made() -> Pipeline:
    pipeline = Pipeline("orders")
    pipeline.source(orders)
    pipeline.sink("table", Target("nowhere"), of="orders")
    return pipeline


def orders(spark: object) -> object:
    raise NotImplementedError(spark)


def test_a_pipeline_is_a_table_of_its_nodes() -> None:
    texts = Cells(made()._repr_html_()).texts

    assert texts[0] == "pipeline orders"
    assert {"source", "orders", "sink", "table"} <= set(texts)
    assert any(text.startswith("test_notebook.py:") for text in texts)


def test_a_plan_is_its_drawing_and_its_repr_is_one_line() -> None:
    planned = plan(made())

    assert Cells(planned._repr_html_()).texts == [planned.tree()]
    assert repr(planned) == "<plan of orders: table>"


def test_a_run_shows_steps_channels_and_checkpoints_and_escapes_what_users_write() -> None:
    report = CheckpointReport(
        CheckpointId(7),
        "FAILED",
        1234,
        "SAVEPOINT",
        failure="<script>alert(1)</script>",
        name="before",
        steps={StepId("totals"): step_report(alignment_ms=77)},
    )
    status = RunStatus(
        "orders",
        3,
        "RUNNING",
        (StepStatus("totals", "query", 5, 123456, 10.4, False, None),),
        (ChannelStatus("clean", "totals", 2, 99),),
        (report,),
        detail="a < b",
    )

    seen = Cells(status._repr_html_()).texts
    attempt = Cells(report._repr_html_()).texts

    assert seen[0] == "pipeline orders: RUNNING, generation 3; a < b"
    assert {"123,456", "10", "clean", "99", "before", "<script>alert(1)</script>"} <= set(seen)
    assert attempt[0].startswith("savepoint before: FAILED, 1234 ms; <script>")
    assert {"totals", "77"} <= set(attempt)
