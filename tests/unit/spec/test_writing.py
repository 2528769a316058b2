"""Specs as text: what is written is read back the same, and what is there stays."""

import pytest

from gradverify.cases.inputs import TensorSpec
from gradverify.cases.sizes import Expression
from gradverify.cases.sweep import FunctionSpec, Sweep
from gradverify.spec.draft import (
    DraftedEntry,
    NotExtensibleError,
    extended_spec,
    flow,
    is_mentioned,
    render_spec,
    shown,
)
from gradverify.spec.source import parse

VALUES = [
    {"shape": ["n", "2*d", 3], "range": [0, "n - 1"]},
    {"value": "sum"},
    {"value": "null"},
    {"value": "1e-6"},
    {"value": "a: b, c"},
    {"value": "#x"},
    {"value": ""},
    {"choices": [1e-05, 0.7, 1.0, True, None, -3]},
    {"call": "module:attribute"},
]


@pytest.mark.parametrize("value", VALUES)
def test_what_is_written_is_read_back(value):
    assert parse(f"x: {flow(value)}\n", "s.yaml").data == {"x": value}


ENTRY = DraftedEntry("New", {"inputs": {"x": ["n", "d"]}}, input_comments=(("x", "guessed"),))


def test_a_commented_entry_is_no_entry():
    text = render_spec({"m.py": [ENTRY, DraftedEntry("Other", {"inputs": {}}, ("why",), active=False)]})
    assert parse(text, "s.yaml").data["functions"] == {"New": {"inputs": {"x": ["n", "d"]}}}
    assert is_mentioned(text, "Other")
    assert not is_mentioned(text, "Oth")


def test_entries_are_added_below_and_comments_stay():
    functions = "functions:\n    A:\n        skip: no\n        # of A\n"
    before = f"module: m.py\ndefaults: {{seed: 1}}\n{functions}"
    after = extended_spec(before, [ENTRY])
    assert after.startswith(f"{before}    New:\n")
    assert set(parse(after, "s.yaml").data["functions"]) == {"A", "New"}


def test_keys_with_a_path_get_one():
    after = extended_spec("functions:\n  m.py::A: {skip: no}\n", [ENTRY])
    assert set(parse(after, "s.yaml").data["functions"]) == {"m.py::A", "m.py::New"}


@pytest.mark.parametrize(
    "text", ["functions: {A: {skip: no}}", "functions:\n  A: {skip: no}\ndefaults: {seed: 1}"]
)
def test_only_a_block_at_the_end_can_be_added_to(text):
    with pytest.raises(NotExtensibleError):
        extended_spec(text, [ENTRY])


def test_a_default_dtype_is_shown_beside_the_inputs():
    sweep = Sweep((TensorSpec("x", (Expression("n"),)),))
    assert shown(FunctionSpec(sweep)) == "x: [n]"
    assert shown(FunctionSpec(sweep, default_dtype="float64")) == "x: [n]; default_dtype float64"
