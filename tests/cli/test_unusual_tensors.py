"""Tensors that torch does not read one by one, and memory without end, cost their own target alone."""

import json

import pytest
from extent import extent

STATUSES = {
    "KeptSparse": "passed",
    "ProductOfSparse": "passed",
    "GatedLeak": "failed",
    "KeptNested": "failed",
    "KeptOnMeta": "failed",
    "KeptQuantised": "passed",
    "ReturnedOnMeta": "unchecked",
    "ReturnedForMkldnn": "unchecked",
    "KeptSubclass": "failed",
    "AsksForTooMuch": "unchecked",
}


def judged(ran):
    assert "Traceback" not in ran.err, ran.err
    assert ran.code == 1
    return {target["name"]: target for target in json.loads(ran.out)["targets"]}


@pytest.fixture(scope="module")
def found(place):
    return judged(place("unusual")("check", "tensors.py", "--format", "json"))


@pytest.mark.parametrize("name", STATUSES)
def test_what_torch_cannot_read_is_no_bug_of_ours(found, name):
    assert (name, found[name]["status"]) == (name, STATUSES[name])
    errors = {f["code"] for f in found[name]["findings"] if f["severity"] == "error"}
    assert errors == ({"GV101"} if STATUSES[name] == "failed" else set())


def test_what_is_not_supported_is_said(found):
    (meta,) = (f for f in found["ReturnedOnMeta"]["findings"] if f["code"] == "GV001")
    assert "which cannot be read: that is not supported" in meta["message"]
    (large,) = (f for f in found["AsksForTooMuch"]["findings"] if f["code"] == "GV001")
    assert large["hint"] == "It takes more memory than there is here. Use smaller sizes."


def test_memory_without_end_is_stopped_at_its_limit(place):
    hoarding = extent(["Appends"], ["Appends", "Doubles", "Concatenates"])
    asked = [f"hoards.py::{name}" for name in (*hoarding, "Double")]
    targets = judged(place("unusual")("check", *asked, "--memory", "1200", "--format", "json"))
    codes = {
        name: [f["code"] for f in t["findings"] if f["severity"] != "note"] for name, t in targets.items()
    }
    assert codes == {**{name: ["GV903"] for name in hoarding}, "Double": []}
    assert targets["Double"]["status"] == "passed"
