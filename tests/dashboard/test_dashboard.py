"""What a person sees and does in the browser, with a pipeline that runs without Spark behind it."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.cli.offline_store import OfflineStore
from tests.dashboard.browser import opened
from tests.server.api_client import serve_app
from tests.server.sparkless_run import SparklessRun
from tests.servers.nginx import proxy
from tests.servers.ports import free_port
from tests.unit.store.checkpoint_writer import attempt_report

from cutwater.runtime.reporting.status import PartitionLag
from cutwater.server.app import make_app
from cutwater.server.auth import PublicUrl, Token
from cutwater.server.pipelines import OnePipeline, StoredPipelines
from cutwater.store.paths import name

MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>alert(1)</script>"


class Served(NamedTuple):
    running: SparklessRun
    url: str
    token: str


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    running, token = SparklessRun(tmp_path / "store"), Token.of(tmp_path)
    app = make_app(OnePipeline(running.served(token.hint)), token, "127.0.0.1")
    assert token.file is not None
    with serve_app(app) as url:
        yield Served(running, url, token.file.read_text().strip())


def give_token(page: Page, text: str) -> None:
    page.get_by_label("Token", exact=True).locator("visible=true").last.fill(text)
    page.get_by_role("button", name="Use it").click()


def test_the_list_of_checkpoints_updates_by_itself(browser: Browser, served: Served) -> None:
    served.running.checkpoint()
    with opened(browser, f"{served.url}#history") as page:
        expect(page.locator("tr[data-id='1']")).to_contain_text("COMPLETED")

        served.running.checkpoint()
        served.running.fail("step totals declined it")

        expect(page.locator("tr[data-id='2']")).to_contain_text("COMPLETED")
        expect(page.locator("tr[data-id='3']")).to_contain_text("step totals declined it")
        rows = page.locator("tr[data-id]")
        expect(rows.first).to_have_attribute("data-id", "3")


def test_the_barrier_is_seen_on_its_way(browser: Browser, served: Served) -> None:
    with opened(browser, served.url) as page:
        expect(page.locator(".step-name")).to_have_text(["orders", "totals"])
        texts = ["1,235 rows/s", "3 batches behind, 12.0 KB", "watermark "]
        expect(page.locator(".edge-text")).to_contain_text(texts)

        with served.running.held():
            taking = threading.Thread(target=served.running.checkpoint)
            taking.start()
            expect(page.locator(".channel.has-barrier")).to_have_count(1)
            expect(page.locator(".step.acknowledged")).to_contain_text("orders")
            expect(page.locator(".step.aligning")).to_contain_text("totals")
            expect(page.locator(".step.aligning .badge")).to_have_text("1/2 aligned")
            expect(page.locator(".step.aligning title")).to_contain_text(
                "1 of 2 inputs aligned, waits for refunds, 512 B before the barrier, "
                "2.0 KB held behind it, 1.0 KB overtaken and recorded"
            )
            note = "1 of 2 steps have stored their part; it waits for totals"
            expect(page.locator(".graph-note")).to_contain_text(note)
            page.locator("tr[data-id='1']").click()
            expect(page.locator("tr.detail")).to_contain_text("waiting")
            expect(page.locator("tr.detail")).to_contain_text(
                "1 of 2, 2.0 KB held, 1.0 KB recorded"
            )
        taking.join()

        expect(page.locator(".channel.has-barrier")).to_have_count(0)
        expect(page.locator("tr[data-id='1']")).to_contain_text("COMPLETED")


def test_the_lag_of_a_kafka_source_is_shown_by_partition(browser: Browser, served: Served) -> None:
    served.running.lag = (
        PartitionLag("incoming", "orders-topic", 0, 40, 1_040),
        PartitionLag("incoming", "orders-topic", 1, 7, 7),
    )
    with opened(browser, served.url) as page:
        expect(page.locator(".step.source .late")).to_have_text("1,000 behind")
        title = page.locator(".step.source title")
        expect(title).to_contain_text("orders-topic-0: 1,000 behind, at 40 of 1,040")
        expect(title).to_contain_text("orders-topic-1: 0 behind, at 7 of 7")


def test_a_savepoint_started_by_click_completes(browser: Browser, served: Served) -> None:
    with opened(browser, f"{served.url}#history") as page:
        page.get_by_role("button", name="Savepoint").click()
        page.get_by_label("Name").fill("before-the-release")
        page.get_by_role("button", name="Take it").click()
        give_token(page, served.token)

        expect(page.locator(".toast.completed")).to_contain_text(
            "The savepoint before-the-release is complete as checkpoint 1."
        )
        expect(page.locator("tr[data-id='1'] .tag.savepoint")).to_have_text("before-the-release")
        # The token is kept for the tab, and the next change needs no other.
        page.get_by_role("button", name="Checkpoint").click()
        expect(page.locator("tr[data-id='2']")).to_contain_text("COMPLETED")
        assert served.token not in page.url
    assert [report.name for report in served.running.reports] == ["before-the-release", None]


def test_a_pending_checkpoint_is_aborted_by_click_with_a_reason(
    browser: Browser, served: Served
) -> None:
    with opened(browser, f"{served.url}#history") as page, served.running.held():
        taking = threading.Thread(target=served.running.checkpoint)
        taking.start()
        page.locator("tr[data-id='1']").get_by_role("button", name="Abort…").click()
        page.get_by_label("Reason").fill("the disk is replaced")
        page.get_by_role("button", name="Abort it").click()
        give_token(page, served.token)

        expect(page.locator(".toast.completed")).to_contain_text("Checkpoint 1 was aborted.")
        row = page.locator("tr[data-id='1']")
        expect(row).to_contain_text("FAILED")
        expect(row).to_contain_text("it was aborted on request (the disk is replaced)")
        expect(row.get_by_role("button", name="Abort…")).to_have_count(0)
        taking.join()


def test_the_wrong_token_is_refused(browser: Browser, served: Served) -> None:
    with opened(browser, served.url) as page:
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Stop it").click()
        give_token(page, "not the token")

        expect(page.locator(".toast.failed")).to_contain_text("The token was refused.")
        assert served.running.stopped_with is None
        expect(page.locator("dialog")).to_contain_text("That was not the token.")
        give_token(page, served.token)
        expect(page.locator(".toast.completed")).to_contain_text("The pipeline has stopped")
    assert served.running.stopped_with == (None, False)


def test_five_hundred_checkpoints_are_drawn_at_once(
    browser: Browser, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    stored = OfflineStore(tmp_path, "memory://five-hundred-checkpoints")
    for number in range(1, 501):
        stored.writer.decide(number)
        stored.writer.store.reports.write(attempt_report(number))
    app = make_app(StoredPipelines(stored.backend), Token.of(tmp_path), "127.0.0.1")
    with serve_app(app) as url, opened(browser, f"{url}#history") as page:
        expect(page.locator("tr[data-id]")).to_have_count(500)
        drawn = page.evaluate(
            "Math.max(...performance.getEntriesByName('cutwater-history').map((e) => e.duration))"
        )

        # Well under a second on a quiet machine; the bound is for a very busy one.
        request.node.user_properties.append(("500_checkpoints_drawn_ms", drawn))
        assert drawn < 5_000
        expect(page.locator("#state")).to_have_text("NOT RUNNING")
        expect(page.locator("#banner")).to_contain_text("The pipeline does not run.")
        expect(page.get_by_role("button", name="Checkpoint")).to_be_disabled()
        page.get_by_role("tab", name="Summary").click()
        expect(page.locator("main")).to_contain_text("Summary of 500 Completed Checkpoints")
        expect(page.locator("main")).to_contain_text("99.9%")


def test_what_a_pipeline_says_is_text_and_never_markup(browser: Browser, served: Served) -> None:
    served.running.fail(MARKUP)
    served.running.state, served.running.detail = "RESTARTING", MARKUP
    with opened(browser, served.url) as page:
        expect(page.locator("tr[data-id='1']")).to_contain_text(MARKUP)
        expect(page.locator("#banner")).to_contain_text(MARKUP)
        assert page.locator("img[src=x]").count() == 0
        assert page.title().startswith("orders")


def test_a_pipeline_that_runs_again_says_where_the_reasons_are(
    browser: Browser, served: Served
) -> None:
    with opened(browser, served.url) as page:
        expect(page.locator("#state")).to_have_text("RUNNING")
        expect(page.locator("#restarts")).to_be_hidden()

        served.running.restarts = 3
        page.get_by_role("link", name="3 restarts: why?").click()

        expect(page.get_by_role("tab", name="Recoveries")).to_have_attribute(
            "aria-selected", "true"
        )


def test_every_view_is_reached_and_used_by_keyboard(browser: Browser, served: Served) -> None:
    served.running.checkpoint()
    served.running.checkpoint()
    with opened(browser, served.url) as page:
        page.get_by_role("tab", name="Pipeline").focus()
        seen: list[str] = []
        for _ in range(8):
            page.keyboard.press("ArrowRight")
            page.wait_for_function(
                """before => document.activeElement.getAttribute('aria-selected') === 'true'
                   && document.activeElement.dataset.view !== before""",
                arg=seen[-1] if seen else "pipeline",
            )
            expect(page.locator("main .card").first).to_be_visible()
            seen.append(page.evaluate("document.activeElement.dataset.view"))
        assert seen[:3] == ["overview", "history", "summary"]
        assert sorted(set(seen)) == sorted(seen)

        page.get_by_role("tab", name="History").press("Enter")
        row = page.locator("tr[data-id='2']")
        row.focus()
        row.press("ArrowDown")
        page.keyboard.press("Enter")
        detail = page.locator("tr.detail")
        expect(detail).to_contain_text("Start Delay")
        expect(detail).to_contain_text("totals")
        page.keyboard.press("Enter")
        expect(detail).to_have_count(0)


def test_a_rewind_is_shown_with_the_command_that_does_it(browser: Browser, served: Served) -> None:
    served.running.checkpoint()
    served.running.checkpoint()
    with opened(browser, f"{served.url}#history") as page:
        page.locator("tr[data-id='1']").click()
        page.get_by_role("button", name="What would a rewind to it do?").click()

        expect(page.locator(".commands")).to_contain_text("cutwater rewind orders --to 1")
        expect(page.locator("main")).to_contain_text("To checkpoint 1")


def test_it_follows_the_colours_of_the_system(browser: Browser, served: Served) -> None:
    colours = []
    for scheme in ("light", "dark"):
        with opened(browser, served.url, scheme) as page:
            colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(245, 247, 248)", "rgb(15, 22, 26)"]


def test_the_dashboard_works_below_a_path_of_a_tls_proxy(browser: Browser, tmp_path: Path) -> None:
    running, token, port = SparklessRun(tmp_path / "store"), Token.of(tmp_path), free_port()
    running.checkpoint()
    public = PublicUrl.of(f"https://127.0.0.1:{port}/orders/")
    app = make_app(OnePipeline(running.served(token.hint)), token, "127.0.0.1", public)
    assert token.file is not None
    with (
        serve_app(app) as url,
        proxy(tmp_path, urlsplit(url).port or 0, port),
        opened(browser, public.text, token=token.file.read_text().strip()) as page,
    ):
        expect(page.locator(".step-name")).to_have_text(["orders", "totals"])
        page.get_by_role("button", name="Checkpoint").click()
        expect(page.locator(".toast.completed")).to_be_visible()

    assert len(running.reports) == 2


def test_a_pipeline_that_cannot_be_read_hides_no_other(browser: Browser, tmp_path: Path) -> None:
    stored = OfflineStore(tmp_path / "store")
    stored.writer.decide(1)
    (tmp_path / "store" / name("broken")).write_bytes(b"no name")
    app = make_app(StoredPipelines(stored.backend), Token.of(tmp_path), "127.0.0.1")
    with serve_app(app) as url, opened(browser, url) as page:
        expect(page.locator("#jobs option")).to_have_text(
            ["broken (unreadable)", "orders (not running)"]
        )
        expect(page.locator("#state")).to_have_text("NOT RUNNING")
        expect(page.locator("#jobs")).to_have_value(stored.writer.store.pipeline)
