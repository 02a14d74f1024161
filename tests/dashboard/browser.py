"""The Chromium of this machine, and a page that remembers what went wrong in it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
DEADLINE_MS = 60_000


def executable() -> str:
    """Return where Chromium is; it must be there, unless the environment says that it is not."""
    if os.environ.get("CUTWATER_NO_BROWSER"):
        pytest.skip("CUTWATER_NO_BROWSER is set")
    found = os.environ.get("CUTWATER_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), "")
    assert found, (
        "no Chromium on this machine: `apt-get install chromium`, or name it in CUTWATER_CHROMIUM, "
        "or set CUTWATER_NO_BROWSER=1 to leave these tests out"
    )
    return found


def launch(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(
        executable_path=executable(), args=list(FLAGS), timeout=4 * DEADLINE_MS
    )


@dataclass
class Watched:
    """A page, and what its console has complained of."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    def hear(self, message: ConsoleMessage) -> None:
        # A refused request is on the console whatever the page does about it.
        is_refusal = "the server responded with a status of 401" in message.text
        if message.type in {"error", "warning"} and not is_refusal:
            self.complaints.append(message.text)


@contextmanager
def opened(
    browser: Browser, url: str, scheme: str = "light", token: str | None = None
) -> Iterator[Page]:
    """Open the dashboard in a fresh profile; at the end nothing may have gone wrong in it.

    Args:
        browser: The browser.
        url: The address of the page.
        scheme: Light or dark.
        token: What to answer when the page asks for the token to show anything.
    """
    context = browser.new_context(
        viewport={"width": 1400, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
        # For the test's own proxy, whose certificate is self-signed.
        ignore_https_errors=True,
    )
    watched = Watched(context.new_page())
    watched.page.set_default_timeout(DEADLINE_MS)
    watched.page.on("console", watched.hear)
    watched.page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    try:
        watched.page.goto(url)
        if token is not None:
            watched.page.get_by_role("textbox", name="Token").fill(token)
            watched.page.get_by_role("button", name="Use it").click()
        watched.page.wait_for_selector("#state:not(:empty)")
        yield watched.page
    finally:
        context.close()
    assert watched.complaints == []
