"""`benchmarks/deleted_checks.py` names what exists: a row that names nothing deletes nothing."""

import importlib.util
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_row_names_a_function_that_exists(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("deleted_checks", BENCHMARKS / "deleted_checks.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "deleted_checks", module)
    spec.loader.exec_module(module)
    deletions = [module.of_check(check) for check in module.checks()]
    assert len(deletions) > 40
    assert len({deletion.name for deletion in deletions}) == len(deletions)
