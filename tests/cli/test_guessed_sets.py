"""More Functions without a spec: prepared by helpers, or wrong where an obvious guess hides it."""

import json

import pytest
from extent import long

pytestmark = long

HELPED = {
    "SegmentSum": "passed",
    "SortedSum": "passed",
    "SortedSumForwards": "inconclusive",
    "SoftTarget": "passed",
    "SoftTargetUnscaled": "failed",
    "FilterBank": "passed",
    "Mapped": "passed",
    "Length": "unchecked",
    "Nearest": "passed",
    "NearestHalved": "inconclusive",
    "Sparse": "passed",
    "OfSparse": "passed",
    "OfSparseUntransposed": "inconclusive",
    "OfArrays": "passed",
    "Converged": "passed",
    "Protected": "passed",  # off within the tolerance, which GV110 says, and by more where values are tiny
    "Uneven": "passed",
    "Ckpt": "passed",
    "Kept": "inconclusive",
}
"""Functions of `helpers.py`."""

NOT_READ = pytest.mark.xfail(
    strict=True, reason="what helpers prepare at call sites is not read since inference was cut (issue 22)"
)

HIDDEN = {
    "Poisson": {"inconclusive"},
    "PoissonSquared": {"inconclusive"},
    "Frames": {"passed"},
    "FramesOverwritten": {"inconclusive", "failed"},
    "Recentred": {"passed"},
    "RecentredByContent": {"inconclusive"},
    "RecentredTwice": {"failed"},
    "Sweeps": {"passed"},
    "SweepsForgetful": {"failed"},
    "Legendre": {"passed"},
    "LegendreToThree": {"inconclusive", "failed"},
    "Harmonics": {"passed"},
    "HarmonicsHalved": {"inconclusive", "failed"},
}
"""Functions of `hidden.py`: no wrong one is green, and a right one stays so."""


@pytest.fixture(scope="module")
def helped(place):
    ran = place("guessed")("check", "helpers.py", "--format", "json")
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


@NOT_READ
def test_verdicts_where_helpers_prepare_what_is_passed(helped):
    assert {name: target["status"] for name, target in helped.items()} == HELPED


def test_no_right_function_of_helpers_fails_and_no_wrong_one_passes(helped):
    found = {name: target["status"] for name, target in helped.items()}
    assert found.keys() == HELPED.keys()
    assert not [name for name, due in HELPED.items() if due == "passed" and found[name] == "failed"]
    assert not [name for name, due in HELPED.items() if due != "passed" and found[name] == "passed"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param(
            "SortedSumForwards",
            "but gradverify guessed what `order` holds and what `inverse` holds",
            marks=NOT_READ,
        ),
        ("Kept", "but gradverify guessed that `space` is no buffer to be written into"),
    ],
)
def test_what_may_be_the_authors_intent_is_said(helped, name, said):
    assert any(said in f["message"] for f in helped[name]["findings"] if f["code"] == "GV109")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param(
            "Nearest", "the last dimension of `a` is 3 because backward takes no other", marks=NOT_READ
        ),
    ],
)
def test_what_was_not_looked_at_is_said(helped, name, said):
    assert said in [f["message"] for f in helped[name]["findings"]]


@pytest.fixture(scope="module")
def hidden(place):
    ran = place("guessed")("check", "hidden.py", "--format", "json")
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


def test_a_mistake_shows_that_the_most_obvious_guess_would_hide(hidden):
    found = {name: target["status"] for name, target in hidden.items()}
    assert found.keys() == HIDDEN.keys()
    assert {name: status for name, status in found.items() if status not in HIDDEN[name]} == {}


def test_that_two_sizes_may_differ_is_said_to_be_a_guess(hidden):
    (finding,) = [f for f in hidden["RecentredByContent"]["findings"] if f["code"] == "GV109"]
    assert "but gradverify guessed that `d` and `m` may differ" in finding["message"]


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("StepsOfTime", "inconclusive", ""),
        ("StepsOfTimeHalved", "failed", ""),
        (
            "DecayedStates",
            "inconclusive",
            "gradverify guessed the shape of `decay` and the shape of `beta`",
        ),
    ],
)
def test_a_row_may_be_guessed_for_each_step_where_a_number_is_meant(place, name, status, said):
    ran = place("guessed")("check", f"steps.py::{name}", "--format", "json")
    (target,) = json.loads(ran.out)["targets"]
    assert target["status"] == status
    assert any(said in f["message"] for f in target["findings"])
