"""The zoo at other seeds than the short suite's, and the modules that it leaves out."""

import importlib.util
import os
from pathlib import Path

import pytest

ZOO = Path(__file__).parents[1] / "zoo"

_spec = importlib.util.spec_from_file_location("zoo_verdicts", ZOO / "test_verdicts.py")
verdicts = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(verdicts)

SEEDS = range(1, int(os.environ.get("GRADVERIFY_ZOO_SEEDS", "2")))
"""Twenty seeds are run before a release: GRADVERIFY_ZOO_SEEDS=20."""

ASKED = [
    *((*module, 0) for module in verdicts.EXHAUSTIVE),
    *((*module, seed) for seed in SEEDS for module in (*verdicts.MODULES, *verdicts.EXHAUSTIVE)),
]


@pytest.mark.parametrize(("folder", "module", "seed"), ASKED)
def test_verdicts(folder, module, seed):
    verdicts.test_verdicts(folder, module, seed)
