"""What a cause needs before it is named: other draws, other sizes, and the points that passed."""

from __future__ import annotations

import torch

from gradverify.verifier.diagnose import findings as diagnosis

from .diagnosing import findings_on
from .right_functions import Right, function_of


def _one(right: Right, **options):
    (found,) = findings_on(function_of(right, right.backward), right.shapes, **options)
    return found


SUMMED = Right(
    "summed", lambda x: x.mean(-1), lambda a, y, g: (g[:, None].expand_as(a[0]).clone(),), {"x": "bn"}
)
"""A mean whose backward forgets to divide."""


def test_a_factor_that_follows_a_size_is_named_by_the_size():
    found = _one(SUMMED)
    assert (found.cause, found.factor) == ("constant-factor", 4.0)
    assert "the factor is `x.shape[1]`" in found.hint


def test_at_one_size_a_factor_may_be_a_size():
    found = _one(SUMMED, spare=False)
    assert (found.cause, found.factor) == ("constant-factor", 4.0)
    assert "Here it may also be `x.shape[1]`" in found.hint


def test_a_draw_that_passes_refutes_a_factor():
    """At draws with a negative sum alone the slope is a quarter of what backward says."""
    halved = Right(
        "halved",
        lambda x: x * (2.0 if x.sum() > 0 else 0.5),
        lambda a, y, g: (2.0 * g,),
        {"x": "bn"},
    )
    found = findings_on(function_of(halved, halved.backward), halved.shapes)
    assert {(f.cause, f.factor) for f in found} == {("", None)}


def test_a_region_is_no_region_at_one_size():
    def last(a, y, g):
        g = 2 * a[0] * g
        g[-1] = 0
        return (g,)

    right = Right("last", lambda x: x * x, last, {"x": "bn"})
    assert _one(right).cause == "region"
    assert _one(right, spare=False).cause == ""


def test_a_case_too_large_to_be_measured_is_diagnosed_at_a_spare_one(monkeypatch):
    monkeypatch.setattr(diagnosis, "LARGEST_MEASURED", 14 * 14)
    right = Right(
        "large", lambda x: x.repeat(1, 2), lambda a, y, g: (3 * g[:, : a[0].shape[1]],), {"x": "nd"}
    )
    found = _one(right)
    assert found.cause == ""
    doubled = Right("doubled", lambda x: 2 * x, lambda a, y, g: (6 * g,), {"x": "bn"})
    monkeypatch.setattr(diagnosis, "LARGEST_MEASURED", 16 * 16)
    assert _one(doubled).factor == 3.0


def test_a_forward_that_does_not_depend_on_its_input_is_no_surrogate():
    flat = Right("flat", torch.ones_like, lambda a, y, g: (g.clone(),), {"x": "bn"})
    steps = Right("steps", torch.floor, lambda a, y, g: (g.clone(),), {"x": "bn"})
    assert _one(flat).cause == ""
    assert _one(steps).cause == "looks-surrogate"
    assert "surrogate:" in _one(steps).hint
