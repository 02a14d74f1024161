"""SQL files are split at the semicolons that end statements, and at no others."""

import pytest

from cutwater.declarative.sql_definitions import Statement, split


def test_statements_have_their_text_and_the_line_on_which_they_begin() -> None:
    text = "-- first\nSELECT 1;\n\n/* second */\nSELECT 2 ;\n-- the end\n"

    assert split(text) == (
        Statement("-- first\nSELECT 1", 2),
        Statement("\n\n/* second */\nSELECT 2 ", 5),
    )


@pytest.mark.parametrize(
    "text",
    [
        "SELECT ';'",
        'SELECT ";"',
        "SELECT `;`",
        "SELECT 'it''s;'",
        r"SELECT 'a\';b'",
        r"SELECT `a\`",
        "SELECT 1 -- ; not yet",
        "SELECT /* ; /* ; */ ; */ 1",
        "SELECT 'never closed;",
    ],
)
def test_a_semicolon_in_quotes_or_comments_ends_nothing(text: str) -> None:
    assert split(text) == (Statement(text, 1),)


@pytest.mark.parametrize("text", ["", " \n", ";;", "-- nothing", "/* open", "; -- x\n;"])
def test_blanks_and_comments_are_no_statements(text: str) -> None:
    assert split(text) == ()


def test_two_statements_on_one_line_are_two() -> None:
    assert [statement.text for statement in split("A;B;")] == ["A", "B"]
