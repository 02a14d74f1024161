"""The spec of a project: fields, globs and their problems, with the rules of `spark-pipelines`."""

import sys
from pathlib import Path

import pytest

from cutwater.declarative.spec import definition_files, find_spec, names_project, read_spec
from cutwater.errors import ConfigError, PlanError

MINIMAL = "name: shop\nstorage: file:///storage\n"


def spec_file(directory: Path, text: str, name: str = "spark-pipeline.yml") -> Path:
    file = directory / name
    file.write_text(text, encoding="utf-8")
    return file


def problems_of(directory: Path, text: str) -> list[str]:
    file = spec_file(directory, text)
    with pytest.raises(PlanError) as refused:
        read_spec(file)
    return [problem.removeprefix(f"{file}:") for problem in refused.value.problems]


def test_a_spec_has_the_fields_of_spark_pipelines(tmp_path: Path) -> None:
    text = MINIMAL + (
        "catalog: spark_catalog\nschema: sales\nconfiguration: {a.b: 'c'}\n"
        "libraries: [{glob: {include: a/**}}, {glob: {include: b.py}}]\n"
    )

    spec = read_spec(spec_file(tmp_path, text))

    assert (spec.name, spec.storage, spec.catalog) == ("shop", "file:///storage", "spark_catalog")
    assert (spec.database, spec.configuration) == ("sales", {"a.b": "c"})
    assert spec.libraries == ("a/**", "b.py")
    assert str(spec.place("schema")) == f"{tmp_path}/spark-pipeline.yml:4"


def test_parameters_replace_the_catalog_and_the_database(tmp_path: Path) -> None:
    spec = read_spec(spec_file(tmp_path, MINIMAL + "database: sales\n"), {"database": "trial"})

    assert (spec.catalog, spec.database) == (None, "trial")


def test_all_problems_of_a_spec_are_reported_with_their_lines(tmp_path: Path) -> None:
    text = "storage: 3\nbase: x\nconfiguration: {a: 1}\nlibraries: [{glob: {include: a/*.py}}, b]\n"

    assert problems_of(tmp_path, text) == [
        "2: a spec has no field base; it has catalog, configuration, database, libraries, name, "
        "schema, storage",
        "1: a spec needs the field name",
        "1: storage is 3, not a text; put it in quotes",
        "3: configuration has a: 1; put name and value in quotes",
        "4: glob a/*.py: a glob is a file, or a directory that ends in /**",
        "4: libraries has 'b', which is not of the form `glob: {include: …}`",
    ]


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("configuration: x", "3: configuration is 'x', not settings by name"),
        ("libraries: x", "3: libraries is no list of `- glob: {include: …}`"),
        (
            "libraries: [{glob: {include: /a/**}}]",
            "3: glob /a/**: a glob is relative to the directory of the spec",
        ),
    ],
)
def test_a_field_of_another_form_is_refused(tmp_path: Path, field: str, problem: str) -> None:
    assert problems_of(tmp_path, MINIMAL + field) == [problem]


@pytest.mark.parametrize("text", ["a: [", "just a text"])
def test_a_file_that_is_no_spec_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="is no"):
        read_spec(spec_file(tmp_path, text))


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)

    with pytest.raises(ConfigError, match=r"pip install 'cutwater\[declarative\]'"):
        read_spec(spec_file(tmp_path, MINIMAL))


def test_a_project_is_a_yaml_file_or_a_directory_with_a_spec(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, MINIMAL)
    other = tmp_path / "other"
    other.mkdir()

    assert names_project(spec)
    assert names_project(tmp_path)
    assert names_project(Path("nowhere.yaml"))
    assert not names_project(other)
    assert not names_project(Path("orders.py"))
    assert find_spec(tmp_path) == find_spec(spec) == spec


def test_a_directory_with_two_specs_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    spec_file(tmp_path, MINIMAL)
    spec_file(tmp_path, MINIMAL, "spark-pipeline.yaml")

    with pytest.raises(ConfigError, match="name one of them"):
        find_spec(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        find_spec(tmp_path / "none.yml")


def test_globs_match_a_file_or_everything_below_a_directory(tmp_path: Path) -> None:
    for name in ("a/b/two.sql", "a/one.py", "a/__pycache__/one.pyc", "c.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    text = MINIMAL + "libraries: [{glob: {include: a/**}}, {glob: {include: c.py}}]\n"
    spec = read_spec(spec_file(tmp_path, text))

    found = definition_files(spec)

    assert [str(file.relative_to(tmp_path)) for file in found] == [
        "a/b/two.sql",
        "a/one.py",
        "c.py",
    ]


def test_a_glob_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    text = MINIMAL + "libraries: [{glob: {include: gone/**}}, {glob: {include: gone.py}}]\n"
    spec = read_spec(spec_file(tmp_path, text))

    with pytest.raises(PlanError) as refused:
        definition_files(spec)

    assert [problem.rsplit(": ", 1)[1] for problem in refused.value.problems] == [
        "glob gone/** matches no file",
        "glob gone.py matches no file",
    ]
