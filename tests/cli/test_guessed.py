"""Functions without a spec, where a size, a shape or a mask that was guessed may be no valid one."""

import json

import pytest

VERDICTS = {
    "Shifted": "inconclusive",
    "ShiftedTwice": "failed",
    "Recurrence": "passed",
    "Reduced": "failed",
    "LastBlock": "inconclusive",
    "Cross": "inconclusive",
    "OfRows": "inconclusive",
    "Kept": "inconclusive",
    "Emptied": "unchecked",
    "NewtonRoot": "inconclusive",
    "Rounded": "inconclusive",
    "CubeTrace": "failed",
}

GUESSED = {
    "Shifted": "the odd size of `d`",
    "Cross": "the shape of `w`",
    "Rounded": "`bits`",
    "OfRows": "the shape of `x` and the shape of `w`",
    "Kept": "`mask` (boolean tensor)",
}


HELPED = {
    "SegmentSum": "passed",
    "SortedSum": "passed",
    "SortedSumForwards": "inconclusive",
    "SoftTarget": "passed",
    "SoftTargetUnscaled": "failed",
    "FilterBank": "passed",
    "Mapped": "passed",
    "Length": "passed",
    "Nearest": "passed",
    "NearestHalved": "inconclusive",
    "Sparse": "passed",
    "OfSparse": "passed",
    "OfSparseUntransposed": "inconclusive",
    "OfArrays": "passed",
    "Converged": "passed",
    "Protected": "inconclusive",
    "Uneven": "passed",
    "Ckpt": "passed",
    "Kept": "inconclusive",
}
"""Functions of `helpers.py`."""

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
def checked(place):
    ran = place("guessed")("check", "functions.py", "--format", "json")
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


def test_verdicts(checked):
    assert {name: target["status"] for name, target in checked.items()} == VERDICTS


@pytest.mark.parametrize("name", GUESSED)
def test_what_was_guessed_is_said(checked, name):
    messages = [f["message"] for f in checked[name]["findings"] if f["code"] == "GV109"]
    assert messages and all(f"but {GUESSED[name]} w" in m for m in messages)


def test_every_way_of_reducing_is_looked_at(checked):
    (wrong,) = [f for f in checked["Reduced"]["findings"] if f["severity"] == "error"]
    assert wrong["case"]["options"]["reduction"] == "mean"


def test_what_is_wrong_past_a_block_waits_for_a_spec_that_lists_such_a_size(checked):
    (message,) = (f["message"] for f in checked["LastBlock"]["findings"] if f["code"] == "GV109")
    assert "but nobody says that m=129, past 64" in message


def test_what_is_empty_in_every_case_is_not_verified(checked):
    assert checked["Emptied"]["reason"].startswith("inputs or outputs are empty in every case")


@pytest.fixture(scope="module")
def helped(place):
    ran = place("guessed")("check", "helpers.py", "--format", "json")
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


def test_verdicts_where_helpers_prepare_what_is_passed(helped):
    assert {name: target["status"] for name, target in helped.items()} == HELPED


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SortedSumForwards", "but what `order` holds and what `inverse` holds were guessed"),
        ("Protected", "but that such values are valid (backward has 1e-08 of its own) was guessed"),
        ("Kept", "but that `space` is no buffer to be written into was guessed"),
    ],
)
def test_what_may_be_the_authors_intent_is_said(helped, name, said):
    assert any(said in f["message"] for f in helped[name]["findings"] if f["code"] == "GV109")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Length", "`kind` is Norm.L1 in every case, never Norm.L2"),
        ("Nearest", "the last dimension of `a` is 3 because backward takes no other"),
    ],
)
def test_what_was_not_looked_at_is_said(helped, name, said):
    assert said in [f["message"] for f in helped[name]["findings"]]


def test_a_crash_of_a_case_with_invented_arguments_is_no_failure(place):
    ran = place("guessed")("check", "overrun.py", "--format", "json")
    (target,) = json.loads(ran.out)["targets"]
    (finding,) = [f for f in target["findings"] if f["code"] == "GV109"]
    assert (target["status"], "GV901" in str(target)) == ("inconclusive", False)
    assert "was killed by SIG" in finding["message"]
    assert finding["message"].endswith("`index` (integer tensor) was guessed")


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
    assert "but that `d` and `m` may differ was guessed" in finding["message"]


def test_an_option_that_is_never_verified_is_said_unless_that_is_ignored(place):
    here = place("guessed")
    told = here("check", "hidden.py::Poisson")
    assert (told.code, "`log_input` is True in every case" in told.out) == (1, True)
    ignored = here("check", "hidden.py::Poisson", "--ignore", "GV109")
    assert (ignored.code, "`log_input` is True in every case" in ignored.out) == (0, False)


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("StepsOfTime", "inconclusive", ""),
        ("StepsOfTimeHalved", "failed", ""),
        ("DecayedStates", "inconclusive", "but the shape of `beta` and the shape of `decay` were guessed"),
    ],
)
def test_a_row_may_be_guessed_for_each_step_where_a_number_is_meant(place, name, status, said):
    ran = place("guessed")("check", f"steps.py::{name}", "--format", "json")
    (target,) = json.loads(ran.out)["targets"]
    assert target["status"] == status
    assert all(said in f["message"] for f in target["findings"])
