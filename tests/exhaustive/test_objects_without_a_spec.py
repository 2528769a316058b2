"""Functions that take what a package makes of its own, without a spec: what is read of it is made up."""

import json

import pytest

VERDICTS = {
    "SparseGather": "passed",
    "QLinear": "passed",
    "QLayer": "passed",
    "Opts": "passed",
    "Blocks": "passed",
    "RevBlocks": "passed",
    "Adjoint": "passed",
    "F32Only": "passed",
    "SparseGatherUnscaled": "inconclusive",
    "OptsSquared": "inconclusive",
    "Buffered": "passed",
    "OfTable": "passed",
    "InBlocks": "passed",
    "Inverted": "passed",
    "F32Round": "inconclusive",
    "F32Doubled": "inconclusive",
    "Shares": "passed",
    "OfChannels": "passed",
    "Tested": "passed",
    "Weighted": "passed",
    "ZippedBlocks": "passed",
    "ZippedBlocksTwice": "inconclusive",
    "SortedLayers": "passed",
    "Popped": "passed",
    "Prepared": "passed",
}


@pytest.fixture(scope="module")
def checked(place):
    ran = place("guessed")("check", "objects.py", "--format", "json")
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


def test_verdicts(checked):
    assert {name: target["status"] for name, target in checked.items()} == VERDICTS


@pytest.mark.parametrize(
    ("name", "guess"), [("SparseGatherUnscaled", "rulebook"), ("OptsSquared", "options")]
)
def test_that_an_object_was_made_up_is_said(checked, name, guess):
    messages = [f["message"] for f in checked[name]["findings"] if f["code"] == "GV109"]
    assert any(f"`{guess}` (object)" in m for m in messages)
