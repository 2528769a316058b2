"""Causes that are one place of backward's own source: with one change in it the gradient is right."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import extent
import pytest
import torch
from torch.autograd import Function

from gradverify.verifier.diagnose.edits import search
from gradverify.verifier.diagnose.edits.source import Slot, is_harmless, source_of

from .diagnosing import findings_on


class BySearch(Function):
    """The x with x + w * sinh(x) = y, by halving: torch cannot differentiate forward."""

    @staticmethod
    def forward(ctx, y, w):
        a = 1 + w * w
        low, high = -y.abs() - 1, y.abs() + 1
        for _ in range(70):
            middle = (low + high) / 2
            above = middle + a * middle.sinh() > y
            high, low = torch.where(above, middle, high), torch.where(above, low, middle)
        x = (low + high) / 2
        ctx.save_for_backward(x, w)
        return x

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        slope = 1 + (1 + w * w) * x.cosh()
        return g / slope, -g * x.sinh() * 2 * w / slope


class WithoutFactor(BySearch):
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        a = 1 + w * w  # noqa: F841 - forgotten below
        slope = 1 + x.cosh()
        return g / slope, -g * x.sinh() * 2 * w / slope


class OtherFunction(BySearch):
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        slope = 1 + (1 + w * w) * x.sinh()
        return g / slope, -g * x.sinh() * 2 * w / slope


class Frames(Function):
    """Overlapping windows of a signal, each multiplied by its weights."""

    @staticmethod
    def forward(ctx, x, weight):
        frames = x.detach().numpy().copy()
        n = weight.shape[0]
        out = torch.stack([torch.from_numpy(frames[k : k + n]) * weight for k in range(len(x) - n + 1)])
        ctx.save_for_backward(x, weight)
        return out

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        n = weight.shape[0]
        grad_x, grad_weight = torch.zeros_like(x), torch.zeros_like(weight)
        for k in range(g.shape[0]):
            grad_x[k : k + n] = g[k] * weight
            grad_weight += g[k] * x[k : k + n]
        return grad_x, grad_weight


class Running(Function):
    """A sum that runs, of something that NumPy computes."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.from_numpy(x.detach().numpy().cumsum(0)) * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return (g * w).cumsum(0), g * x.cumsum(0)


class Bounded(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.from_numpy((x * w).detach().numpy()).clamp_min(0) * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        on = x * w < 0
        return g * w * w * on, g * (x * w).clamp_min(0) + g * w * x * on


class Large(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x.clamp(max=0.5)


def test_a_change_that_is_not_linear_in_grad_output_is_none():
    """With `g.clamp(max=0.5)`, halves of unit vectors would come out right."""
    (found,) = findings_on(Large, {"x": "bn"})
    assert found.cause == "branch"
    assert "g.clamp" not in found.hint


def asked_of(backward):
    """What is asked of a Function's own backward, by a map from grad_output to the gradient."""
    return SimpleNamespace(pulled_back=lambda output, u, _: backward(u))


def test_only_multiples_of_large_and_small_grad_outputs_are_linear():
    rows = torch.tensor([[1.0, 2.0], [0.0, -3.0]], dtype=torch.float64)
    assert search._is_linear(asked_of(lambda u: u @ rows), 0, rows, None)
    assert not search._is_linear(asked_of(lambda u: u.clamp(max=500) @ rows), 0, rows, None)
    assert not search._is_linear(asked_of(lambda u: u @ rows + 1e-6), 0, rows, None)
    assert not search._is_linear(asked_of(lambda u: None), 0, rows, None)


@extent.long
def test_no_change_is_reported_that_is_not_linear(monkeypatch):
    assert any(f.changes for f in findings_on(WithoutFactor, SHAPES))
    monkeypatch.setattr(search, "_is_linear", lambda *_: False)
    assert not any(f.changes for f in findings_on(WithoutFactor, SHAPES))


class Recorder:
    """Something with a state, whose methods are called as a tensor's are."""

    def __init__(self) -> None:
        self.seen = 0

    def mul(self, a, b):
        self.seen += 1
        return a * b


class WithRecorder(BySearch):
    recorder = Recorder()

    @staticmethod
    def forward(ctx, y, w):
        ctx.recorder = WithRecorder.recorder
        return BySearch.forward(ctx, y, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        slope = 1 + x.cosh()
        return ctx.recorder.mul(g, 1 / slope), -g * x.sinh() * 2 * w / slope


SHAPES = {"y": "n", "w": "n"}


def test_the_right_one_is_right():
    assert findings_on(BySearch, SHAPES) == ()


def test_a_factor_is_lost_where_forward_has_no_gradient():
    for found in findings_on(WithoutFactor, SHAPES):
        assert found.cause == "chain-factor"
        assert found.changes[0].before == "slope = 1 + x.cosh()"
        assert found.changes[0].patch.line == found.changes[0].line
        assert found.changes[0].patch.path.endswith("test_edits.py")


def test_another_function():
    for found in findings_on(OtherFunction, SHAPES):
        assert found.cause == "operand"
        assert found.changes[0].after == "slope = 1 + (1 + w * w) * x.cosh()"


def test_an_assignment_for_a_sum():
    (found,) = findings_on(Frames, {"x": "k", "weight": "b"})
    assert (found.input, found.cause) == ("x", "duplicates")
    assert found.changes[0].after == "grad_x[k:k + n] += g[k] * weight"


def test_a_scan_from_the_wrong_end():
    found = findings_on(Running, {"x": "nb", "w": "nb"})
    assert "permuted" in {f.cause for f in found}


def test_a_condition_turned_round():
    for found in findings_on(Bounded, {"x": "bn", "w": "bn"}):
        assert found.cause == "branch"


def test_objects_of_the_users_are_left_alone():
    """A method called `mul` need not be a tensor's."""
    found = findings_on(WithRecorder, SHAPES)
    assert found
    assert not any("in place of" in f.hint for f in found)
    assert WithRecorder.recorder.seen < 600  # of the checks; changes would be thousands


def _harmless(function):
    source = source_of(function)
    return is_harmless(source.function, source.tree)


def _endless(ctx, g):
    while g.sum() > 1:
        g = g / 2
    return g


def _printing(ctx, g):
    print(g)  # noqa: T201
    return g


def _of_classes(ctx, g):
    Recorder.total = g
    return g


def _loading(ctx, g):
    return torch.load("x") * g


def _reducing(ctx, g):
    torch.distributed.all_reduce(g)
    return g


def _custom(ctx, g):
    return torch.ops.mine.scaled(g)


def _calling(ctx, g):
    return _endless(ctx, g)


def _applying(ctx, g):
    return Running.apply(g, g)


def _handing_on(ctx, g):
    return torch.vmap(_endless)(g)


TABLE = {}


def _keeping(ctx, g):
    TABLE["g"] = g
    return g


def _plain(ctx, g):
    (x,) = ctx.saved_tensors
    grad = torch.zeros_like(g)
    grad[0].add_(1)
    parts = [part * 2 for part in torch.unbind(g)]
    with torch.no_grad():
        return torch.stack(parts) * torch.nn.functional.relu(x).sum(-1, keepdim=True)


@pytest.mark.parametrize(
    "function",
    [
        _endless,
        _printing,
        _of_classes,
        _loading,
        _reducing,
        _custom,
        _calling,
        _applying,
        _handing_on,
        _keeping,
    ],
)
def test_what_does_more_than_compute_is_not_run_with_changes(function):
    assert not _harmless(function)


def test_what_computes_may_be_run_with_changes():
    assert _harmless(_plain)


def test_a_tree_is_as_it_was_after_a_change():
    tree = ast.parse("def f(a):\n return a + 1").body[0]
    assert isinstance(tree, ast.FunctionDef)
    before = ast.dump(tree)
    with Slot(tree, "body", 0, tree.body[0]).holding([ast.Pass(), ast.Pass()]):
        assert len(tree.body) == 2
    assert ast.dump(tree) == before


class MeanForSum(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.softmax(1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).mean(1, keepdim=True))


def test_a_mean_in_place_of_a_sum_is_no_missing_term():
    assert {f.cause for f in findings_on(MeanForSum, {"x": "bn"})} == {"operand"}
