"""Functions without a spec, where a size, a shape or a mask that was guessed may be no valid one."""

import json

import pytest
import verdicts_only

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
    "AbsoluteSquare": "inconclusive",
    "Points": "inconclusive",
}

GUESSED = {
    "Shifted": "the odd size of `d`",
    "Cross": "the shape of `w`",
    "Rounded": "`bits`",
    "OfRows": "the shape of `x` and the shape of `w`",
    "Kept": "`mask` (boolean tensor)",
    "AbsoluteSquare": "the shape of `z`",
}


@pytest.fixture(scope="module")
def checked(place):
    ran = place("guessed")("check", "functions.py", "--format", "json", **verdicts_only.VARIABLES)
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


def test_verdicts(checked):
    assert {name: target["status"] for name, target in checked.items()} == VERDICTS


@pytest.mark.parametrize("name", GUESSED)
def test_what_was_guessed_is_said(checked, name):
    messages = [f["message"] for f in checked[name]["findings"] if f["code"] == "GV109"]
    assert messages and all(f"but gradverify guessed {GUESSED[name]}" in m for m in messages)


def test_every_way_of_reducing_is_looked_at(checked):
    (wrong,) = [f for f in checked["Reduced"]["findings"] if f["severity"] == "error"]
    assert wrong["case"]["options"]["reduction"] == "mean"


def test_what_is_wrong_past_a_block_waits_for_a_spec_that_lists_such_a_size(checked):
    (message,) = (f["message"] for f in checked["LastBlock"]["findings"] if f["code"] == "GV109")
    assert "but no spec says that m=129, past 64" in message


def test_what_is_empty_in_every_case_is_not_verified(checked):
    assert checked["Emptied"]["reason"].startswith("inputs or outputs are empty in every case")


def test_a_crash_of_a_case_with_invented_arguments_is_no_failure(place):
    ran = place("guessed")("check", "overrun.py", "--format", "json")
    (target,) = json.loads(ran.out)["targets"]
    (finding,) = [f for f in target["findings"] if f["code"] == "GV109"]
    assert (target["status"], "GV901" in str(target)) == ("inconclusive", False)
    assert "was killed by SIG" in finding["message"]
    assert finding["message"].endswith("but gradverify guessed `index` (integer tensor)")


def test_an_option_that_is_never_verified_is_said_unless_that_is_ignored(place):
    here = place("guessed")
    reported = here("check", "hidden.py::Poisson")
    assert (reported.code, "`log_input` is True in every case" in reported.out) == (1, True)
    ignored = here("check", "hidden.py::Poisson", "--ignore", "GV109")
    assert (ignored.code, "`log_input` is True in every case" in ignored.out) == (0, False)


EXCUSED = {
    "Causal": "failed",
    "CausalRight": "passed",
    "Doubled": "failed",
    "Unsummed": "passed",
    "OtherLength": "failed",
    "OneLength": "inconclusive",
    "LongerLeftUnwritten": "inconclusive",
}


def test_a_doubt_excuses_only_what_is_gone_where_it_names(place):
    ran = place("guessed")("check", "excused.py", "--format", "json")
    targets = {t["name"]: t for t in json.loads(ran.out)["targets"]}
    assert {name: target["status"] for name, target in targets.items()} == EXCUSED
    (wrong,) = [f for f in targets["Causal"]["findings"] if f["severity"] == "error"]
    assert (wrong["code"], wrong["input"]) == ("GV101", "k")


def test_sizes_that_may_be_multiples_of_one_another_are_no_single_size(place):
    ran = place("guessed")("check", "grouped.py", "--format", "json")
    targets = {t["name"]: t for t in json.loads(ran.out)["targets"]}
    assert {name: t["status"] for name, t in targets.items()} == {
        "Grouped": "inconclusive",
        "GroupedRight": "passed",
    }
    messages = [f["message"] for f in targets["Grouped"]["findings"] if f["code"] == "GV109"]
    assert messages and all("but gradverify guessed that `m` and `r` may differ" in m for m in messages)


def test_pairs_of_inferred_sizes_are_equal_in_some_case(place):
    ran = place("guessed")("check", "square.py", "--format", "json")
    targets = json.loads(ran.out)["targets"]
    assert {t["name"]: t["status"] for t in targets} == {
        "Linear": "inconclusive",
        "ByShape": "inconclusive",
        "Rows": "inconclusive",
        "Right": "passed",
        "RefusesSquares": "passed",
    }
    for target in targets[:3]:
        sizes = [f["case"]["sizes"] for f in target["findings"] if f["code"] == "GV109"]
        assert sizes and all(len({*one.values()}) < len(one) for one in sizes)


def test_what_takes_float32_alone_or_refuses_a_range_is_verified_as_it_asks(place):
    ran = place("guessed")("check", "refusing.py", "--format", "json")
    assert {t["name"]: t["status"] for t in json.loads(ran.out)["targets"]} == {
        "F32Only": "passed",
        "F32Round": "inconclusive",
        "F32Doubled": "inconclusive",
        "Shares": "passed",
        "Prepared": "passed",
    }


SCATTERED = {
    "EdgeSoftmax": "passed",
    "EdgeSoftmaxOverwritten": "inconclusive",
    "Shifted": "passed",
    "ShiftedUnscaled": "failed",
    "ShiftedOnly": "failed",
}


def test_what_may_be_none_or_alike_is_tried_so(place):
    ran = place("guessed")("check", "scattered.py", "--format", "json", **verdicts_only.VARIABLES)
    assert {t["name"]: t["status"] for t in json.loads(ran.out)["targets"]} == SCATTERED
