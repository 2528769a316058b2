"""One mistake in several places of backward, or in several gradients, is reported as one."""

from __future__ import annotations

import torch
from torch.autograd import Function

from .diagnosing import findings_on


def _by_numpy(y):
    """A value that torch cannot differentiate: only backward's own source is left to look at."""
    return torch.from_numpy(y.detach().numpy().copy())


class Joined(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _by_numpy(torch.cat([x[:, :1].exp(), x[:, 1:].sin()], 1)).cumsum(1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        d = g.flip(1).cumsum(1).flip(1)
        first, second = d[:, :1] * x[:, :1].exp(), d[:, 1:] * x[:, 1:].cos()
        return torch.cat([second, first], 1)


def test_tensors_that_are_joined_in_another_order():
    (found,) = findings_on(Joined, {"x": "bn"})
    assert found.cause == "permuted"
    assert "second, first = " in found.changes[0].after


class OtherLength(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x @ w.T).sin().sum(1) / x.shape[0]

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        d = g[:, None] * (x @ w.T).cos() / w.shape[0]
        return d @ w, d.T @ x


def test_one_length_for_another():
    for found in findings_on(OtherLength, {"x": "bn", "w": "kn"}):
        assert found.cause == "constant-factor"
        assert "`x.shape[0] / w.shape[0]`" in found.hint


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, a, alpha=5.0):
        ctx.save_for_backward(x, a)
        ctx.scale = alpha / a.shape[0]
        return ctx.scale * torch.sin(x @ a.T)

    @staticmethod
    def backward(ctx, g):
        x, a = ctx.saved_tensors
        d = g * torch.cos(x @ a.T)
        return ctx.scale * d @ a, d.T @ x, None


class Shortened(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return _by_numpy((x * x + 1).log() * w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        s = (x.float() * x.float() + 1).double()
        return g * w * 2 * x / s, g * s.log()


def test_digits_that_are_lost_are_no_factor_of_about_one():
    found = findings_on(Shortened, {"x": "bn", "w": "bn"})
    assert found
    for one in found:
        assert one.cause in {"float32-inside", None, ""}
        assert "sign(" not in one.hint


class ByNumber(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x * w).sum() / w.sum()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        total = w.sum().item()
        return g * w / total, g * (x - (x * w).sum() / total) / total


def test_a_number_that_was_a_tensor_cuts_the_second_derivative():
    found = findings_on(ByNumber, {"x": "n", "w": "n"}, select=("GV2",))
    assert found
    assert {f.cause for f in found} == {"detached"}


class PartlyOnTheClass(Function):
    size = None

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x)
        PartlyOnTheClass.size = w.detach().clone()
        return x.sin() * w

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() * PartlyOnTheClass.size, g * x.sin()


def test_a_gradient_that_is_of_the_later_call_is_stale():
    found = findings_on(PartlyOnTheClass, {"x": "bn", "w": "bn"}, select=("GV4",))
    (finding,) = [f for f in found if f.code == "GV408"]
    assert finding.cause == "stale"


class Sines(Function):
    @staticmethod
    def forward(ctx, a, b):
        s, c = b.sin(), b.cos()
        ctx.save_for_backward(s, c, a)
        return _by_numpy(a * s)

    @staticmethod
    def backward(ctx, g):
        s, c, a = ctx.saved_tensors
        base = g * c
        return base, base * a * c / s


def test_of_two_changes_the_one_that_leaves_nothing_wrong_is_reported():
    """With what was saved exchanged, the gradient of `a` alone is right."""
    found = findings_on(Sines, {"a": "bn", "b": "bn"})
    assert {f.input for f in found} == {"a", "b"}
    for one in found:
        assert [change.after for change in one.changes] == ["base = g * s"]
