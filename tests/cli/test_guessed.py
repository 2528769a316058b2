"""Functions without a spec, where a size, a shape or a mask that was guessed may be no valid one."""

import json
import re

import pytest
import verdicts_only
from extent import ALL_SEEDS

FUNCTIONS = {
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
    "PointsOfSpace": "inconclusive",
    "PointsOfSpaceTwice": "failed",
    "PowerTrace": "inconclusive",
    "PowerTraceUntransposed": "failed",
    "DiagonalSum": "inconclusive",
    "InverseOfStack": "failed",
    "Ranks": "inconclusive",
    "LogDet": "passed",
    "RandomStart": "inconclusive",
    "RoundedDropout": "inconclusive",
    "KeptNorm": "failed",
    "OneForTwo": "passed",
    "AsMany": "passed",
    "Pooled": "passed",
    "PooledApart": "inconclusive",
}

GUESSED = {
    "Shifted": "the odd size of `d`",
    "Cross": "the shape of `w`",
    "Rounded": "`bits`",
    "OfRows": "the shape of `",
    "Kept": "`mask` (boolean tensor)",
    "AbsoluteSquare": "the shape of `z`",
    "PowerTrace": "the shape of `m`",
    "DiagonalSum": "the shape of `m`",
    "Ranks": "that backward should be the derivative (forward is a step in `x`",
    "RoundedDropout": "that backward should be the derivative (backward draws random numbers",
}


EXCUSED = {
    "Causal": "failed",
    "CausalRight": "passed",
    "Doubled": "failed",
    "Unsummed": "passed",
    "OtherLength": "failed",
    "OneLength": "inconclusive",
    "LongerLeftUnwritten": "inconclusive",
}
"""A doubt excuses only what is gone where it names."""

SCATTERED = {
    "EdgeSoftmax": "passed",
    "EdgeSoftmaxOverwritten": "failed",
    "Shifted": "passed",
    "ShiftedUnscaled": "failed",
    "ShiftedOnly": "failed",
}
"""What may be None, or alike, is tried so."""

GROUPED = {"Grouped": "inconclusive", "GroupedRight": "passed"}
"""Sizes that may be multiples of one another are no single size."""

SQUARE = {
    "Linear": "inconclusive",
    "ByShape": "inconclusive",
    "Rows": "inconclusive",
    "Right": "passed",
    "RefusesSquares": "passed",
}
"""Pairs of inferred sizes are equal in some case."""

REFUSING = {
    "F32Only": "passed",
    "F32Round": "inconclusive",
    "F32Doubled": "inconclusive",
    "Shares": "passed",
    "Prepared": "passed",
}
"""What takes float32 alone, or refuses a range, is verified as it asks."""

TILES = {
    "Tiled": "passed",
    "TiledUnsquared": "inconclusive",
    "LastTile": "inconclusive",
    "Truncated": "inconclusive",
    "Rounds": "inconclusive",
    "ChunkedByHelper": "inconclusive",
    "BlockedInAWhile": "failed",
    "InOrderTwice": "inconclusive",
    "TruncatedByHelper": "inconclusive",
    "TruncatedInAWhile": "inconclusive",
    "TruncatedByPowers": "inconclusive",
}
"""A count that a loop may go by leaves it open: it may be one of rounds."""

VERDICTS = {
    "functions.py": FUNCTIONS,
    "excused.py": EXCUSED,
    "scattered.py": SCATTERED,
    "grouped.py": GROUPED,
    "square.py": SQUARE,
    "refusing.py": REFUSING,
    "tiles.py": TILES,
    "overrun.py": {"Picked": "inconclusive"},
}

SAMPLES = {"functions.py::NewtonRoot", "excused.py::Doubled", "scattered.py::ShiftedUnscaled"}
"""Each takes seconds, and another one beside it stands for it: --all-seeds has them."""

CHECKED = [
    asked
    for file, verdicts in VERDICTS.items()
    for asked in (f"{file}::{name}" for name in verdicts)
    if ALL_SEEDS or asked not in SAMPLES
]


@pytest.fixture(scope="module")
def here(place):
    return place("guessed")


@pytest.fixture(scope="module")
def checked(here):
    """Targets by file and name."""
    ran = here("check", *CHECKED, "--format", "json", **verdicts_only.VARIABLES)
    found = {file: {} for file in VERDICTS}
    for target in json.loads(ran.out)["targets"]:
        found[target["file"]][target["name"]] = target
    return found


def messages_of(target, code="GV109"):
    return [f["message"] for f in target["findings"] if f["code"] == code]


@pytest.mark.parametrize("file", VERDICTS)
def test_verdicts(checked, file):
    expected = {name: v for name, v in VERDICTS[file].items() if f"{file}::{name}" in CHECKED}
    assert {name: target["status"] for name, target in checked[file].items()} == expected


@pytest.mark.parametrize("name", GUESSED)
def test_what_was_guessed_is_said(checked, name):
    messages = messages_of(checked["functions.py"][name])
    assert messages and all(f"but gradverify guessed {GUESSED[name]}" in m for m in messages)


def test_every_way_of_reducing_is_looked_at(checked):
    reduced = checked["functions.py"]["Reduced"]
    (wrong,) = [f for f in reduced["findings"] if f["severity"] == "error"]
    assert wrong["case"]["options"]["reduction"] == "mean"


def test_what_is_wrong_past_a_block_waits_for_a_spec_that_lists_such_a_size(checked):
    (message,) = messages_of(checked["functions.py"]["LastBlock"])
    assert "; but no spec says that " in message
    assert re.search(r"(past|at) 64 \(line \d+\) is valid", message)


def test_what_is_empty_in_every_case_is_not_verified(checked):
    reason = checked["functions.py"]["Emptied"]["reason"]
    assert reason.startswith("inputs or outputs are empty in every case")


def test_a_crash_of_a_case_with_invented_arguments_is_no_failure(checked):
    (target,) = checked["overrun.py"].values()
    (message,) = messages_of(target)
    assert "GV901" not in str(target)
    assert "was killed by SIG" in message
    assert message.endswith("but gradverify guessed `index` (integer tensor)")


def test_an_option_that_is_never_verified_is_said_unless_that_is_ignored(here):
    reported = here("check", "hidden.py::Poisson")
    assert (reported.code, "`log_input` is True in every case" in reported.out) == (1, True)
    ignored = here("check", "hidden.py::Poisson", "--ignore", "GV109")
    assert (ignored.code, "`log_input` is True in every case" in ignored.out) == (0, False)


def test_a_doubt_excuses_no_other_input(checked):
    (wrong,) = [f for f in checked["excused.py"]["Causal"]["findings"] if f["severity"] == "error"]
    assert (wrong["code"], wrong["input"]) == ("GV101", "k")


def test_sizes_that_may_be_multiples_of_one_another_are_no_single_size(checked):
    messages = messages_of(checked["grouped.py"]["Grouped"])
    assert messages and all(
        re.search(r"but gradverify guessed that `\w` and `\w` may differ", m) for m in messages
    )


@pytest.mark.parametrize("name", ["Linear", "ByShape", "Rows"])
def test_pairs_of_inferred_sizes_are_equal_in_some_case(checked, name):
    found = checked["square.py"][name]["findings"]
    sizes = [f["case"]["sizes"] for f in found if f["code"] == "GV109"]
    assert sizes and all(len({*one.values()}) < len(one) for one in sizes)
