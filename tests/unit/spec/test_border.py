"""A sweep crosses the border alone, and gives the same cases on the other side."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gradverify.cases.further import with_cases, without_cases
from gradverify.cases.inputs import TensorSpec
from gradverify.cases.sizes import Expression, Infeasible
from gradverify.cases.sweep import Sweep, case_at
from gradverify.events import Verify, decode, encode
from gradverify.model import Settings, SizeConstant, Target, TargetKind
from gradverify.spec.plan import plan_function
from gradverify.spec.read import read_spec

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.yaml"))


@pytest.mark.parametrize("spec_file", GOLDEN, ids=lambda path: path.stem)
def test_the_worker_makes_the_cases_that_the_front_has_made(folder, spec_file):
    shutil.copy(spec_file, folder)
    spec = read_spec(folder / spec_file.name, shown_path=spec_file.name, known_codes=["GV101", "GV201"])
    for key in spec.functions:
        plan = plan_function(spec, key)
        if plan.asked is None:
            continue
        asked = replace(plan.asked, constants=(SizeConstant(8, "BLOCK"),), thresholds=(0.5,))
        plan = with_cases(plan, asked)
        sent = Verify(Target(key, key, TargetKind.FUNCTION, "m.py", 1), without_cases(plan), Settings())
        received = decode(encode(sent)).plan
        assert received.cases == received.open_sized == received.beyond == ()
        # Equal values may be of different types: 1, 1.0 and True.
        assert repr(with_cases(received, received.asked)) == repr(plan)


def test_a_case_without_valid_inputs_says_why():
    n = Expression("n - 3")
    sweep = Sweep((TensorSpec("x", (n,)),), sizes=(("n", (4, 2)),))
    assert case_at(sweep, {"n": 4}, {}).inputs[0].shape == (1,)
    refused = case_at(sweep, {"n": 2}, {})
    assert isinstance(refused, Infeasible)
    assert (refused.path, refused.message) == (
        ("inputs", "x", "shape", 0),
        "a dimension cannot be negative: `n - 3` is -1 at n=2",
    )
