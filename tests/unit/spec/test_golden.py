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

from gradverify.model import Case, TargetPlan
from gradverify.spec.plan import plan_function
from gradverify.spec.read import read_spec

GOLDEN = Path(__file__).parent / "golden"


def compact(value, indent=""):
    """JSON with whatever fits on a line on one line: a diff shows cases, not brackets."""
    line = json.dumps(value, allow_nan=False)
    if len(line) <= 150 or not isinstance(value, list | dict):
        return line
    inner = f"\n{indent} "
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {compact(item, indent + ' ')}" for key, item in value.items()]
    else:
        items = [compact(item, indent + " ") for item in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}{inner}{f',{inner}'.join(items)}\n{indent}{last}"


def reported(value):
    """Plain data, without what has its default: a new field of the model changes no golden file."""
    if isinstance(value, tuple):
        return [reported(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    defaults = {field.name: field.default for field in dataclasses.fields(value)}
    kept = {name: reported(item) for name, item in fields.items() if repr(item) != repr(defaults[name])}
    kind = {} if isinstance(value, TargetPlan | Case) else {"is": type(value).__name__}
    return {**kind, **kept}


@pytest.mark.parametrize("spec_file", sorted(GOLDEN.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_plan_of_a_spec(folder, spec_file):
    shutil.copy(spec_file, folder)
    spec = read_spec(folder / spec_file.name, shown_path=spec_file.name, known_codes=["GV101", "GV201"])
    planned = {key: plan_function(spec, key) for key in spec.functions}
    # What follows from the cases has tests of its own.
    follows = dict.fromkeys(("spares", "open_sized", "degenerate", "left_out"), ()) | {"asked": None}
    plans = {key: reported(dataclasses.replace(plan, **follows)) for key, plan in planned.items()}
    text = compact(plans) + "\n"
    expected = spec_file.with_suffix(".json")
    if os.environ.get("GRADVERIFY_REGENERATE"):
        expected.write_text(text)
    assert text == expected.read_text()
