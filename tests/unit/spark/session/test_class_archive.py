"""Which archive of classes a JVM is started with; tests/cli makes a real one."""

from pathlib import Path

import pytest

from cutwater.spark.session import class_archive
from cutwater.spark.session.class_archive import find_archive, with_archive
from cutwater.spark.session.java import Java


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    (tmp_path / "java").mkdir()
    (tmp_path / "java" / "release").write_text("17.0.15")
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "spark.jar").write_text("classes")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(class_archive, "_find_spark_home", lambda: str(tmp_path / "spark"))
    return Java(tmp_path / "java", 17, "PATH")


def make_archive(cache: Path, java: Java) -> Path:
    path = cache / "cutwater" / class_archive._name(java)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_without_an_archive_the_options_stay_as_they_are(java: Java) -> None:
    assert find_archive(java) is None
    assert with_archive("-Dmine=1", java) == "-Dmine=1"


def test_an_archive_is_used_quietly(java: Java, tmp_path: Path) -> None:
    path = make_archive(tmp_path / "cache", java)

    found = with_archive("-Dmine=1", java).split()

    assert found == [f"-XX:SharedArchiveFile={path}", class_archive._QUIET, "-Dmine=1"]


@pytest.mark.parametrize("option", ["-Xshare:off", "-XX:SharedArchiveFile=mine.jsa"])
def test_what_the_user_says_about_archives_counts(java: Java, tmp_path: Path, option: str) -> None:
    make_archive(tmp_path / "cache", java)

    assert with_archive(option, java) == option


@pytest.mark.parametrize("changed", ["java/release", "spark/jars/spark.jar", "spark/jars/new.jar"])
def test_an_archive_of_another_java_or_other_jars_is_not_found(
    java: Java, tmp_path: Path, changed: str
) -> None:
    make_archive(tmp_path / "cache", java)

    (tmp_path / changed).write_text("another one")

    assert find_archive(java) is None


def test_an_archive_whose_path_java_would_split_is_not_used(
    java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    make_archive(tmp_path / "my cache", java)

    assert with_archive("", java) == ""
