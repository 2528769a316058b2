"""How often forward and backward are called for Functions that everybody writes, with everything asked."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import zoo

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "calls.py"

MOST = 300
"""Calls of a right Function with four cases, one combination of options, in float64 and float32."""

OF_TWO_COMBINATIONS = 360
"""The same with a bias that may be None."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("calls", BENCHMARK)
    calls = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(calls)
    folder = tmp_path_factory.mktemp("calls")
    (folder / "functions.py").write_text(calls.MODULE)
    (folder / "functions.gradverify.yaml").write_text(calls.SPEC)
    _, report = zoo.checked(["functions.py"], folder)
    return {t["name"]: (t["status"], sum(t["evaluations"].values())) for t in report["targets"]}


def test_right_ones_pass_within_their_calls(made):
    assert {name: status for name, (status, _) in made.items() if status != "passed"} == {
        "WrongSoftmax": "failed"
    }
    most = {name: OF_TWO_COMBINATIONS if name == "Linear" else MOST for name in made}
    assert {name: calls for name, (_, calls) in made.items() if calls > most[name]} == {}
