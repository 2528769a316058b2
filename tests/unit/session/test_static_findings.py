"""Static findings beside dynamic ones: each cause once, and what was verified outranks what was read."""

import pytest

from gradverify.model import Finding, LintFinding, Location, Outcome, Settings, Severity
from gradverify.rules import RULES, Family, rule
from gradverify.session.aggregate import TWINS, reported_beside


def read(*codes):
    return [LintFinding(c, rule(c).severity, Location("m.py", 7, 9), "F", "said", "Do.") for c in codes]


def beside(found=(), dynamic=(), contract=Outcome.NOT_RUN, ignored=(), **settings):
    return reported_beside(
        read(*found),
        [Finding(code, Severity.ERROR, "found") for code in dynamic],
        settings=Settings(**settings),
        ignored=ignored,
        contract=contract,
    )


def reported(*arguments, **more):
    return [finding.code for finding in beside(*arguments, **more)]


def test_an_error_becomes_a_warning_with_its_place():
    (finding,) = beside(["GV803"])
    assert (finding.severity, finding.location) == (Severity.WARNING, Location("m.py", 7, 9))
    assert (finding.message, finding.hint) == ("said", "Do.")


@pytest.mark.parametrize(("code", "twin"), [(c, t) for c, twins in TWINS.items() for t in sorted(twins)])
def test_a_cause_is_reported_once(code, twin):
    assert reported([code]) == [code]
    assert reported([code], dynamic=[twin]) == []


def test_every_static_rule_has_a_place_beside():
    assert TWINS.keys() == {r.code for r in RULES if r.family is Family.LINT}


def test_swept_layouts_refute_the_strides():
    assert reported(["GV809"], contract=Outcome.FAILED) == ["GV809"]
    assert reported(["GV809"], contract=Outcome.PASSED) == []


def test_codes():
    assert reported(["GV803", "GV812"], select=("GV803",)) == ["GV803"]
    assert reported(["GV803", "GV812"], ignore=("GV803",)) == ["GV812"]
    assert reported(["GV803", "GV812"], ignored=["GV8"]) == []
    assert reported(["GV803"], select=("GV1",)) == []


def test_who_waives_the_cause_waives_its_foresight():
    assert reported(["GV811"], ignored=["GV4"]) == []
    assert reported(["GV803"], ignored=["GV105"]) == ["GV803"]
