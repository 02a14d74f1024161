"""Optional packages: sinks are declared without them, and an error names what to install."""

import subprocess
import sys

CHILD = """
import sys

for hidden in ("deltalake", "obstore", "psycopg"):
    sys.modules[hidden] = None

from cutwater import sinks
from cutwater.errors import ConfigError, SinkError
from cutwater.ids import PipelineId, SinkId
from cutwater.sinks.base import SinkContext
from cutwater.sinks.registry import read_target

context = SinkContext(None, PipelineId("p"), SinkId("s"))
table = sinks.delta("/nowhere/table")
for target in (table, sinks.postgres("host=nowhere", table="orders")):
    try:
        target.open(context)
    except ConfigError as error:
        print(error.reason)
try:
    read_target(None, table.stored(), "none", context.sink)
except SinkError as error:
    print(error.reason)
"""


def test_without_its_package_a_sink_is_declared_and_says_what_to_install() -> None:
    child = subprocess.run(
        [sys.executable, "-c", CHILD], check=True, capture_output=True, text=True
    )

    assert child.stdout.splitlines() == [
        "needs the package deltalake: pip install 'cutwater[delta]'",
        "needs the package psycopg: pip install 'cutwater[postgres]'",
        "there was no table in /nowhere/table yet: it had no columns then",
    ]
