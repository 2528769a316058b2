"""Nothing is measured twice while one target is judged."""

from __future__ import annotations

import torch
from torch.autograd import Function

from gradverify.events import Found, Verify
from gradverify.model import InputSource, Parameter, Settings, Target, TargetKind, TargetPlan
from gradverify.verifier.diagnose.edits import search
from gradverify.verifier.diagnose.edits.rewrites import joint_shape
from gradverify.verifier.process.run import verify
from gradverify.verifier.verify.verification import Live

from .diagnosing import OTHER_SIZES, SIZES, case_at

SHAPES = {"x": "bn", "w": "mn", "c": "m"}


class Cell(Function):
    """Three gradients, wrong by one mistake."""

    @staticmethod
    def forward(ctx, x, w, c):
        y = torch.tanh(x @ w.mT + c)
        ctx.save_for_backward(x, w, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, w, y = ctx.saved_tensors
        d = g * (1 - y)
        return d @ w, d.mT @ x, d.sum(0)


def _asked() -> Verify:
    target = Target("Cell", "Cell", TargetKind.FUNCTION, "f.py", 1, tuple(map(Parameter, SHAPES)))
    cases, spares = (case_at(SHAPES, SIZES, 1),), (case_at(SHAPES, OTHER_SIZES, 2),)
    plan = TargetPlan("Cell", "Cell", InputSource.SPEC, cases, spares=spares)
    return Verify(target, plan, Settings(select=("GV1",)))


def test_a_change_is_looked_for_once_for_all_gradients(monkeypatch):
    searched, honest = [], search.traced

    def counted(*given):
        searched.append(given)
        return honest(*given)

    monkeypatch.setattr(search, "traced", counted)
    found = [e.finding for e in verify(_asked(), Live(Cell)) if isinstance(e, Found)]
    changes = {f.changes for f in found if f.cause}
    assert len(searched) == 1
    assert [[change.after for change in one] for one in changes] == [["d = g * (1 - y ** 2)"]]


def test_shapes_go_together_as_torch_has_it():
    for one in ((), (1,), (3,), (2, 3), (2, 1), (4, 1, 3)):
        for other in ((), (2,), (3,), (2, 3), (4, 2, 1)):
            try:
                expected = tuple(torch.broadcast_shapes(one, other))
            except RuntimeError:
                expected = None
            assert joint_shape(torch.empty(one), torch.empty(other)) == expected
