"""Values of options, and ranks, without a spec: each is verified at inputs that it accepts, or named."""

import json

import pytest
import verdicts_only
from extent import ALL_SEEDS, with_long

ELSEWHERE = ("Grouped", "Symmetric", "SeventhMode")
MORE_ELSEWHERE = ("DropOverTime", "Mode")
"""Functions that are wrong at a value that needs other inputs."""


def checked(place, *asked):
    ran = place("options")("check", *asked, "--format", "json", **verdicts_only.VARIABLES)
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


@pytest.fixture(scope="module")
def wrong(place):
    names = (*ELSEWHERE, *(MORE_ELSEWHERE if ALL_SEEDS else ()), "AlongThird", "FromTheFirstRow", "Unknown")
    return checked(place, *(f"wrong.py::{name}" for name in names))


@pytest.fixture(scope="module")
def right(place):
    return checked(place, "right.py")


@pytest.mark.parametrize("name", with_long(ELSEWHERE, MORE_ELSEWHERE))
def test_a_value_that_needs_other_inputs_is_verified_at_those(wrong, name):
    assert wrong[name]["status"] == "failed"


def test_a_number_that_needs_another_rank_does_not_pass(wrong):
    assert wrong["AlongThird"]["status"] == "inconclusive"


def test_an_offset_into_a_table_does_not_pass_at_0_alone(wrong):
    assert wrong["FromTheFirstRow"]["status"] == "inconclusive"
    (message,) = (f["message"] for f in wrong["FromTheFirstRow"]["findings"] if f["code"] == "GV109")
    assert "`start` (1)" in message


def test_a_value_that_no_inputs_suit_is_named_with_what_it_raises(wrong):
    assert wrong["Unknown"]["status"] == "inconclusive"
    (message,) = (f["message"] for f in wrong["Unknown"]["findings"] if f["code"] == "GV109")
    assert "`fancy` is False in every case: with True, forward raises KeyError" in message


def test_a_right_function_passes(right):
    assert {t["status"] for t in right.values()} == {"passed"}


def test_a_rank_that_forward_takes_is_verified(place):
    found = checked(place, "another_rank.py")
    assert {name: t["status"] for name, t in found.items() if name != "AlongAnAxis"} == {
        "Squeezed": "inconclusive",
        "Doubled": "inconclusive",
        "Linear": "passed",
        "Rows": "passed",
        "Columns": "passed",
    }
    (message,) = (f["message"] for f in found["Squeezed"]["findings"] if f["code"] == "GV109")
    assert "guessed that `x` may have the shape [4, 1, 3]" in message


@pytest.mark.xfail(strict=True, reason="a rank and a size of 1 that are wrong together are not tried")
def test_what_is_wrong_at_another_rank_and_size_together_does_not_pass(place):
    assert checked(place, "another_rank.py")["AlongAnAxis"]["status"] == "inconclusive"


def test_a_refused_value_is_a_note(right):
    notes = {name: [f["message"] for f in t["findings"] if f["code"] == "GV107"] for name, t in right.items()}
    assert "with True, forward raises NotImplementedError: fused: not yet" in notes["Fused"][0]
    assert "forward raises ValueError" in notes["Share"][0]
    assert not notes["Channels"] + notes["Mode"]
