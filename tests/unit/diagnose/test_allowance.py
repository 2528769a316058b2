"""Cause and change take eight times the calls of verifying, smaller inputs sixty; what is left is said."""

import pytest
import torch
from extent import with_long

from gradverify.events import AllowanceSpent, DiagnosisStarted, Found, Verify
from gradverify.model import Effort, InputSource, Parameter, Settings, Target, TargetKind, TargetPlan
from gradverify.verifier import guard
from gradverify.verifier.process.run import verify
from gradverify.verifier.verify import kept, shrinking
from gradverify.verifier.verify.kept import LEAST, Allowance
from gradverify.verifier.verify.shrinking import MOST_CALLS
from gradverify.verifier.verify.verification import Live

from .diagnosing import OTHER_SIZES, SIZES, case_at


class Long(torch.autograd.Function):
    """A mistake that no small change of backward mends, in a backward with much to change."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x) * x.exp() + x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a = torch.tanh(x) * x.exp()
        b = (1 - torch.tanh(x) * torch.tanh(x)) * x.exp()
        c = x.cos() * 2 - x.sigmoid() + a.abs() * 0.3
        return g * (a + b * 0.7 + c.exp() * 0.1)


def asked(effort=Effort.NORMAL):
    shapes = {"x": "bn"}
    target = Target("Long", "Long", TargetKind.FUNCTION, "f.py", 1, tuple(map(Parameter, shapes)))
    cases, spares = (case_at(shapes, SIZES, 1),), (case_at(shapes, OTHER_SIZES, 2),)
    plan = TargetPlan("Long", "Long", InputSource.SPEC, cases, spares=spares)
    return Verify(target, plan, Settings(select=("GV1",), effort=effort))


def test_the_calls_of_verifying_decide():
    before = guard.CALLS.made
    assert Allowance.after(10).calls == LEAST
    assert Allowance.after(2000).calls == 16_000
    one = Allowance.after(0)
    assert one.left == LEAST
    assert one.covers(LEAST)
    assert not one.is_short
    guard.call(lambda: None)
    assert guard.CALLS.made == before + 1
    assert not one.covers(LEAST)
    assert one.is_short


@pytest.mark.parametrize("effort", with_long([Effort.NORMAL], [Effort.THOROUGH]))
def test_causes_and_changes_together_take_no_more(effort):
    request, live = asked(effort), Live(Long)
    start, judged, said = guard.CALLS.made, 0, []
    for event in verify(request, live):
        match event:
            case DiagnosisStarted():
                judged = judged or guard.CALLS.made - start
            case AllowanceSpent():
                said.append(event.calls)
    most = max(LEAST, (10 if effort is Effort.THOROUGH else 8) * judged)
    assert said in ([], [most])
    last = 300  # what was begun before the allowance was spent
    assert guard.CALLS.made - start - judged <= most + last + MOST_CALLS


def test_what_was_not_looked_for_is_said(monkeypatch):
    monkeypatch.setattr(kept, "LEAST", 40)
    monkeypatch.setattr(kept, "TIMES", 0)
    assert AllowanceSpent(40) in list(verify(asked(), Live(Long)))


def test_smaller_inputs_take_sixty_calls_and_are_the_same_each_time(monkeypatch):
    def calls():
        start = guard.CALLS.made
        events = [e.finding for e in verify(asked(), Live(Long)) if isinstance(e, Found)]
        return guard.CALLS.made - start, [f for f in events if f.case and f.case.shrunk]

    (taken, shown), again = calls(), calls()
    assert (taken, shown) == again
    assert [f.case.shrunk.point for f in shown] == ["plain"]
    monkeypatch.setattr(shrinking, "MOST_CALLS", 0)
    assert taken - MOST_CALLS <= calls()[0] < taken
