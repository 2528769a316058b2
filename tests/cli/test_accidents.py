"""Exceptions of backward that hang on no guess fail; a missing package leaves the target unchecked."""

import json

import pytest


@pytest.fixture(scope="module")
def raising(place):
    ran = place("accidents")("check", "raising.py", "--format", "json")
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


@pytest.mark.parametrize("name", ["TwoOutputs", "TooMany"])
def test_a_wrong_signature_is_told(raising, name):
    assert raising[name]["status"] == "inconclusive"
    assert any("raised TypeError" in f["message"] for f in raising[name]["findings"])


@pytest.mark.parametrize("name", ["Unbound", "InHelper"])
def test_a_name_bound_nowhere_fails(raising, name):
    assert raising[name]["status"] == "failed"
    assert "GV102" in {f["code"] for f in raising[name]["findings"]}


@pytest.mark.parametrize("name", ["Lacking", "LackingAtTop"])
def test_a_missing_package_leaves_it_unchecked(raising, name):
    assert raising[name]["status"] == "unchecked"
    (finding,) = (f for f in raising[name]["findings"] if f["code"] == "GV001")
    assert finding["hint"].startswith("`fancy_package_nowhere` cannot be imported here.")


def test_a_list_may_decide_how_many_outputs_there_are(raising):
    assert raising["PerItem"]["status"] != "failed"
