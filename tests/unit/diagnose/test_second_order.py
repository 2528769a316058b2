"""Why a second derivative is wrong whose first is right: what cuts it, or what its numbers say."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import Function

from .diagnosing import findings_on

NAMES = {"x": "bn"}


def _found(function):
    return {(f.code, f.cause): f.hint for f in findings_on(function, NAMES, select=("GV1", "GV2"))}


class DetachedInBackward(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.sqrt(x * x + 1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g.clone() * x / y.detach()


class UnderNoGrad(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sqrt(x * x + 1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            y = torch.sqrt(x * x + 1)
        return g * x / y


class DetachedInForward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x.detach())
        return x**3

    @staticmethod
    def backward(ctx, g):
        x, constant = ctx.saved_tensors
        return 3 * g * x * constant


class Data(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x * x.data


class ThroughNumpy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x * torch.from_numpy(x.detach().numpy())


@pytest.mark.parametrize("function", [ThroughNumpy, DetachedInBackward, UnderNoGrad, DetachedInForward, Data])
def test_a_call_that_cuts_the_graph_is_found(function):
    ((code, cause), hint), *others = _found(function).items()
    assert not others
    assert (code, cause) == ("GV201", "detached")
    assert "A constant there is what forward keeps" in hint


class ReadsWhatHasNoGraph(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.count = torch.tensor(2).item()
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return Cube.apply(x, g) * torch.tensor(2).item() / ctx.count


class Cube(Function):
    @staticmethod
    def forward(ctx, x, g):
        ctx.save_for_backward(x, g)
        return 3 * g * x * x

    @staticmethod
    def backward(ctx, gg):
        x, g = ctx.saved_tensors
        return 5 * gg * g * x, 3 * gg * x * x


def test_a_call_on_what_has_no_graph_is_no_cause():
    ((code, cause), hint), *others = _found(ReadsWhatHasNoGraph).items()
    assert not others
    assert (code, cause) == ("GV201", "constant-factor")
    assert "item" not in hint


def _nested(slope_backward):
    class Slope(Function):
        @staticmethod
        def forward(ctx, x, g):
            ctx.save_for_backward(x, g)
            return g * torch.tanh(x)

        @staticmethod
        def backward(ctx, gg):
            x, g = ctx.saved_tensors
            return slope_backward(torch.tanh(x), g, gg, torch.ones_like(x))

    class LogCosh(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.log(torch.cosh(x))

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return Slope.apply(x, g)

    return LogCosh


@pytest.mark.parametrize(
    ("slope_backward", "cause", "words"),
    [
        (
            lambda t, g, gg, _: (2 * gg * g * (1 - t * t), gg * t),
            "constant-factor",
            "derivative of `g_x` (the gradient of `x`) by `x` is 2 times too large",
        ),
        (lambda t, g, gg, _: (gg * g * (1 - t * t), -gg * t), "constant-factor", "by `grad_output` has the"),
        (
            lambda t, g, gg, _: (gg * (1 - t * t), gg * t),
            "chain-factor",
            "times what it should be, entry by entry",
        ),
    ],
    ids=["factor", "sign", "without-g"],
)
def test_a_double_backward_of_its_own_is_diagnosed_by_its_numbers(slope_backward, cause, words):
    ((code, named), hint), *others = _found(_nested(slope_backward)).items()
    assert not others
    assert (code, named) == ("GV201", cause)
    assert words in hint
    assert "detach" not in hint


def test_a_factor_at_some_entries_only_is_no_factor():
    wrong = _nested(lambda t, g, gg, one: (gg * g * (1 - t) * one, gg * t))
    ((code, cause), _), *others = _found(wrong).items()
    assert not others
    assert (code, cause) == ("GV201", "")


def test_a_right_double_backward_passes():
    assert not _found(_nested(lambda t, g, gg, _: (gg * g * (1 - t * t), gg * t)))
