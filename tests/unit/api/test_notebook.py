"""Functions of a notebook's cells: by a real kernel, and without one."""

from __future__ import annotations

import importlib.util
import linecache
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import gradverify
from gradverify.errors import UsageError

SCRIPT = Path(__file__).parents[2] / "house" / "documentation" / "notebook.py"


def test_the_notebook_of_the_docs_displays_what_it_shows():
    nbformat = pytest.importorskip("nbformat", reason="needs the test extra: nbclient and ipykernel")
    spec = importlib.util.spec_from_file_location("notebook", SCRIPT)
    notebook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebook)
    kept = nbformat.read(notebook.FILE, as_version=4)
    assert notebook.displayed(notebook.executed()) == notebook.displayed(kept)
    failed, passed = notebook.displayed(kept)[:2]
    assert "fix        In[2]:10" in failed
    assert "In[4]  1 function" in passed
    pages = [o["data"]["text/html"] for c in kept.cells for o in c.get("outputs", []) if "data" in o]
    assert len(pages) == 3
    assert all(page.startswith("<style>.gradverify {") for page in pages)


CELL = """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return {factor} * g * x
"""


@pytest.fixture
def session(monkeypatch):
    """Run cells in a module that has no file."""
    module = ModuleType("typed_in")
    module.__dict__["torch"] = torch
    monkeypatch.setitem(sys.modules, "typed_in", module)

    def run(source: str, number: int) -> ModuleType:
        name = f"<typed in {number}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), vars(module))
        return module

    return run


def test_a_class_that_is_defined_twice_is_the_one_that_is_given(session):
    wrong = session(CELL.format(factor=3), 1).Square
    right = session(CELL.format(factor=2), 2).Square
    state = torch.get_rng_state()
    report = gradverify.check(wrong, right)
    assert [t.status for t in report.targets] == ["failed", "passed"]
    assert [t.target.file for t in report.targets] == ["<typed in 1>", "<typed in 2>"]
    (found,) = report.targets[0].findings
    assert found.reproduce == ""
    assert found.changes[0].patch.path == "<typed in 1>"
    assert report.exit_code == 1
    assert "Verified in this process" in repr(report)
    assert "Verified in this process" in report._repr_html_()
    assert torch.equal(torch.get_rng_state(), state)


def test_verify_names_the_cell_and_the_line_of_a_class(session):
    wrong = session("class SquareRoot: pass" + CELL.format(factor=3), 5).Square
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(gradverify.GradientError, match=r"<typed in 5>:2: GV101 Square"):
        gradverify.verify(wrong.apply, (x,))


def test_a_module_of_the_session_that_is_gone_and_a_spec(session, tmp_path, monkeypatch):
    module = session(CELL.format(factor=2), 4)
    with pytest.raises(UsageError, match="use verify"):
        gradverify.check(module.Square, spec=[tmp_path / "s.yaml"])
    monkeypatch.delitem(sys.modules, "typed_in")
    report = gradverify.check(module.Square)
    assert [t.status for t in report.targets] == ["passed"]
    assert report.exit_code == 0


def test_what_has_a_file_runs_in_a_process_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "squares_of_a_file.py").write_text("import torch\n" + CELL.format(factor=2))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module("squares_of_a_file")
    for given in (module, module.Square.apply):
        report = gradverify.check(given)
        assert [t.target.id for t in report.targets] == ["squares_of_a_file.py::Square"]
        assert "Verified in this process" not in repr(report)
    del sys.modules["squares_of_a_file"]


def test_a_class_of_a_function_is_verified_here():
    class Local(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    report = gradverify.check(Local)
    assert [t.status for t in report.targets] == ["passed"]
    assert "Verified in this process" in repr(report)


@pytest.mark.parametrize("given", [3, torch.sin, ModuleType("no_file"), lambda x: x])
def test_what_is_no_target_is_refused(given):
    with pytest.raises(UsageError, match="check: "):
        gradverify.check(given)


def test_a_class_without_source_is_refused(session):
    module = session(CELL.format(factor=2), 3)
    linecache.cache.pop("<typed in 3>")
    with pytest.raises(UsageError, match="define it in a module or in a cell"):
        gradverify.check(module.Square)


def test_the_report_of_a_pass_shows_itself():
    x = torch.randn(3, dtype=torch.float64)
    report = gradverify.verify(torch.sin, x)
    assert "1 function: 1 passed" in repr(report)
    assert report._repr_html_().count('<div class="gradverify">') == 1
