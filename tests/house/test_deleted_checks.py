"""`benchmarks/deleted_checks.py` names what exists: a row that names nothing deletes nothing."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def deleted_checks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("deleted_checks", BENCHMARKS / "deleted_checks.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "deleted_checks", module)
    spec.loader.exec_module(module)
    return module


def test_every_row_names_a_function_that_exists(deleted_checks):
    deletions = [deleted_checks.of_check(check) for check in deleted_checks.checks()]
    assert len(deletions) > 40
    assert len({deletion.name for deletion in deletions}) == len(deletions)


def test_what_a_row_returns_is_spelled_in_names_of_its_module(deleted_checks):
    for check in deleted_checks.checks():
        module = importlib.import_module(f"gradverify.{check.module}")
        assert callable(getattr(module, check.function))
        if "given" not in check.returns:
            eval(check.returns, vars(module))


def test_every_word_of_the_cover_can_be_withheld(deleted_checks):
    deletions = [deleted_checks.of_word(word) for word in deleted_checks.words()]
    assert len(deletions) > 80
    for deletion in deletions:
        (patch,) = deletion.patches.values()
        compile(patch, deletion.name, "exec")
        assert deleted_checks.holding(deletion)


def test_what_withholds_a_code_fits_the_modules_that_it_patches(deleted_checks):
    deleted_checks.require_fitting(deleted_checks.of_code("GV801").patches)
