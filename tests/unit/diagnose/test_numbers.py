"""A change of a threshold, or to a number, is offered where values near it tell it apart from others."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.autograd import Function

from .diagnosing import findings_on
from .test_confirmed import _at_options


class Margin(Function):
    """At 1.0 backward is right; at 0.5 any number up to the values drawn would do."""

    @staticmethod
    def forward(ctx, x, margin):
        ctx.save_for_backward(x)
        ctx.margin = margin
        return (margin - x).clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g * (x < 1.0), None


class OneNumber(Margin):
    """No name says the number: each that is written is wrong at one of the options."""

    @staticmethod
    def forward(ctx, x, margin):
        ctx.save_for_backward(x)
        return (margin - x).clamp(min=0)


class Shrunk(Function):
    """The number is forward's own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x.abs() > 0.5, x, 0.0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.abs() > 1.0)


class Softplus(Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return F.softplus(x, beta, 3.0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x > 3.0, torch.ones_like(x), torch.sigmoid(x * ctx.beta)), None


class NoSeries(Function):
    """Smooth: no threshold is right, and those too small for the values drawn only seem to be."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sinh(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x.abs() < 0.6, 1 + x.abs(), torch.cosh(x))


class Moved(Function):
    """x / (n + e): with half of e in `y` the square of e / n is left, which ordinary values do not show."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / (x.norm(dim=-1, keepdim=True) + 1e-4)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        n = x.norm(dim=-1, keepdim=True)
        y = x / (n + 1e-4)
        return (g - y * (g * y).sum(-1, keepdim=True)) / (n + 1e-4)


class HardSwish(Function):
    """The threshold stands in forward; a size is the same number at one of the sizes."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * torch.clamp(z + 3, 0, 6) / 6

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        slope = torch.where(z >= 1, 1.0, (2 * z + 3) / 6)
        return g * torch.where(z <= -3, 0.0, slope)


def _added(finding):
    return [line.strip() for change in finding.changes for line in change.patch.added]


def test_a_name_is_preferred_to_a_number_that_fits_the_values_drawn():
    (found,) = _at_options(Margin, "margin", (1.0, 0.5))
    assert _added(found) == ["return -g * (x < ctx.margin), None"]


def test_no_number_is_offered_that_is_wrong_at_another_option():
    (found,) = _at_options(OneNumber, "margin", (1.0, 0.5))
    assert not found.changes


def test_a_number_is_offered_that_values_on_both_sides_bear_out():
    (found,) = findings_on(Shrunk, {"x": "bn"})
    assert _added(found) == ["return g * (x.abs() > 0.5)"]


def test_what_is_compared_gets_the_factor_that_has_a_name():
    found = _at_options(Softplus, "beta", (1.5, 0.5))
    assert {line for one in found for line in _added(one)} == {
        "return g * torch.where(x * ctx.beta > 3.0, torch.ones_like(x), torch.sigmoid(x * ctx.beta)), None"
    }


def test_no_threshold_is_moved_below_the_values_drawn():
    (found,) = findings_on(NoSeries, {"x": "bn"})
    assert not found.changes


def test_a_number_holds_at_values_of_its_own_size():
    (found,) = findings_on(Moved, {"x": "bn"})
    assert not found.changes


def test_a_number_of_the_function_is_tried_in_a_comparison():
    (found,) = findings_on(HardSwish, {"z": "bn"})
    assert _added(found) == ["slope = torch.where(z >= 3, 1.0, (2 * z + 3) / 6)"]
