"""What the format knows and the verifier does not honour yet is refused by name, and nothing else told."""

from __future__ import annotations

import re

import pytest

from gradverify.spec import NOT_YET, OPEN
from gradverify.spec.fields import LAYOUTS, STRUCTURES
from gradverify.spec.gate import ANNOTATIONS
from gradverify.spec.schema import INPUT_FORMS, TensorEntry
from gradverify.spec.schema_file import CallEntry, FunctionEntry
from gradverify.spec.structures import STRUCTURES as DEMANDS


def test_the_verifier_honours_every_key_that_a_gate_can_name(closed):
    assert NOT_YET == OPEN
    assert closed["function"] <= {*FunctionEntry.model_fields, ANNOTATIONS}
    assert closed["reference"] <= CallEntry.model_fields.keys()
    assert closed["tensor"] <= TensorEntry.model_fields.keys() | {*INPUT_FORMS}
    assert closed["structure"] <= set(STRUCTURES) == set(DEMANDS)
    assert closed["layout"] <= set(LAYOUTS)


def test_keys_of_a_function(refusals, closed):
    for key in sorted(closed["function"] - {ANNOTATIONS}):
        assert refusals(f"{{inputs: {{x: [2]}}, {key}: {{call: 1, no: [2]}}}}") == [
            f"`{key}` is not supported yet"
        ]


@pytest.mark.parametrize("others", ["", "shape: [2], ", "choices: [1, 2], ", "value: 3, "])
def test_keys_of_a_tensor(refusals, closed, others):
    for key in sorted(closed["tensor"]):
        assert refusals(f"{{inputs: {{x: {{{others}{key}: 1}}}}}}") == [f"`{key}` is not supported yet"]


@pytest.mark.parametrize("key", ["structure", "layout"])
def test_values_of_a_key(refusals, closed, key):
    for word in sorted(closed[key]):
        told = refusals(f"{{inputs: {{x: {{shape: [2, 2], dtype: float64, {key}: {word}}}}}}}")
        assert told == [f"`{key}: {word}` is not supported yet"]


def test_forms_hide_whatever_stands_beside_them(refusals):
    entry = (
        "{inputs: {x: {object: torch.nn.Linear, init: [2, {}]}, y: {of: [2], list: [[2]]}},"
        " reference: {call: a, arguments: []}}"
    )
    assert refusals(entry) == [f"`{key}` is not supported yet" for key in ("object", "list", "call")]


def test_a_refused_form_leaves_its_inside_unjudged(refusals):
    assert refusals("{inputs: {x: {list: [[2], {shape: n, structure: spd}]}}}") == [
        "`list` is not supported yet"
    ]


def test_annotations_of_a_hook(refusals):
    told = ["`inputs` beside `arguments` is not supported yet: the hook builds every argument"]
    assert refusals("{arguments: 'a:b', inputs: {x: [2]}}") == told
    assert refusals("{arguments: 'a:b', inputs: 3}") == told


def test_a_gate_is_a_parameter(problems):
    text = "module: m.py\nfunctions: {free: {inputs: {x: [2]}, notes: a, where: ['2 > 1']}}"
    (problem,) = problems(text, {"function": frozenset({"notes"})})
    assert problem.message == "`notes` is not supported yet"


def test_what_the_gate_leaves_is_planned(read):
    text = (
        "module: m.py\nfunctions: {free: {sizes: {n: [3, 2]}, inputs: {x: [n], s: {size: n}, t: {tuple: [n]}}"
        ", where: [n > 1], cases: product, tolerance: {rtol: 1e-3}, notes: why}}"
    )
    assert read(text, NOT_YET).functions == read(text, OPEN).functions


def test_values_are_refused_inside_lists_as_well(problems):
    text = (
        "module: m.py\nfunctions: {free: {inputs: {x: {list: [{shape: [2, 2], structure: spd}]}"
        ", y: {list: {of: {shape: [2, 2], structure: spd}, count: 2}}, z: {list: [[2]]}}}}"
    )
    found = problems(text, {"structure": frozenset({"spd"})})
    places = [match.start() + 1 for match in re.finditer("spd", text.splitlines()[1])]
    assert [problem.location.column for problem in found] == places
    assert {problem.message for problem in found} == {"`structure: spd` is not supported yet"}
