"""Write the reference of all settings from the classes that hold them, as one document.

python scripts/config_reference.py            write docs/reference/config.md
python scripts/config_reference.py --check    fail if that file is not what would be written
"""

import inspect
import re
import sys
from pathlib import Path
from typing import Final

from cutwater.config.options import CheckpointConfig, RestartConfig
from cutwater.config.settings import defaults, variable
from cutwater.pipeline.nodes import StepOptions

ROOT: Final = Path(__file__).resolve().parents[1]
DOCUMENT: Final = ROOT / "docs" / "reference" / "config.md"

_HEADER: Final = """\
# Settings

Written by `scripts/config_reference.py` from `CheckpointConfig`, `RestartConfig` and
`StepOptions`; change a class, run the script, and commit both.

A value is the first of these that is given: a flag of the command; a variable of the environment;
the TOML file; the default. The file is the one that `cutwater --config FILE` or `CUTWATER_CONFIG`
names, or `cutwater.toml` in the working directory. `cutwater config show` prints every value and
where it comes from.

```toml
store = "s3://bucket/orders"

[checkpoint]
interval = "5s"
retained = 20

[restart]
strategy = "exponential"
attempts = "none"

[spark]
"spark.sql.shuffle.partitions" = 8
```

Times are text with a unit (`500ms`, `5s`, `10m`, `1h`), sizes too (`64KB`, `256MB`, `1GB`).
`"none"` stands for nothing where nothing is allowed. An unknown key is an error. `[spark]` is
handed to Spark as it is; `--conf` wins over it.

A program passes the same things, and reads neither file nor environment:

```python
from cutwater import CheckpointConfig, RestartConfig
from cutwater.run import RunOptions

pipeline.run(spark, CheckpointConfig(interval="5s"))  # all else has its default
pipeline.run(
    spark,
    RunOptions(
        store="s3://bucket/orders",
        checkpoint=CheckpointConfig(interval="5s"),
        restart=RestartConfig(strategy="exponential"),
    ),
)
```

`start` takes the same and returns at once, with a handle that can checkpoint, stop and report.
"""
_GENERAL: Final = {
    "store": "Where checkpoints are kept: a directory that lasts, or `s3://`, `gs://`, `az://`.",
    "scratch": "A fast directory for work in progress, which may be lost; none for a private one "
    "in `TMPDIR`.",
    "master": "Spark's master.",
    "public_url": "The address of a TLS proxy in front of the API and dashboard of `run` and `ui`.",
}
_STEP: Final = """\
## Of a step

Given where the step is declared: `@pipeline.step(partitions=8, trigger="1s")`. They are part of
the code and of no file.

| option | |
|---|---|
"""


def render() -> str:
    """Return the document."""
    said = {**_GENERAL, **_attributes(CheckpointConfig, "checkpoint.")}
    said |= _attributes(RestartConfig, "restart.")
    lines = ["| setting | default | in the environment | |", "|---|---|---|---|"]
    for name, default in defaults():
        value = "none" if default is None else str(default)
        lines.append(f"| `{name}` | `{value}` | `{variable(name)}` | {said[name]} |")
    options = [f"| `{name}` | {text} |" for name, text in _attributes(StepOptions, "").items()]
    return "\n".join([_HEADER, *lines, "", _STEP.rstrip(), *options, ""])


def _attributes(kind: type, prefix: str) -> dict[str, str]:
    """Return what the docstring of a class says of each of its attributes."""
    text = inspect.getdoc(kind) or ""
    listed = inspect.cleandoc(text.partition("Attributes:\n")[2])
    found = re.split(r"^(\w+): ", listed, flags=re.MULTILINE)[1:]
    return {
        f"{prefix}{name}": " ".join(said.split()).replace("|", "\\|")
        for name, said in zip(found[::2], found[1::2], strict=True)
    }


def main(arguments: list[str]) -> int:
    """Write the document, or compare it."""
    if "--check" in arguments:
        return int(DOCUMENT.read_text(encoding="utf-8") != render())
    DOCUMENT.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
