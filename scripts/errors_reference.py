"""Write the reference of all errors from their classes, as one document.

python scripts/errors_reference.py            write docs/reference/errors.md
python scripts/errors_reference.py --check    fail if that file is not what would be written
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cutwater import errors
from cutwater.cli.output import exit_code
from cutwater.errors import CutwaterError

ROOT: Final = Path(__file__).resolve().parents[1]
DOCUMENT: Final = ROOT / "docs" / "reference" / "errors.md"

_HEADER: Final = """\
# Errors

Written by `scripts/errors_reference.py` from `src/cutwater/errors.py`; change a class, run
the script, and commit both.

Every error is one sentence with a code, the thing it is about, the reason, and what to do next.
With `--output json` it is `{"error": {"code", "message", "next_step", "exit_code"}}` on stdout.
The trace behind it is shown by the option `--debug`. Codes do not change. [Exit
codes](exit-codes.md) are fewer: they say who has to act.

`CW-000` is an error that Cutwater does not expect: please report it with what `--debug` shows. It
exits with 1.
"""


def classes() -> Iterator[type[CutwaterError]]:
    """Return all kinds of errors, by their codes."""
    found = {getattr(errors, name) for name in errors.__all__} - {CutwaterError}
    yield from sorted(found, key=lambda kind: kind.code)


def render() -> str:
    """Return the document."""
    return "\n".join([_HEADER, *(_section(class_name) for class_name in classes())])


def _section(kind: type[CutwaterError]) -> str:
    said, _, rest = (kind.__doc__ or "").partition("\n")
    lines = [f"## {kind.code} {kind.__name__}", "", said.strip()]
    prose = rest.partition("Attributes:")[0].strip()
    if prose:
        lines += ["", " ".join(prose.split())]
    facts = [f"Exit code {_exit_code(kind)}."]
    if kind.retryable:
        facts.append("The same call may succeed later without any change.")
    if kind.next_step:
        facts.append(f"Next: {kind.next_step}")
    return "\n".join([*lines, "", " ".join(facts), ""])


def _exit_code(kind: type[CutwaterError]) -> int:
    """Return the exit code of a kind; which it is depends on the class alone."""
    return exit_code(kind.__new__(kind))


def main(arguments: list[str]) -> int:
    """Write the document, or compare it."""
    if "--check" in arguments:
        return int(DOCUMENT.read_text(encoding="utf-8") != render())
    DOCUMENT.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
