"""The dashboard's files: small, complete, and with nothing in them that the policy would forbid."""

import re
from pathlib import Path

import pytest
from tests.server.api_client import ApiClient

import cutwater.server

STATIC = Path(cutwater.server.__file__).parent / "static"
FILES = sorted(path.name for path in STATIC.iterdir())
SCRIPTS = [file for file in FILES if file.endswith(".js")]
LINES_MAX = 300
BYTES_MAX = 100_000

# Whatever makes markup or code of a text.
DANGEROUS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
)
OUTSIDE = re.compile(r"https?://(?!www\.w3\.org/2000/svg)|(?<!:)//[a-z]+\.[a-z]")


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_served_and_loads_nothing_from_outside(live: ApiClient, name: str) -> None:
    answer = live.anonymous.get(f"/static/{name}")

    assert answer.status_code == 200
    assert answer.text == (STATIC / name).read_text()
    assert not OUTSIDE.search(answer.text)
    assert not re.search(r"@import|url\(", answer.text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_short_and_never_makes_markup_of_text(name: str) -> None:
    text = (STATIC / name).read_text()

    assert not DANGEROUS.search(text)
    assert len(text.splitlines()) <= LINES_MAX
    assert text.startswith("// "), "it says what it is"
    imported = re.findall(r'from "\./([a-z]+\.js)"', text)
    assert set(imported) <= set(SCRIPTS)


def test_the_page_has_no_inline_code_or_style() -> None:
    text = (STATIC / "index.html").read_text()

    assert not re.search(r"\son[a-z]+=|\sstyle=|<style|<script(?![^>]*\ssrc=)", text)


def test_all_of_it_is_small() -> None:
    assert sum((STATIC / file).stat().st_size for file in FILES) < BYTES_MAX
