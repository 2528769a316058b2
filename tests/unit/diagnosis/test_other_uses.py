"""One pass of a loop, one slice of a broadcast, another constant, a derivative that is not conjugated."""

from __future__ import annotations

import pytest
import torch

from .diagnosing import findings_on
from .right_functions import Right, function_of


def _found(forward, backward, *, dtype="float64", **shapes):
    right = Right("f", forward, backward, shapes, dtype=dtype)
    return findings_on(function_of(right, backward), right.shapes, dtype=dtype)


def _recurrence(x, u, b):
    h = torch.zeros_like(b)
    states = []
    for t in range(x.shape[0]):
        h = torch.tanh(u * h + x[t] + b)
        states.append(h)
    return torch.stack(states)


def _recurrence_backward(a, y, g, *, bias):
    x, u, _ = a
    dx, du, carry, db = torch.zeros_like(x), torch.zeros_like(u), torch.zeros_like(u), torch.zeros_like(u)
    for t in reversed(range(x.shape[0])):
        z = (g[t] + carry) * (1 - y[t] ** 2)
        dx[t] = z
        db = bias(db, z)
        du += z * (y[t - 1] if t else 0)
        carry = u * z
    return dx, du, db


def test_a_loop_whose_passes_are_not_added_up():
    (found,) = _found(
        _recurrence,
        lambda a, y, g: _recurrence_backward(a, y, g, bias=lambda _, z: z),
        x="nb",
        u="b",
        b="b",
    )
    assert (found.input, found.cause) == ("b", "duplicates")
    assert "made of the first pass of a loop alone, of those that use `b` in `u * h + x[t] + b`" in found.hint


def test_passes_that_are_weighted_are_not_one_pass():
    found = _found(
        _recurrence,
        lambda a, y, g: _recurrence_backward(a, y, g, bias=lambda d, z: 0.5 * d + z),
        x="nb",
        u="b",
        b="b",
    )
    assert all("pass of a loop" not in f.hint for f in found)


def _loss(x, w):
    return (torch.nn.functional.softplus(x) * w).mean()


@pytest.mark.parametrize(
    ("reduced", "words"),
    [
        (lambda t: t[0], "comes from the first slice along dimension 0 of it only"),
        (lambda t: t[-1], "comes from the last slice along dimension 0 of it only"),
        (lambda t: t[0] + 0.5 * t[1], None),
    ],
    ids=["first", "last", "two"],
)
def test_a_broadcast_in_a_mean_that_is_not_summed(reduced, words):
    def backward(a, y, g):
        x, w = a
        d = torch.nn.functional.softplus(x) / x.numel() * g
        return torch.sigmoid(x) * w / x.numel() * g, reduced(d)

    (found,) = _found(_loss, backward, x="bn", w="n")
    assert (found.cause == "not-summed-over-broadcast") == (words is not None)
    assert words is None or words in found.hint


def _messages(x, w, source, target):
    return torch.zeros_like(x).index_add(0, target, w[:, None] * x[source])


def _messages_backward(a, y, g, *, at):
    x, w, source, target = a
    back = g[target]
    d_x = torch.zeros_like(x).index_add(0, source, w[:, None] * back)
    return d_x, (back * x[at(source, target)]).sum(1), None, None


def test_another_index_of_the_call():
    (found,) = _found(
        _messages,
        lambda a, y, g: _messages_backward(a, y, g, at=lambda s, t: t),
        x="nb",
        w="k",
        source="!n/k",
        target="!n/k",
    )
    assert (found.input, found.cause) == ("w", "operand")
    assert "what it would be with `target` in place of `source`" in found.hint


def test_an_index_that_no_tensor_of_the_call_has():
    (found,) = _found(
        _messages,
        lambda a, y, g: _messages_backward(a, y, g, at=lambda s, t: (s + t) % a[0].shape[0]),
        x="nb",
        w="k",
        source="!n/k",
        target="!n/k",
    )
    assert "in place of" not in found.hint


def test_a_derivative_that_lacks_its_conjugate():
    def forward(z):
        return (torch.exp(z) * 2).sum(-1)

    (found,) = _found(
        forward, lambda a, y, g: (2 * g[:, None] * torch.exp(a[0]),), dtype="complex128", z="bn"
    )
    assert found.cause == "conjugate"


def _patches(x):
    b, n = x.shape
    return torch.sin(x.reshape(b, n // 2, 2).permute(1, 0, 2).reshape(n // 2, -1)).cumsum(-1)


def test_entries_that_stand_anywhere_else():
    """A permute is missing before the last reshape."""

    def backward(a, y, g):
        x = a[0]
        b, n = x.shape
        inner = x.reshape(b, n // 2, 2).permute(1, 0, 2).reshape(n // 2, -1)
        d = g.flip(-1).cumsum(-1).flip(-1) * torch.cos(inner)
        return (d.reshape(n // 2, b, 2).reshape(b, n),)

    found = _found(_patches, backward, x="bn")
    assert all(f.cause in {"permuted", "transposed", ""} for f in found)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda y, g: y.mT @ g, "`exp(A)ᵀ @ grad_output`"),
        (lambda y, g: g * y, "entry by entry"),
    ],
    ids=["commuting", "entrywise"],
)
def test_the_exponential_of_a_matrix(wrong, words):
    right = Right("f", torch.matrix_exp, None, {"x": "nn"})
    (found,) = findings_on(function_of(right, lambda a, y, g: (wrong(y, g),)), right.shapes)
    assert found.cause == "chain-factor"
    assert words in found.hint
