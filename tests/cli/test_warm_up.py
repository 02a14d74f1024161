"""`cutwater warm-up`: the archive of classes, made once and used by the next session."""

import json
import sys
from pathlib import Path

import pytest
from tests.cli.command import cutwater, environment, run_to_end

NEXT_SESSION = """
import sys
from cutwater.spark.session.session import embedded_session

log = f"-Xlog:class+load:file={sys.argv[1]}"
embedded_session("local[1]", conf={"spark.driver.extraJavaOptions": log}).range(10).count()
"""


@pytest.mark.long
def test_the_next_session_takes_its_classes_from_the_archive(tmp_path: Path) -> None:
    env = environment(XDG_CACHE_HOME=str(tmp_path / "cache"))

    made = cutwater("warm-up", "--output", "json", env=env)
    again = cutwater("warm-up", "--if-missing", env=env)
    run_to_end([sys.executable, "-c", NEXT_SESSION, str(tmp_path / "loaded")], env=env)

    assert made.returncode == 0, made.stderr
    archive = Path(json.loads(made.stdout)["archive"])
    assert archive.is_relative_to(tmp_path / "cache")
    assert list(archive.parent.glob(".classes-*")) == []
    assert again.stdout.startswith("There is an archive already")
    loaded = (tmp_path / "loaded").read_text().splitlines()
    of_spark = [line for line in loaded if " org.apache.spark." in line]
    shared = [line for line in of_spark if "shared objects file (top)" in line]
    # The rest are lambdas, which are created in every JVM.
    assert len(shared) > len(of_spark) / 2 > 1000
