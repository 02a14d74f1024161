"""What a session must be: a classic one, not Spark Connect, of the version that is tested."""

import re

import pytest

from cutwater.errors import SessionError
from cutwater.spark.session.requirements import connect_variables, refuse_connect
from cutwater.spark.session.session import embedded_session, own_settings
from cutwater.spark.versions import VERSIONS

SENTENCE = "A pipeline needs a classic session, not one of Spark Connect: start it without {}."
VARIABLES = (
    *("SPARK_REMOTE", "SPARK_API_MODE"),
    *("SPARK_CONNECT_MODE", "SPARK_CONNECT_MODE_ENABLED"),
)


@pytest.fixture(autouse=True)
def no_connect_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPARK_REMOTE", "sc://somewhere"),
        # Spark only checks that it is set.
        ("SPARK_REMOTE", ""),
        ("SPARK_CONNECT_MODE_ENABLED", "1"),
        ("SPARK_API_MODE", "Connect"),
        ("SPARK_CONNECT_MODE", "1"),
    ],
)
def test_a_variable_that_asks_for_connect_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(SessionError, match=re.escape(SENTENCE.format(name))):
        embedded_session("local[1]")


@pytest.mark.parametrize(
    ("master", "conf", "named"),
    [
        ("local[1]", {"spark.api.mode": "CONNECT"}, "spark.api.mode=connect"),
        ("local[1]", {"spark.remote": "local"}, "spark.remote"),
        ("sc://host", {}, "the master sc://host"),
        (
            "sc://host",
            {"spark.api.mode": "connect"},
            "spark.api.mode=connect and the master sc://host",
        ),
    ],
)
def test_a_setting_or_a_master_that_asks_for_connect_is_named(
    master: str, conf: dict[str, str], named: str
) -> None:
    with pytest.raises(SessionError, match=re.escape(SENTENCE.format(named))):
        embedded_session(master, conf=conf)


def test_a_classic_session_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_API_MODE", "classic")
    monkeypatch.setenv("SPARK_CONNECT_MODE", "0")

    assert connect_variables() == ()
    refuse_connect("spark://host:7077", {"spark.api.mode": "classic"})
    assert {own_settings(one)["spark.api.mode"] for one in VERSIONS} == {"classic"}
