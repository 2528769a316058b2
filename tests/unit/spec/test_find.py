"""Which spec file belongs to a module: first place that has one, nothing merged, nothing passed over."""

from __future__ import annotations

import pytest

from gradverify.errors import SpecError
from gradverify.model import shown_path
from gradverify.session.choosing import SpecLookup
from gradverify.spec.read import read_spec

ENTRY = "functions: {free: {inputs: {x: [2]}}}"


@pytest.fixture
def tree(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "specs").mkdir()
    return folder


def found(tree, *given):
    spec = SpecLookup(given, tree / "specs", ()).find(tree / "m.py")
    return spec and spec.shown_path


def test_no_spec(tree):
    assert found(tree) is None
    assert SpecLookup((), tree / "absent", ()).find(tree / "m.py") is None


def test_the_order_of_places(tree):
    (tree / "m.gradverify.yaml").write_text(f"module: m.py\n{ENTRY}")
    assert found(tree) == "m.gradverify.yaml"
    (tree / "specs" / "any.yml").write_text(f"module: ../m.py\n{ENTRY}")
    assert found(tree) == "specs/any.yml"
    (tree / "given.txt").write_text(f"module: m.py\n{ENTRY}")
    assert found(tree, tree / "given.txt") == "given.txt"
    (tree / "given.txt").write_text("functions: {'n.py::f': {skip: a}}")
    (tree / "n.py").write_text("def f(x): ...")
    assert found(tree, tree / "given.txt") == "specs/any.yml", (
        "a --spec of another module leaves this one alone"
    )


def test_yml_beside(tree):
    (tree / "m.gradverify.yml").write_text(f"module: m.py\n{ENTRY}")
    assert found(tree) == "m.gradverify.yml"


def test_a_spec_without_module_names_modules_in_its_keys(tree):
    (tree / "n.py").write_text("def f(x): ...")
    path = tree / "specs" / "two.yaml"
    path.write_text("functions: {'../m.py::free': {skip: a}, '../n.py::f': {skip: b}}")
    assert found(tree) == "specs/two.yaml"
    spec = read_spec(path, shown_path="two.yaml", known_codes=())
    assert [p.resolve() for p in spec.module_paths()] == [tree / "m.py", tree / "n.py"]
    assert [function.name for function in spec.functions_of(tree / "n.py")] == ["f"]


def test_a_dotted_module_is_compared_with_the_packages_around_the_file(tree):
    package = tree / "src" / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "mod.py").write_text("def free(x): ...")
    (tree / "specs" / "a.yaml").write_text(f"module: pkg.mod\n{ENTRY}")
    lookup = SpecLookup((), tree / "specs", ())
    assert lookup.find(package / "mod.py").shown_path == "specs/a.yaml"
    assert lookup.find(package / "__init__.py") is None
    assert lookup.find(tree / "m.py") is None


def test_two_files_of_one_place_are_never_merged(tree):
    for name in ("a.yaml", "b.yaml"):
        (tree / "specs" / name).write_text(f"module: ../m.py\n{ENTRY}")
    with pytest.raises(SpecError) as caught:
        found(tree)
    (problem,) = caught.value.problems
    assert (problem.location.file, problem.location.line, problem.location.column) == ("specs/b.yaml", 1, 9)
    assert problem.message == "specs/a.yaml names m.py as well, and spec files are never merged: keep one"


def test_a_file_beside_that_names_another_module(tree):
    (tree / "n.py").touch()
    (tree / "m.gradverify.yaml").write_text(f"module: n.py\n{ENTRY}")
    with pytest.raises(SpecError) as caught:
        found(tree)
    assert (
        caught.value.problems[0].message
        == "this file lies beside m.py and names `n.py`: name m.py, or move it"
    )


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "",
        "functions: {f: {skip: a}}",
        "module: 3",
        "gradverify: 1",
        "module: ../mm.py\nfunctions: {f: {skip: a}}",
    ],
)
def test_a_file_of_the_folder_that_cannot_be_reported_is_never_passed_over(tree, text):
    (tree / "specs" / "broken.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        found(tree)
    assert caught.value.problems[0].location.file == "specs/broken.yaml"


def test_foreign_yaml_and_other_files_are_passed_over(tree):
    (tree / "specs" / "openapi.yaml").write_text("openapi: 3.1.0\npaths: {}")
    (tree / "specs" / "list.yaml").write_text("[1, 2]")
    (tree / "specs" / "notes.md").write_text("a: [")
    (tree / "specs" / "folder.yaml").mkdir()
    assert found(tree) is None


def test_mistakes_in_a_spec_of_another_module_wait_for_it(tree):
    (tree / "n.py").touch()
    (tree / "specs" / "n.yaml").write_text("module: ../n.py\nfunctions: {g: {inputz: 3}}")
    assert found(tree) is None
    with pytest.raises(SpecError):
        SpecLookup((), tree / "specs", ()).find(tree / "n.py")


def test_given_specs_that_nobody_claims(tree):
    (tree / "n.py").touch()
    (tree / "one.yaml").write_text(f"module: m.py\n{ENTRY}")
    (tree / "two.yaml").write_text(f"module: n.py\n{ENTRY}")
    lookup = SpecLookup((tree / "one.yaml", tree / "two.yaml"), tree / "specs", ())
    assert lookup.unclaimed([tree / "m.py"]) == (tree / "two.yaml",)
    assert lookup.unclaimed([tree / "m.py", tree / "n.py"]) == ()


def test_a_given_spec_that_does_not_exist(tree):
    with pytest.raises(SpecError) as caught:
        found(tree, tree / "absent.yaml")
    assert caught.value.problems[0].message == "the spec file cannot be read: No such file or directory"


def test_paths_are_shown_relative_where_they_lie_below(tree, tmp_path_factory):
    assert shown_path(tree / "specs" / "a.yaml") == "specs/a.yaml"
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "a.yaml"
    assert shown_path(elsewhere) == elsewhere.as_posix()
