"""ARCHITECTURE.md names folders, files and functions; all of them must exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "cutwater"
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def defined_in(file: Path) -> set[str]:
    """The functions and classes of a module, and the methods as `Class.method`."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (
                statement for statement in node.body if isinstance(statement, ast.FunctionDef)
            )
            found.update(f"{node.name}.{method.name}" for method in methods)
    return found


def test_every_function_that_a_walk_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py): ([\w.]+)`", TEXT)

    missing = [
        f"{file}: {name}"
        for file, name in named
        if not (SOURCE / file).exists() or name not in defined_in(SOURCE / file)
    ]

    assert missing == []
    assert len(named) > 35


def test_every_package_is_in_the_tree() -> None:
    tree = TEXT.split("```text", 1)[1].split("```", 1)[0]
    packages = [path.parent.name for path in SOURCE.glob("*/__init__.py")]

    assert [name for name in sorted(packages) if f"{name}/" not in tree] == []
    assert len(packages) > 10
