"""Golden files: a spec and the exact plan of each of its functions.

To accept a change: GRADVERIFY_REGENERATE=1 python -m pytest tests/unit/spec/test_golden.py, then
read the diff: a changed id or seed moves the points of somebody's case.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

from gradverify.spec import plan_function, read_spec

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("spec_file", sorted(GOLDEN.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_plan_of_a_spec(folder, spec_file):
    shutil.copy(spec_file, folder)
    spec = read_spec(folder / spec_file.name, shown_path=spec_file.name, known_codes=["GV201"])
    plans = {key: dataclasses.asdict(plan_function(spec, key)) for key in spec.functions}
    text = json.dumps(plans, indent=1, allow_nan=False) + "\n"
    expected = spec_file.with_suffix(".json")
    if os.environ.get("GRADVERIFY_REGENERATE"):
        expected.write_text(text)
    assert text == expected.read_text()
