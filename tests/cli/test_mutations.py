"""`--mutate` in the machine report, and what it costs a target under `--strict`."""

import json

import pytest


@pytest.fixture(scope="module")
def here(place):
    return place("screens")


def test_mutations_in_json(here):
    ran = here("check", "right.py", "--mutate", "--format", "json")
    targets = json.loads(ran.out)["targets"]
    assert ran.code == 0, ran.err
    passed = [target for target in targets if target["status"] == "passed"]
    assert len(passed) == 2
    for target in passed:
        assert target["mutations"]
        assert {m["outcome"] for m in target["mutations"]} <= {"caught", "no-effect"}
        assert all(m["code"] for m in target["mutations"] if m["outcome"] == "caught")


def test_without_the_option_nothing_is_planted(here):
    targets = json.loads(here("check", "right.py", "--format", "json").out)["targets"]
    assert all("mutations" not in target for target in targets)


def test_an_escaped_fault_warns_and_under_strict_fails(here):
    weak = ("check", "right.py", "--mutate", "--rtol", "1e-3")
    ran, strict = here(*weak), here(*weak, "--strict")
    assert ran.code == 0, ran.err
    assert "escaped    factor 1 + 1e-6: `" in ran.out
    assert strict.code == 1
    assert "its checks do not notice" in strict.out


def test_a_failed_target_is_not_mutated(here):
    ran = here("check", "wrong.py::Product", "--mutate", "--format", "json")
    assert ran.code == 1
    assert all("mutations" not in target for target in json.loads(ran.out)["targets"])
