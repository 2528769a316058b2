"""Why something could not be judged: what is not finite is not called noisy, and nothing jumps there."""

from __future__ import annotations

import torch

from .diagnosing import findings_on
from .right_functions import Right, function_of


def _reasons(forward, backward, **shapes: str) -> list[str]:
    right = Right("f", forward, backward, shapes)
    found = findings_on(function_of(right, backward), shapes, select=("GV1", "GV2"))
    return [f"{f.message} {f.hint}" for f in found if f.code == "GV109"]


def test_where_forward_has_no_value_nothing_jumps():
    def backward(a, y, g):
        return (torch.full_like(a[0], torch.nan) * g[:, None],)

    reasons = _reasons(lambda x: (0 * x / (0 * x)).sum(1), backward, x="bn")
    assert any("forward itself is not finite at these inputs" in r for r in reasons)
    assert not any("noisy" in r or "jumps" in r or "domain" in r for r in reasons)


def test_where_only_some_values_are_not_finite_another_domain_helps():
    reasons = _reasons(lambda x: x.log(), lambda a, y, g: (g / a[0],), x="bn")
    assert reasons
    where = ("around these inputs", "at these inputs", "has no value at")
    assert all(any(said in r for said in where) for r in reasons)
