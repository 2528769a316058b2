"""What a call costs, as a class, and what that lets be spent."""

from types import SimpleNamespace

import pytest
import torch

from gradverify.events import Priced
from gradverify.model import (
    Effort,
    Finding,
    InputSource,
    Price,
    Settings,
    Severity,
    Target,
    TargetKind,
    TargetPlan,
    allowance,
    price_of,
)
from gradverify.session.aggregate import TargetState
from gradverify.verifier.checks.pricing import price_at


@pytest.mark.parametrize(
    ("seconds", "price", "shown"),
    [(0.0099, Price.LEAST, "<10ms"), (0.01, Price.HUNDREDTHS, "<100ms"), (0.5, Price.TENTHS, "<1s"),
     (1.0, Price.MORE, ">=1s")],
)  # fmt: skip
def test_the_class_of_a_call(seconds, price, shown):
    assert price_of(seconds) is price
    assert price.shown == shown


def test_the_cheapest_of_three_calls_counts():
    outputs = SimpleNamespace(size=2, unflatten=lambda flat: (flat,))
    called, x = [], (torch.ones(2),)
    problem = SimpleNamespace(outputs=outputs, primals=x, pull_back=lambda *given: called.append(given))
    ticks = iter([0.0, 5.0, 5.0, 5.02, 6.0, 9.0])
    assert (
        price_at(SimpleNamespace(problem=problem, case=SimpleNamespace(world=0)), lambda: next(ticks))
        is Price.HUNDREDTHS
    )
    assert len(called) == 3


def test_a_dearer_call_is_made_less_often_and_a_thorough_run_makes_more():
    usual = [allowance(price, Effort.NORMAL) for price in Price]
    counts = [(one.measured, one.tried, one.shrunk) for one in usual]
    assert counts == sorted(counts, reverse=True)
    assert allowance(Price.LEAST, Effort.THOROUGH).measured > usual[0].measured


@pytest.mark.parametrize(
    ("asked", "measured", "words"),
    [(None, Price.LEAST, ""), (None, Price.TENTHS, "--price 1s"), (Price.LEAST, Price.LEAST, "--price 10ms")],
)
def test_a_reproducing_command_fixes_what_may_be_another_class_elsewhere(asked, measured, words):
    target = Target("f", "f", TargetKind.FUNCTION, "m.py", 1)
    plan = TargetPlan("f", "f", InputSource.SPEC)
    state = TargetState(target, plan, Settings(price=asked), None)
    state.findings.append(Finding("GV101", Severity.ERROR, "wrong"))
    state.add(Priced(measured), lambda until: "")
    report = state.report()
    assert report.price is measured
    (found,) = report.findings
    assert ("--price" in found.reproduce) == bool(words)
    assert words in found.reproduce


def test_ranks_work_elsewhere_and_are_never_of_the_least_class():
    outputs = SimpleNamespace(size=2, unflatten=lambda flat: (flat,))
    problem = SimpleNamespace(outputs=outputs, primals=(), pull_back=lambda *_: None)
    sample = SimpleNamespace(problem=problem, case=SimpleNamespace(world=2))
    assert price_at(sample, lambda: 0.0) is Price.HUNDREDTHS
