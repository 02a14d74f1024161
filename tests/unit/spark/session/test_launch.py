"""Arguments for `spark-submit` that cannot work are refused before a JVM is started."""

from pathlib import Path

import pytest

from cutwater.errors import SessionError
from cutwater.spark.session.launch import start_jvm


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--properties-file {0}/none pyspark-shell", "/none cannot be read: No such file"),
        ("--properties-file={0} pyspark-shell", "cannot be read: Is a directory"),
        ("--properties-file {0}/latin pyspark-shell", "/latin cannot be read: .* not UTF-8"),
        ("--conf 'spark.x=1 pyspark-shell", "cannot be read: No closing quotation"),
    ],
)
def test_arguments_that_cannot_be_read_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: str, reason: str
) -> None:
    (tmp_path / "latin").write_bytes(b"spark.app.name=\xe9\n")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments.format(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)

    with pytest.raises(SessionError, match=f"PYSPARK_SUBMIT_ARGS.*{reason}"):
        start_jvm({})
