"""House style, as far as a machine can check it: one test per rule, over all files at once.

A rule is a function from one file to its complaints, each `line: what is wrong`. A test reports the
complaints about all files together. The last tests give every rule a file that breaks it, so a rule
that no longer finds anything is noticed too.
"""

import ast
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
LINE_LENGTH_MAX = 100
PARAMETERS_MAX = 6
DOCSTRING_LINES_MIN = 2
TEST_NAME_WORDS_MIN = 3
FOLDER_MODULES_MAX = 15

CROWDED_FOLDERS = {
    "src/cutwater/testing/simulation": (18, "one module per part of the simulated world"),
}
"""Folders with more modules than the limit: how many each may have, and why."""

BANNED_WORDS = frozenset({"helper", "helpers", "impl", "manager", "managers", "util", "utils"})

PURE_STDLIB = frozenset(
    {
        "__future__",
        "bisect",
        "collections",
        "collections.abc",
        "dataclasses",
        "enum",
        "functools",
        "hashlib",
        "heapq",
        "itertools",
        "operator",
        "struct",
        "types",
        "typing",
        "zlib",
    }
)
PURE_SIBLINGS = frozenset({"cutwater.errors", "cutwater.ids", "cutwater.protocol"})
IMPURE_BUILTINS = frozenset(
    {"__import__", "breakpoint", "eval", "exec", "hash", "id", "input", "open", "print"}
)

# Each pattern is spelled so that it does not match its own source.
BANNED_TEXT = {
    "a path of one machine": re.compile(r"(?<![\w.~-])/(?:[w]ork|[r]oot|[h]ome)/"),
    "the address of a package registry": re.compile(
        r"[p]ypi\.|[p]ythonhosted|[a]naconda\.(?:org|com)|[r]egistry\.npmjs"
        r"|[-]-(?:extra-)?index-url|[-]-find-links|[m]aven\.org|[m]aven2/"
    ),
    "a note to self": re.compile(r"\b(?:[T]ODO|[F]IXME|[X]XX)\b"),
}

LISTING_MODULE = "src/cutwater/store/backends/directories.py"
"""The one module that may ask a file system in ways that hide errors, because it does not."""

HIDES_ERRORS = frozenset({"glob", "rglob", "rmtree"})
TAKES_ERRORS_FOR_ABSENCE = frozenset({"exists", "is_dir", "is_file", "is_symlink"})
OF_OS_PATH = frozenset({"exists", "isdir", "isfile", "islink", "lexists"})

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class PythonFile:
    """One Python file, by its path in the repository (always with forward slashes)."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.path)

    @property
    def is_source(self) -> bool:
        return self.path.startswith("src/")

    @property
    def is_package_root(self) -> bool:
        return self.path.endswith("/__init__.py")

    @property
    def package(self) -> str:
        """The package the file is in; for an `__init__.py`, the package it is."""
        return ".".join(Path(self.path).parts[1:-1])

    def functions(self) -> Iterator[FunctionNode]:
        for node in ast.walk(self.tree):
            if isinstance(node, FunctionNode):
                yield node


Rule = Callable[[PythonFile], Iterable[str]]


def module_too_long(file: PythonFile) -> Iterator[str]:
    lines = len(file.text.splitlines())
    if lines > MODULE_LINES_MAX:
        yield f"{lines}: {lines} lines, at most {MODULE_LINES_MAX} allowed"


def function_too_long(file: PythonFile) -> Iterator[str]:
    for function in file.functions():
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield (
                f"{function.lineno}: {function.name} has {lines} lines, "
                f"at most {FUNCTION_LINES_MAX} allowed"
            )


def line_too_long(file: PythonFile) -> Iterator[str]:
    for number, line in enumerate(file.text.splitlines(), start=1):
        if len(line) > LINE_LENGTH_MAX:
            yield f"{number}: {len(line)} characters, at most {LINE_LENGTH_MAX} allowed"


def too_many_parameters(file: PythonFile) -> Iterator[str]:
    for function in file.functions():
        given = function.args
        named = [*given.posonlyargs, *given.args]
        if named and named[0].arg in {"self", "cls"}:
            named = named[1:]
        rest = [argument for argument in (given.vararg, given.kwarg) if argument]
        count = len(named) + len(given.kwonlyargs) + len(rest)
        if count > PARAMETERS_MAX:
            yield (
                f"{function.lineno}: {function.name} takes {count} parameters, "
                f"at most {PARAMETERS_MAX} allowed"
            )


def package_root_does_work(file: PythonFile) -> Iterator[str]:
    for node in file.tree.body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        listing = isinstance(node, ast.Assign | ast.AnnAssign) and assigned(node) == ["__all__"]
        if not (docstring or listing or isinstance(node, ast.Import | ast.ImportFrom)):
            yield f"{node.lineno}: an __init__.py holds a docstring, imports and __all__ only"


def outside_of_packages(file: PythonFile) -> Iterator[str]:
    if not (ROOT / file.path).with_name("__init__.py").is_file():
        yield "1: its folder has no __init__.py, so no import contract sees it"


def module_docstring_too_short(file: PythonFile) -> Iterator[str]:
    lines = [line for line in (ast.get_docstring(file.tree) or "").splitlines() if line.strip()]
    if len(lines) < DOCSTRING_LINES_MIN:
        yield f"1: the module's docstring needs at least {DOCSTRING_LINES_MIN} lines of text"


def contract_undocumented(file: PythonFile) -> Iterator[str]:
    """Find exported names and ports, and their public methods, that have no docstring."""
    for node in file.tree.body:
        if not isinstance(node, FunctionNode | ast.ClassDef):
            continue
        if is_port(node) or (file.path, node.name) in exported():
            for part in [node, *public_methods(node)]:
                if not ast.get_docstring(part):
                    yield f"{part.lineno}: {part.name} is part of a contract, and has no docstring"


def banned_word_in_name(file: PythonFile) -> Iterator[str]:
    named = [(1, part) for part in Path(file.path).with_suffix("").parts]
    named += [
        (node.lineno, node.name)
        for node in ast.walk(file.tree)
        if isinstance(node, FunctionNode | ast.ClassDef)
    ]
    for line, name in named:
        for word in sorted(BANNED_WORDS.intersection(words_of(name))):
            yield f"{line}: the name {name} says '{word}', which says nothing"


def listing_incomplete(file: PythonFile) -> Iterator[str]:
    """Compare `__all__` with the public names; ruff (RUF022) keeps it sorted."""
    listing = next((node for node in file.tree.body if assigned(node) == ["__all__"]), None)
    if listing is None:
        return
    assert isinstance(listing, ast.Assign | ast.AnnAssign)
    try:
        listed = list(ast.literal_eval(listing.value) if listing.value else ())
    except ValueError:
        yield f"{listing.lineno}: __all__ must be a plain list of strings"
        return
    defined = set(top_level_names(file, with_imports=file.is_package_root))
    reachable = set(top_level_names(file, with_imports=True))
    for name in sorted(set(listed) - reachable):
        yield f"{listing.lineno}: __all__ lists {name}, which is not defined"
    for name in sorted(name for name in defined - set(listed) if not name.startswith("_")):
        yield f"{listing.lineno}: __all__ lacks {name}"
    if len(listed) != len(set(listed)):
        yield f"{listing.lineno}: __all__ lists a name twice"


def protocol_impure(file: PythonFile) -> Iterator[str]:
    for node in ast.walk(file.tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                for module in imported_modules(node, file.package):
                    if not is_pure(module):
                        yield f"{node.lineno}: the protocol may not import {module}"
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                yield f"{node.lineno}: the protocol may not call {name}()"


def vague_test_name(file: PythonFile) -> Iterator[str]:
    for function in file.functions():
        words = words_of(function.name.removeprefix("test_"))
        if function.name.startswith("test_") and len(words) < TEST_NAME_WORDS_MIN:
            yield f"{function.lineno}: {function.name} does not say what should hold"


def failed_look_hidden(file: PythonFile) -> Iterator[str]:
    """Find calls that answer "not there" when a file system does not answer."""
    if file.path == LISTING_MODULE:
        return
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import) and any(alias.name == "glob" for alias in node.names):
            yield f"{node.lineno}: imports glob; use cutwater.store.backends.directories"
        if isinstance(node, ast.Attribute):
            hidden = hides_errors(node)
            if hidden:
                yield f"{node.lineno}: {hidden} hides errors; use store.backends.directories"
        if isinstance(node, ast.Call):
            yield from (f"{node.lineno}: {what}" for what in takes_errors_for_absence(node))


def takes_errors_for_absence(call: ast.Call) -> Iterator[str]:
    told = any(keyword.arg == "onerror" for keyword in call.keywords)
    if ast.unparse(call.func) == "os.walk" and not told:
        yield "os.walk without onerror passes over what it cannot list"
    asked = call.func
    if call.args or call.keywords or not isinstance(asked, ast.Attribute):
        return
    # An entry of a listing answers from the listing.
    if asked.attr in TAKES_ERRORS_FOR_ABSENCE and ast.unparse(asked.value) != "entry":
        yield f"{asked.attr}() takes errors for absence; use cutwater.store.backends.directories"


def hides_errors(node: ast.Attribute) -> str | None:
    """Name a function that hides errors from every caller; None for any other."""
    name = ast.unparse(node)
    if node.attr in HIDES_ERRORS or name in {f"os.path.{text}" for text in OF_OS_PATH}:
        return name
    return None


def crowded_folders(
    names: Iterable[str], exceptions: Mapping[str, tuple[int, str]]
) -> Iterator[str]:
    """Find folders with too many modules, and exceptions that are not needed any more."""
    modules = [Path(name) for name in names if not name.endswith("/__init__.py")]
    counts = Counter(module.parent.as_posix() for module in modules)
    for folder, count in sorted(counts.items()):
        most, _ = exceptions.get(folder, (FOLDER_MODULES_MAX, ""))
        if count > most:
            yield f"{folder}: {count} modules, at most {most} allowed"
    for folder, (most, _) in sorted(exceptions.items()):
        needed = max(counts[folder], FOLDER_MODULES_MAX)
        if most > needed or needed == FOLDER_MODULES_MAX:
            yield f"{folder}: {counts[folder]} modules, its exception allows {most}; lower it"


def is_port(node: FunctionNode | ast.ClassDef) -> bool:
    """Say whether a class is a contract that others fulfil."""
    bases = node.bases if isinstance(node, ast.ClassDef) else []
    names = {ast.unparse(base).partition("[")[0] for base in bases}
    return bool({"ABC", "Protocol"} & names) and not node.name.startswith("_")


def public_methods(node: FunctionNode | ast.ClassDef) -> Iterator[FunctionNode]:
    """Find the methods of a class that are more than another signature of one that follows."""
    for part in node.body if isinstance(node, ast.ClassDef) else []:
        if not isinstance(part, FunctionNode) or part.name.startswith("_"):
            continue
        if not any(ast.unparse(one) == "overload" for one in part.decorator_list):
            yield part


@cache
def exported() -> frozenset[tuple[str, str]]:
    """What users import, as the file that defines it and the name there."""
    names: set[tuple[str, str]] = set()
    for path in SOURCE:
        for node in load(path).tree.body:
            if isinstance(node, ast.Assign) and assigned(node) == ["__all__"]:
                names |= {(path, name) for name in ast.literal_eval(node.value)}
            if path in PACKAGE_ROOTS and isinstance(node, ast.ImportFrom) and node.module:
                defined = f"src/{node.module.replace('.', '/')}.py"
                names |= {(defined, alias.name) for alias in node.names}
    return frozenset(names)


def words_of(name: str) -> list[str]:
    """Split a snake_case or CamelCase name into lower-case words."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def assigned(node: ast.stmt) -> list[str]:
    """The plain names that a statement assigns, with or without an annotation."""
    match node:
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case _:
            return []


def top_level_names(file: PythonFile, *, with_imports: bool) -> Iterator[str]:
    for node in file.tree.body:
        yield from assigned(node)
        if isinstance(node, FunctionNode | ast.ClassDef):
            yield node.name
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if with_imports and not future and isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)


def imported_modules(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """What a statement imports; `from a import b` counts as `a` where that is pure, else `a.b`."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=name, names=names, level=level):
            parts = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            module = ".".join([*parts, *([name] if name else [])])
            if is_pure(module):
                yield module
            else:
                yield from (f"{module}.{alias.name}" for alias in names)


def is_pure(module: str) -> bool:
    return module in PURE_STDLIB | PURE_SIBLINGS or module.startswith("cutwater.protocol.")


def complaints(rule: Rule, file: PythonFile) -> str:
    """One line per complaint, in the form that editors and terminals make clickable."""
    return "\n".join(f"{file.path}:{complaint}" for complaint in rule(file))


def text_complaints(path: str, text: str) -> str:
    return "\n".join(
        f"{path}:{number}: holds {what}"
        for number, line in enumerate(text.splitlines(), start=1)
        for what, pattern in BANNED_TEXT.items()
        if pattern.search(line)
    )


def repository_files() -> list[str]:
    """All files that are, or with the next commit may be, part of the repository.

    Outside a git checkout (an unpacked archive) every file counts except those in the
    environment, in caches and in build output.
    """
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    skipped = {".coverage", ".hypothesis", ".venv", "__pycache__", "build", "dist", "htmlcov"}
    try:
        if not (ROOT / ".git").exists():
            raise FileNotFoundError(ROOT / ".git")
        listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True)
        found = listed.stdout.split("\0")
    except (FileNotFoundError, subprocess.CalledProcessError):
        found = [
            path.relative_to(ROOT).as_posix()
            for path in ROOT.rglob("*")
            if not skipped.intersection(path.relative_to(ROOT).parts)
            and not any(part.endswith(("_cache", ".egg-info")) for part in path.parts)
            and not any(part.startswith(".venv-") for part in path.parts)
        ]
    return sorted(name for name in set(found) if name and (ROOT / name).is_file())


FILES = repository_files()
PYTHON = [name for name in FILES if name.endswith(".py")]
CODE = [name for name in PYTHON if name.startswith(("src/", "tests/", "benchmarks/"))]
SOURCE = [name for name in CODE if name.startswith("src/")]
PROTOCOL = [name for name in SOURCE if name.startswith("src/cutwater/protocol/")]
PACKAGE_ROOTS = [name for name in SOURCE if name.endswith("/__init__.py")]
TESTS = [name for name in CODE if name.startswith("tests/")]


@cache
def load(name: str) -> PythonFile:
    return PythonFile(name, (ROOT / name).read_text(encoding="utf-8"))


def check(rule: Rule, names: list[str]) -> None:
    """Fail with all complaints of a rule about these files; it must have files to look at."""
    assert names
    found = [complaint for name in names if (complaint := complaints(rule, load(name)))]
    assert not found, "\n" + "\n".join(found)


def test_a_source_module_is_short_enough_to_read_in_one_sitting() -> None:
    check(module_too_long, SOURCE)


def test_a_source_function_fits_on_one_screen() -> None:
    check(function_too_long, SOURCE)


def test_a_line_is_no_longer_than_the_limit() -> None:
    check(line_too_long, CODE)


def test_a_source_function_takes_few_parameters() -> None:
    check(too_many_parameters, SOURCE)


def test_a_package_root_only_re_exports() -> None:
    check(package_root_does_work, PACKAGE_ROOTS)


def test_a_source_module_is_in_a_package_that_the_import_contracts_see() -> None:
    check(outside_of_packages, SOURCE)


def test_a_source_module_says_what_it_is() -> None:
    check(module_docstring_too_short, SOURCE)


def test_an_exported_name_or_a_port_says_what_it_promises() -> None:
    assert len(exported()) > 10
    check(contract_undocumented, SOURCE)


def test_a_name_says_what_the_thing_does() -> None:
    check(banned_word_in_name, CODE)


def test_a_listing_of_public_names_is_complete() -> None:
    check(listing_incomplete, CODE)


def test_a_protocol_module_is_pure() -> None:
    check(protocol_impure, PROTOCOL)


def test_a_source_module_never_takes_unreadable_for_absent() -> None:
    check(failed_look_hidden, SOURCE)


def test_a_test_is_named_by_a_sentence() -> None:
    check(vague_test_name, TESTS)


def test_a_folder_of_the_source_holds_few_modules() -> None:
    found = list(crowded_folders(SOURCE, CROWDED_FOLDERS))
    assert not found, "\n" + "\n".join(found)


def test_a_text_file_names_no_machine_registry_or_note_to_self() -> None:
    assert FILES
    found = [
        complaint
        for name in FILES
        if b"\0" not in (content := (ROOT / name).read_bytes())
        and (complaint := text_complaints(name, content.decode("utf-8")))
    ]
    assert not found, "\n" + "\n".join(found)


def test_the_package_and_its_metadata_carry_the_same_version() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packaged = load("src/cutwater/_version.py").tree.body[-1]
    assert isinstance(packaged, ast.Assign)
    assert ast.literal_eval(packaged.value) == declared["project"]["version"]


MODULE = "src/cutwater/example.py"
PROTOCOL_MODULE = "src/cutwater/protocol/example.py"
PACKAGE_ROOT = "src/cutwater/example/__init__.py"

RULE_BREAKERS: list[tuple[Rule, str, str]] = [
    (module_too_long, MODULE, "x = 1\n" * (MODULE_LINES_MAX + 1)),
    (function_too_long, MODULE, "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
    (line_too_long, MODULE, "x = " + "1" * LINE_LENGTH_MAX),
    (too_many_parameters, MODULE, "def f(a, b, c, d, e, f, g): ..."),
    (too_many_parameters, MODULE, "class A:\n    def f(self, a, b, c, d, *e, f, **g): ..."),
    (package_root_does_work, PACKAGE_ROOT, "x = 1"),
    (package_root_does_work, PACKAGE_ROOT, "def f(): ..."),
    (outside_of_packages, "src/cutwater/no_package/example.py", "x = 1"),
    (module_docstring_too_short, MODULE, "x = 1"),
    (module_docstring_too_short, MODULE, '"""One line."""'),
    (contract_undocumented, MODULE, "class A(Protocol): ..."),
    (contract_undocumented, MODULE, "class A(Lock, Protocol[T]): ..."),
    (contract_undocumented, MODULE, 'class A(ABC):\n    """A."""\n    def f(self): ...'),
    (contract_undocumented, "src/cutwater/operations/fork.py", "def fork(): ..."),
    (banned_word_in_name, MODULE, "class BarrierManager: ..."),
    (banned_word_in_name, MODULE, "def append_helper(): ..."),
    (banned_word_in_name, "src/cutwater/utils.py", ""),
    (listing_incomplete, MODULE, "__all__ = []\ndef f(): ..."),
    (listing_incomplete, MODULE, "__all__ = ['f']"),
    (listing_incomplete, MODULE, "__all__ = ['f', 'f']\ndef f(): ..."),
    (listing_incomplete, MODULE, "__all__ = names()"),
    (listing_incomplete, PACKAGE_ROOT, "__all__ = []\nfrom cutwater.ids import Slot"),
    (protocol_impure, PROTOCOL_MODULE, "import time"),
    (protocol_impure, PROTOCOL_MODULE, "import os.path"),
    (protocol_impure, PROTOCOL_MODULE, "def f():\n    from threading import Lock"),
    (protocol_impure, PROTOCOL_MODULE, "from cutwater import store"),
    (protocol_impure, PROTOCOL_MODULE, "from cutwater.store.blobs.blobs import Blob"),
    (protocol_impure, PROTOCOL_MODULE, "from .. import store"),
    (protocol_impure, PROTOCOL_MODULE, "open('x')"),
    (failed_look_hidden, MODULE, "root.glob('*')"),
    (failed_look_hidden, MODULE, "found = sorted(root.rglob('*'))"),
    (failed_look_hidden, MODULE, "import glob"),
    (failed_look_hidden, MODULE, "shutil.rmtree(root, ignore_errors=True)"),
    (failed_look_hidden, MODULE, "atexit.register(shutil.rmtree, root)"),
    (failed_look_hidden, MODULE, "for a, b, c in os.walk(root): ..."),
    (failed_look_hidden, MODULE, "if (root / 'x').exists(): ..."),
    (failed_look_hidden, MODULE, "path.is_file()"),
    (failed_look_hidden, MODULE, "not one.is_dir()"),
    (failed_look_hidden, MODULE, "os.path.isfile(name)"),
    (vague_test_name, "tests/unit/test_x.py", "def test_barrier(): ..."),
]

RULE_KEEPERS: list[tuple[Rule, str, str]] = [
    (function_too_long, MODULE, "def f():\n" + "    x = 1\n" * (FUNCTION_LINES_MAX - 1)),
    (too_many_parameters, MODULE, "class A:\n    def f(self, a, b, c, d, *e, f): ..."),
    (package_root_does_work, PACKAGE_ROOT, '"""Doc."""\nfrom a import b\n__all__ = ["b"]'),
    (outside_of_packages, MODULE, "x = 1"),
    (contract_undocumented, MODULE, 'class A(Protocol):\n    """A."""\n    def _f(self): ...'),
    (contract_undocumented, MODULE, "class A:\n    def f(self): ...\ndef fork(): ..."),
    (contract_undocumented, MODULE, "class _A(Protocol): ..."),
    (banned_word_in_name, MODULE, "class SimpleTimplement: ..."),
    (listing_incomplete, MODULE, "__all__ = ['f']\nimport a\ndef f(): ...\ndef _g(): ..."),
    (listing_incomplete, MODULE, "def f(): ..."),
    (protocol_impure, PROTOCOL_MODULE, "from collections import abc, deque"),
    (protocol_impure, PROTOCOL_MODULE, "from cutwater import errors, ids"),
    (protocol_impure, PROTOCOL_MODULE, "from . import barrier\nfrom .barrier import Barrier"),
    (failed_look_hidden, LISTING_MODULE, "shutil.rmtree(root, ignore_errors=True)"),
    (failed_look_hidden, MODULE, "exists(root)\nbackend.exists(path)\nroot.iterdir()"),
    (failed_look_hidden, MODULE, "entry.is_dir()\nos.walk(root, onerror=fail)\nplan.walk()"),
    (vague_test_name, "tests/unit/test_x.py", "def test_a_barrier_is_held(): ..."),
]


@pytest.mark.parametrize(("rule", "path", "text"), RULE_BREAKERS)
def test_a_rule_complains_about_a_file_that_breaks_it(rule: Rule, path: str, text: str) -> None:
    assert complaints(rule, PythonFile(path, text))


@pytest.mark.parametrize(("rule", "path", "text"), RULE_KEEPERS)
def test_a_rule_is_silent_about_a_file_that_keeps_it(rule: Rule, path: str, text: str) -> None:
    assert not complaints(rule, PythonFile(path, text))


def test_the_complaints_about_all_files_are_reported_together() -> None:
    with pytest.raises(AssertionError) as caught:
        check(lambda _: ["1: is wrong"], SOURCE[:2])

    assert [name for name in SOURCE[:2] if f"{name}:1: is wrong" not in str(caught.value)] == []


def test_a_rule_without_files_to_look_at_fails() -> None:
    with pytest.raises(AssertionError):
        check(line_too_long, [])


MODULES = [f"src/cutwater/full/m{number}.py" for number in range(FOLDER_MODULES_MAX)]
ROOT_OF_MODULES = "src/cutwater/full/__init__.py"


@pytest.mark.parametrize(
    ("names", "exceptions"),
    [
        ([*MODULES, "src/cutwater/full/more.py"], {}),
        ([*MODULES, "src/cutwater/full/more.py"], {"src/cutwater/full": (17, "too high")}),
        (MODULES, {"src/cutwater/full": (16, "no longer needed")}),
        (MODULES, {"src/cutwater/gone": (16, "no longer there")}),
    ],
)
def test_a_crowded_folder_and_a_needless_exception_are_found(
    names: list[str], exceptions: dict[str, tuple[int, str]]
) -> None:
    assert list(crowded_folders(names, exceptions))


def test_a_folder_within_its_limit_is_not_called_crowded() -> None:
    more = [*MODULES, ROOT_OF_MODULES, "src/cutwater/full/more.py", "src/cutwater/full/in/m.py"]

    assert not list(crowded_folders([*MODULES, ROOT_OF_MODULES], {}))
    assert not list(crowded_folders(more, {"src/cutwater/full": (16, "a reason")}))


@pytest.mark.parametrize(
    "line",
    [
        "cd " + "/ho" + "me/someone/project",
        "pip install --index" + "-url somewhere",
        "https://py" + "pi.example/simple",
        "# TO" + "DO later",
    ],
)
def test_banned_text_is_found_in_a_line(line: str) -> None:
    assert text_complaints("notes.md", line)


@pytest.mark.parametrize("line", ["docs/home/index.md", "the work/life balance", "a rooted tree"])
def test_harmless_text_is_not_mistaken_for_banned_text(line: str) -> None:
    assert not text_complaints("notes.md", line)
