"""Functions without a spec, of which what was inferred, or left out, decides more than it should."""

import json

import pytest
import verdicts_only
from extent import ALL_SEEDS


def checked(place, *asked):
    ran = place("unlisted")("check", *asked, "--format", "json", **verdicts_only.VARIABLES)
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


def messages_of(target, code="GV109"):
    return [f["message"] for f in target["findings"] if f["code"] == code]


@pytest.fixture(scope="module")
def unwritten(place):
    return checked(place, "unwritten.py")


def test_unwritten_entries_of_guessed_indices_are_no_mistake(unwritten):
    found = {name: t["status"] for name, t in unwritten.items()}
    # What the memory holds decides how far off it is, and whether a number is.
    assert found.pop("FirstRowForgotten") in {"failed", "inconclusive"}
    assert found == {
        "AlongLast": "inconclusive",
        "Rows": "inconclusive",
        "Swapped": "inconclusive",
        "AddedByHand": "failed",
    }


@pytest.mark.parametrize("name", ["AlongLast", "Rows", "Swapped"])
def test_what_is_never_written_is_called_neither_random_nor_a_write_of_grad(unwritten, name):
    said = messages_of(unwritten[name])
    assert any("integer tensor" in m for m in said)
    assert not any("random" in m for m in said)


ONES = {"Deviation": "`d` may be 1", "Squeezed": "`d` may be 1", "Differences": "`n` may be 1"}
"""What is wrong at a size of 1 alone, and what was guessed there."""


def test_what_is_wrong_at_a_size_of_1_is_open_without_a_spec(place):
    found = checked(place, "ones.py")
    assert {t["status"] for name, t in found.items() if name not in ONES} == {"passed"}
    for name, guessed in ONES.items():
        assert found[name]["status"] == "inconclusive"
        assert all(m.endswith(f"but gradverify guessed that {guessed}") for m in messages_of(found[name]))


OF_NUMBERS = {"Dropped": "`p` (", "Huber": "`delta` (", "Stabilised": "`eps` (", "Smoothed": "`scale` ("}
"""What is right at the default of an option alone, and the option, with the value at which it is wrong."""


def test_a_real_default_is_varied(place):
    found = checked(place, "numbers.py")
    assert {t["status"] for name, t in found.items() if name not in OF_NUMBERS} == {"passed"}
    for name, guessed in OF_NUMBERS.items():
        assert found[name]["status"] == "inconclusive"
        assert messages_of(found[name]) and all(guessed in m for m in messages_of(found[name]))


REFUSED = {
    "Halves": "inconclusive",
    "Pooled": "inconclusive",
    "Thirds": "inconclusive",
    "Doubled": "passed",
    "Paired": "passed",
    "Summed": "passed",
    "Biased": "passed",
    "Rotated": "passed",
}
RAISED = {"Halves": "returned an invalid gradient", "Thirds": "shape '[3, -1]' is invalid"}
SLOW = () if ALL_SEEDS else ("Thirds",)
"""What takes most of the time of all of them."""


def test_sizes_at_which_backward_raises_are_not_avoided_in_silence(place):
    names = [name for name in REFUSED if name not in SLOW]
    found = checked(place, *(f"refused_sizes.py::{name}" for name in names))
    assert {name: t["status"] for name, t in found.items()} == {name: REFUSED[name] for name in names}
    for name in RAISED.keys() - set(SLOW):
        said = [m for m in messages_of(found[name]) if RAISED[name] in m]
        assert any("which forward takes, backward raises" in m for m in said)


def test_a_pass_at_one_size_says_so(place):
    ran = place("unlisted")("check", "refused_sizes.py", "-k", "Paired")
    assert "one size only" in ran.out


BESIDE_LISTED = {
    "PooledByTwo": "passed",
    "PooledAllTheWay": "passed",
    "HalvesJoined": "passed",
    "RepeatedToRows": "inconclusive",
    "WholeRepeats": "passed",
    "Absorbed": "passed",
    "AbsorbedEarly": "failed",
    "SaturatedSum": "failed",
    "LongRow": "failed",
    "MeanOfLastLength": "failed",
    "SparseTimesDense": "passed",
    "Companding": "passed",
    "CompandingTwice": "failed",
    "FourAtATime": "failed",
    "WithinBounds": "passed",
    "LogOneMinusExp": "passed",
    "OneMinusTanh": "passed",
    "LogOfLogistic": "passed",
    "LogOneMinusExpTwice": "failed",
    "SmallAndExact": "failed",
    "LastChunkForgotten": "failed",
    "EveryChunk": "passed",
    "SumOfAWidth": "failed",
    "CastSum": "failed",
    "SumOfPairs": "passed",
    "OtherPathForLarge": "inconclusive",
    "Expm1Ratio": "passed",
    "Expm1RatioFlat": "failed",
    "OnWholeNumbers": "inconclusive",
    "SetsAView": "failed",
    "BufferOfDefault": "passed",
    "ByApply": "passed",
    "GainOfRows": "failed",
}
"""What a spec lists, and what is next to it."""


def test_what_is_next_to_the_listed_sizes_and_at_the_ends_of_ranges_is_asked(place):
    found = checked(place, "beside_listed.py")
    assert {name: t["status"] for name, t in found.items()} == BESIDE_LISTED
    for name in ("PooledAllTheWay", "HalvesJoined"):
        assert any("which no spec lists" in said for said in messages_of(found[name], "GV412"))
    assert not any(found[name]["findings"] for name in ("PooledByTwo", "WholeRepeats", "Companding"))
