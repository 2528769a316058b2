"""Values and sizes that nobody gave refute no domain, no convergence and no gradient that is meant."""

import json

import extent
import pytest

pytestmark = extent.long

MODULES = ("right_somewhere.py", "meant.py", "wrong.py", "declared.py", "open_values.py", "sampler.py")

PASS_WITH_A_SPEC = {"Draw", "GradientDropout", "OneTerm", "FixedPoint", "LargestEigenvalue", "Equilibrium"}


@pytest.fixture(scope="module")
def checked(place):
    run = place("undeclared")
    ran = {m: run("check", m, "--format", "json") for m in MODULES}
    assert not [one.err for one in ran.values() if not one.out]
    return {m: json.loads(one.out)["targets"] for m, one in ran.items()}


def statuses(targets):
    return {t["name"]: t["status"] for t in targets}


def hint_of(targets, name):
    (target,) = (t for t in targets if t["name"] == name)
    return next(f["hint"] for f in target["findings"] if f["code"] == "GV109")


def test_what_is_right_on_a_domain_without_a_spec_is_inconclusive(checked):
    assert set(statuses(checked["right_somewhere.py"]).values()) == {"inconclusive"}


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("Logit", "`domain: unit` of `p`"),
        ("LogPositive", "`domain: positive` of `x`"),
        ("OutsideOfBoth", "`range: [1, 4]` of `x`"),
        ("ClampedSine", "a `range:` of `x`"),
        ("CosineOfUnits", "`structure: unit-norm`"),
        ("Entropy", "`structure: simplex`"),
        ("LargestEigenvalue", "`structure: symmetric`"),
        ("PaddedConvolution", "a `make:` function for `u` and `v`"),
        ("Kepler", "`range: [-0.3, 0.3]`"),
    ],
)
def test_what_would_declare_the_domain_is_said(checked, name, declared):
    assert declared in hint_of(checked["right_somewhere.py"], name)


def test_a_gradient_that_is_meant_looks_like_a_surrogate(checked):
    targets = checked["meant.py"]
    assert set(statuses(targets).values()) == {"inconclusive"}
    assert all(any(f["cause"] == "looks-surrogate" for f in t["findings"]) for t in targets)


def test_what_is_wrong_whatever_the_inputs_fails(checked):
    found = statuses(checked["wrong.py"])
    assert found.pop("LogitSign") == "inconclusive"  # so steep at its clamp that it looks like a step
    assert set(found.values()) == {"failed"}


def test_what_a_spec_declares_fails(checked):
    assert set(statuses(checked["declared.py"]).values()) == {"failed"}


def test_under_a_spec_without_ranges_undeclared_values_fail_nothing(checked):
    found = statuses(checked["open_values.py"])
    assert found == {n: "passed" if n in PASS_WITH_A_SPEC else "inconclusive" for n in found}


def test_a_guessed_size_of_zero_fails_nothing(checked):
    assert "failed" not in statuses(checked["sampler.py"]).values()
