"""`pytest --gradverify` as a user runs it: a process of its own in a folder of modules and specs."""

import re
import subprocess
import sys
from importlib.metadata import entry_points

import forked_command
import pytest
from extent import extent

HEAVY = ("torch", "yaml", "pydantic", "typer", "gradverify.spec", "gradverify.session")
INSTALLED = any(point.value == "gradverify.pytest_plugin" for point in entry_points(group="pytest11"))
LOAD = () if INSTALLED else ("-p", "gradverify.pytest_plugin")

WATCH = f"""\
import sys

def pytest_sessionfinish():
    print("LOADED", [name for name in {HEAVY!r} if name in sys.modules])
"""

SPEC = """\
gradverify: 1
module: wrong.py
functions:
  Product: {sizes: {n: [2, 3]}, inputs: {a: [n], b: [n]}}
  Raises: {inputs: {x: [2]}, xfail: {codes: [GV102], reason: "known, #7"}}
  Noisy: {skip: "not today"}
"""


@pytest.fixture(scope="module")
def folder(place):
    folder = place("screens").folder
    keep = {"right.py", "right.gradverify.yaml", "wrong.py"}
    for file in folder.iterdir():
        if file.name not in keep:
            file.unlink()
    (folder / "wrong.gradverify.yaml").write_text(SPEC)
    (folder / "test_plain.py").write_text("def test_plain():\n    pass\n")
    (folder / "conftest.py").write_text(WATCH)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """Run pytest there, forked."""

    def pytest_in(*arguments):
        ran = forked_command.python(["-m", "pytest", *LOAD, *arguments], folder)
        return ran.code, ran.out + ran.err

    return pytest_in


@pytest.fixture(scope="module")
def loaded(folder):
    """What a process of its own has loaded when it ends."""

    def loaded_in(*arguments):
        command = [sys.executable, "-P", "-m", "pytest", *LOAD, *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
        return done.returncode, done.stdout + done.stderr

    return loaded_in


def outcomes(said):
    """(item, outcome) pairs of a verbose run."""
    return dict(
        re.findall(r"^\S*?::(\S+(?:\[[^\]]*\])?) (PASSED|FAILED|SKIPPED|XFAIL|ERROR)", said, re.MULTILINE)
    )


def test_off_unless_asked_for(loaded):
    code, said = loaded("-v")
    assert code == 0
    assert outcomes(said) == {"test_plain": "PASSED"}
    assert "LOADED []" in said


def test_the_watch_can_see_what_is_loaded(loaded):
    _, said = loaded("--gradverify", "--collect-only", "-q")
    assert "'gradverify.spec'" in said
    assert "'torch'" not in said
    assert "wrong.gradverify.yaml::Product[n=3]" in said


def test_one_item_for_each_case(run):
    code, said = run("--gradverify", "-v")
    assert code == 1
    found = outcomes(said)
    assert found["Product[n=2]"] == "FAILED"
    assert {name: found[name] for name in ("Raises", "Noisy", "test_plain")} == {
        "Raises": "XFAIL", "Noisy": "SKIPPED", "test_plain": "PASSED",
    }  # fmt: skip
    assert "wrong.py:5: GV101 Product: the gradient with respect to `b` is wrong" in said
    assert "'wrong.py::Product[n=2]'" in said
    assert "pytest_plugin.py" not in said
    # Only what failed last, which is stopped after the first of two.
    code, said = run("--gradverify", "--lf", "-x", "-v")
    assert code == 1
    assert len(outcomes(said)) == 1


@pytest.mark.parametrize("processes", [(), *extent([], [("-n", "2")])])
def test_selected_by_name_and_spread_over_processes(run, processes):
    code, said = run("--gradverify", "-v", *processes, "-k", "right or Raises")
    assert code == 0, said
    assert re.search(r"\d+ passed", said)
    assert "1 xfailed" in said


def test_a_spec_with_mistakes_is_an_error_of_collection(run, place):
    here = place("screens")
    (here.folder / "pytest.ini").write_text("[pytest]\n")
    (here.folder / "right.gradverify.yaml").write_text("gradverify: 1\nmodule: right.py\nfunction: {}\n")
    words = ["-m", "pytest", *LOAD, "--gradverify", "right.gradverify.yaml"]
    done = forked_command.python(words, here.folder)
    assert done.code == 2
    assert "right.gradverify.yaml:3:1: unknown key `function`" in done.out
    assert "Traceback" not in done.out
