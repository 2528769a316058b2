"""Without a spec: what constants are meant to hold, and second derivatives that no guess can have cut."""

import json

import extent
import pytest

pytestmark = extent.long

VERDICTS = {
    "Rotary": "inconclusive",
    "RotaryBackwards": "failed",
    "SoftLabels": "inconclusive",
    "Weighted": "failed",
    "Interleaved": "inconclusive",
    "QuadraticForm": "inconclusive",
    "Reflected": "inconclusive",
    "GatedTwice": "inconclusive",
    "Rotated": "inconclusive",
    "Generator": "inconclusive",
}

KINDS = {
    "Rotary": "repeats the first half of `cos` and `sin`",
    "SoftLabels": "`structure: simplex` of `teacher`",
    "Interleaved": "pairs that are alike of `cos` and `sin`",
    "QuadraticForm": "`structure: symmetric` of `metric`",
    "Reflected": "`structure: unit-norm` of `normal`",
    "GatedTwice": "zeros and ones of `gate`",
    "Rotated": "`structure: orthogonal` of `basis`",
    "Generator": "antisymmetric matrices of `generator`",
}


def by_name(ran):
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


@pytest.fixture(scope="module")
def of_kinds(place):
    return by_name(place("constants")("check", "functions.py", "--format", "json"))


@pytest.fixture(scope="module")
def cut(place):
    return by_name(place("cut")("check", "functions.py", "--format", "json"))


def messages(target):
    return [f["message"] for f in target["findings"]]


def test_constants_of_another_kind_are_tried_before_a_failure(of_kinds):
    assert {name: target["status"] for name, target in of_kinds.items()} == VERDICTS


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_the_kind_of_values_is_said(of_kinds, name, kind):
    assert any(kind in m for m in messages(of_kinds[name]))


def test_no_guess_can_have_cut_a_second_derivative(cut):
    for target in cut.values():
        assert target["status"] == "failed"
        codes = {f["code"] for f in target["findings"]}
        assert codes & {"GV201", "GV202"}
        assert "GV101" not in codes


INTENDED = {
    "OtherVariable": "failed",
    "NeverAssigned": "failed",
    "Unpacked": "failed",
    "Masked": "passed",
    "Rotated": "passed",
    "Refusing": "passed",
    "Warning": "passed",
    "Offset": "passed",
    "Boxes": "passed",
}


def test_a_gradient_that_the_source_intends_is_missing_and_no_constant(place):
    ran = by_name(place("constants")("check", "intended.py", "--format", "json"))
    assert {name: target["status"] for name, target in ran.items()} == INTENDED
    for name in ("NeverAssigned", "Unpacked"):
        errors = {(f["code"], f["input"]) for f in ran[name]["findings"] if f["severity"] == "error"}
        assert errors == {("GV107", "b")}
