"""What is asked for and is not there: a sentence with the nearest name, exit code 2, mostly without torch."""

import json
import os
import subprocess
import sys

import forked_command
import pytest

from gradverify.spec.schema import json_schema

MISTAKES = [
    (["check"], "nothing to check: name a module"),
    (["check", "rigth.py"], "there is no file `rigth.py`; did you mean `right.py`?"),
    (["check", "nowhere/right.py"], "there is no folder `nowhere`"),
    (["check", ".::Product"], "`.` is a folder: write ::Product behind one of its modules"),
    (["check", "rigth"], "`rigth` is neither a file or folder nor a module that can be found; did you mean"),
    (["check", "rigth.gradverify.yaml"], "there is no file `rigth.gradverify.yaml`; did you mean `right.gra"),
    (["check", "right.gradverify.yaml::Prodcut"], "has no function `Prodcut`; did you mean `Product`?"),
    (
        ["check", "right.py", "--dtype", "bfloat"],
        "--dtype: there is no dtype 'bfloat' to judge in; did you mean bf",
    ),
    (["check", "right.py", "--in-process", "--memory", "9"], "--memory needs a process of its own"),
    (["check", "right.py", "--exclude", ""], "--exclude: `` is no pattern"),
    (["check", "notes.txt"], "is not a Python module"),
    (["check", "book.ipynb"], "`book.ipynb` is a notebook"),
    (["check", "link.py"], "`link.py` is a link to `gone.py`, which is not there"),
    (["check", "right.py::Prodcut"], "right.py has no target `Prodcut`; did you mean `Product`?"),
    (["list", "right.py::prodcut"], "right.py has no target `prodcut`; did you mean `Product`?"),
    (["check", "right.py:Product"], "write the name after two colons: `right.py::Product`"),
    (["init", "bare"], "`bare/` has no module that defines a torch.autograd.Function"),
    (["check", "right.py::"], "is not a target"),
    (
        ["check", "right.py", "--select", "GV11x"],
        "--select: no code starts with `GV11x`; did you mean `GV110`?",
    ),
    (["check", "right.py", "--ignore", ""], "--ignore: no code starts with ``"),
    (["check", "right.py", "--seed", "1.5"], "--seed: `1.5` is neither"),
    (["check", "right.py", "--seed=-1"], "--seed: `-1` is neither"),
    (["check", "right.py", "--seed", "9" * 5000], "is neither"),
    (["check", "right.py", "--device", "tpu"], "--device: `tpu` is not supported"),
    (["check", "right.py", "--device", "cuda:x"], "--device: `cuda:x` is not supported"),
    (["check", "right.py", "--rtol", "nan"], "--rtol: nan is not between 0 and 1"),
    (["check", "right.py", "--atol", "-1"], "--atol: -1 is not between 0 and 1"),
    (["check", "right.py", "--timeout", "0"], "--timeout: 0 is not a number of seconds"),
    (["check", "right.py", "--timeout", "inf"], "--timeout: inf is not a number of seconds"),
    (["check", "right.py", "--timeout", "soon"], "Input should be a valid number"),
    (["check", "right.py", "-k", "a and"], "-k: `a and` is not an expression"),
    (["check", "right.py", "-k", "right and (a b)"], "is not an expression"),
    (["check", "right.py", "--spec", "none.yaml"], "there is no file `none.yaml`"),
    (["check", "right.py", "--spec", "."], "there is no file `.`"),
    (["check", "right.py", "--spec", "wrong.gradverify.yaml"], "names none of the modules"),
    (["check", "right.py", "--format", "xml"], "'xml' is not one of"),
    (["check", "right.py", "--frobnicate"], "No such option: --frobnicate"),
    (["explain", "GV11"], "there is no code 'GV11'"),
    (["chekc"], "No such command 'chekc'"),
]


@pytest.fixture(scope="module")
def here(place):
    here = place("screens")
    (here.folder / "notes.txt").write_text("not Python\n")
    (here.folder / "book.ipynb").write_text("{}\n")
    (here.folder / "link.py").symlink_to("gone.py")
    (here.folder / "bare").mkdir()
    (here.folder / "nothing.py").write_text("x = 1\n")
    poison = here.folder / "poison" / "torch"
    poison.mkdir(parents=True)
    (poison / "__init__.py").write_text("raise ImportError('poisoned')\n")
    return here


@pytest.fixture(scope="module")
def without_torch(here):
    """The command, forked from a process in which torch cannot be imported, and is not."""
    environment = forked_command.plain_environment(PYTHONPATH=str(here.folder / "poison"))
    with forked_command.ForkServer(environment, has_torch=False) as server:
        yield lambda *arguments: server.run("command", arguments, here.folder, environment)


@pytest.mark.parametrize(
    ("arguments", "words"),
    MISTAKES,
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_mistake(without_torch, arguments, words):
    ran = without_torch(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in " ".join(ran.err.split())
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["check", "--help"], ["explain", "GV101"], ["rules"], ["--version"]],
    ids=" ".join,
)
def test_needs_no_torch(without_torch, arguments):
    ran = without_torch(*arguments)
    assert (ran.code, ran.err) == (0, "")


def test_spec_error_needs_no_torch(without_torch):
    ran = without_torch("check", "right.py", "--spec", "mistaken.yaml")
    assert ran.code == 2
    assert "2 errors in 1 spec file" in ran.err


def test_torch_that_cannot_be_imported(here):
    """The poison works: what needs torch does notice it, and says so in a sentence."""
    ran = here("check", "right.py", PYTHONPATH=str(here.folder / "poison"))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "gradverify: PyTorch cannot be imported: the process exited with code 1: ImportError: poisoned\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "right.py::Product[n=9]"], "right.py::Product has no case [n=9]; its cases: [n=3]"),
        (["check", "right.py", "--device", "cuda:97"], "--device cuda:97: no such device here"),
    ],
    ids=["case", "device"],
)
def test_mistake_that_torch_must_tell(here, arguments, words):
    ran = here(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


def test_keyword_that_matches_nothing(here):
    ran = here("check", "right.py", "-k", "nothing_like_it")
    assert (ran.code, ran.err) == (5, "")
    assert "not selected by -k nothing_like_it" in ran.out


def test_specs_folder(here):
    folder = here.folder / "specs"
    folder.mkdir()
    try:
        (folder / "others.yaml").write_text("openapi: 3.1.0\n")
        (folder / "right.yaml").write_text(
            "gradverify: 1\nmodule: ../right.py\nfunctions:\n  Product: {inputs: {a: [7], b: [7]}}\n"
        )
        ran = here("list", "right.py::Product")
    finally:
        (folder / "right.yaml").unlink()
        (folder / "others.yaml").unlink()
        folder.rmdir()
    assert ran.code == 0
    assert "specs/right.yaml" in ran.out


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_file_that_may_not_be_read(here):
    file = here.folder / "secret.py"
    file.write_text("")
    file.chmod(0)
    ran = here("check", "secret.py")
    assert ran.code == 2
    assert "secret.py:1: cannot be read: Permission denied" in ran.out


def test_a_folder_with_a_module_named_as_one_of_ours(place, tmp_path):
    """`python -m` puts the current folder on the path; what lies there is no part of gradverify."""
    (tmp_path / "random.py").write_text("raise SystemExit('taken for the real one')\n")
    ran = subprocess.run(
        [sys.executable, "-m", "gradverify", "rules"],
        cwd=tmp_path,
        capture_output=True,
        timeout=900,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_folder_without_inference(here):
    """One run: a folder's modules, the ones left out, and what no spec names is unchecked."""
    folder = here.folder / "lib"
    folder.mkdir()
    for name in ("right.py", "broken.py", "right.gradverify.yaml"):
        (folder / name).write_text((here.folder / name).read_text())
    (folder / "bare.py").write_text((here.folder / "right.py").read_text())
    ran = here("check", "lib", "--no-infer", "-k", "Product")
    assert (ran.code, ran.err) == (1, "")
    assert "lib/bare.py  1 function" in ran.out
    assert "unchecked" in ran.out
    assert "no spec names it (--no-infer)" in ran.out
    assert "2 functions: 1 passed, 1 unchecked" in ran.out
    assert "broken.py" not in ran.out


def test_folder_without_a_function(here):
    (here.folder / "empty" / "below").mkdir(parents=True)
    ran = here("check", "empty")
    assert (ran.code, ran.err) == (5, "")
    assert "empty/: no function to check" in ran.out


def test_schema(without_torch):
    ran = without_torch("schema")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out) == json_schema()


def test_init_says_that_there_is_nothing_to_write_and_where_a_module_cannot_be_imported(here):
    ran = here("init", "nothing.py")
    assert (ran.code, ran.out) == (2, "")
    assert "nothing.py defines no torch.autograd.Function" in ran.err
    (here.folder / "half.py").write_text("x = 1\nclass (\n")
    assert "half.py:2: cannot be imported: SyntaxError" in here("init", "half.py").err


def test_a_spec_as_target_checks_what_it_names_and_says_what_it_does_not(place):
    here = place("screens")
    (here.folder / "some.yaml").write_text(
        "gradverify: 1\nmodule: wrong.py\nfunctions: {Product: {skip: not today}}\n"
    )
    ran = here("check", "some.yaml")
    assert ran.code == 0, ran.out
    assert "1 function: 1 skipped" in ran.out
    assert "Not named in some.yaml, so not checked: " in ran.out
    assert "`gradverify check wrong.py` checks all of the module" in " ".join(ran.out.split())
    document = json.loads(here("check", "some.yaml", "--format", "json").out)
    assert [t["name"] for t in document["targets"]] == ["Product"]
    assert document["not_named"][0]["spec"] == "some.yaml"
    assert document["not_named"][0]["targets"]
    assert "not named" not in here("list", "wrong.py", "some.yaml").out


REFERENCES = "def twice(x):\n    return 2 * x\n"
REFERRING = "module: {}\nfunctions: {{Double: {{inputs: {{x: [n]}}, reference: 'refs:twice'}}}}\n"
DOUBLE = """\
from torch.autograd import Function

class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
"""


@pytest.mark.parametrize("where", ["specs", "."])
def test_a_reference_beside_the_spec_or_one_folder_above(place, where):
    folder = place("screens").folder / f"project_{len(where)}"
    for part in ("src", "specs"):
        (folder / part).mkdir(parents=True)
    (folder / "src" / "double.py").write_text(DOUBLE)
    (folder / where / "refs.py").write_text(REFERENCES)
    (folder / "specs" / "double.yaml").write_text(REFERRING.format("../src/double.py"))
    here = type(place("screens"))(folder)
    ran = here("check", "src/double.py", "--spec", "specs/double.yaml")
    assert (ran.code, "1 passed" in ran.out) == (0, True), ran.out + ran.err


def test_a_spec_alone_is_checked(place):
    here = place("screens")
    (here.folder / "m.py").write_text(
        "import torch\n\n\nclass Twice(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, x):\n        return 2 * x\n\n    @staticmethod\n"
        "    def backward(ctx, g):\n        return 2 * g\n"
    )
    (here.folder / "other.gradverify.yaml").write_text(
        "gradverify: 1\nmodule: m.py\nfunctions:\n  Twice: {inputs: {x: [2, 3]}}\n"
    )
    ran = here("check", "--spec", "other.gradverify.yaml", "--effort", "quick")
    assert ran.code == 0, ran.out + ran.err
    assert "Twice" in ran.out
