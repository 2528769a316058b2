"""The drop-in where forward is piecewise constant."""

import warnings

import pytest
import torch
from torch.autograd import Function

import gradverify

UNVERIFIED = "not verified by gradverify, torch's own check decided"


def inputs(rows=200):
    """Quotients up to some 70, as in torch's own samples of `div`: a few lie between two near edges."""
    g = torch.Generator().manual_seed(3)
    x, y = (torch.rand(rows, generator=g, dtype=torch.float64) * 8.9 + 0.1 for _ in range(2))
    return x.requires_grad_(), y.requires_grad_()


def divided(fault, height=1.0):
    """Floor division, in stairs of some height, whose backward gives zeros and a fault."""

    class Divided(Function):
        @staticmethod
        def forward(ctx, x, y):
            Divided.calls += 1
            ctx.quotient = x / y
            return ctx.quotient.floor() * height

        @staticmethod
        def backward(ctx, g):
            wrong = fault(ctx.quotient, g)
            return wrong, torch.zeros_like(g)

    Divided.calls = 0
    return Divided


def judged(function, *given):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        passed = gradverify.gradcheck(function, given, raise_exception=False)
    return passed, " ".join(str(w.message) for w in caught)


def test_zeros_on_stairs_pass():
    x, y = inputs(20)
    right = divided(lambda _, g: torch.zeros_like(g))
    assert judged(right.apply, x, y)[0]


def test_zeros_on_narrow_stairs_are_proven_without_the_long_proof():
    """Each row jumps on both sides within a thirtieth of its size: the short proof asks as far as that."""

    class Narrow(Function):
        calls = 0

        @staticmethod
        def forward(ctx, x):
            Narrow.calls += 1
            return (30 * x).floor()

        @staticmethod
        def backward(ctx, g):
            return torch.zeros_like(g)

    x = (torch.arange(31.0, 60.0, dtype=torch.float64) + 0.5) / 30
    assert judged(Narrow.apply, x.requires_grad_()) == (True, "")
    assert Narrow.calls < 50  # 56 with the proof


@pytest.mark.parametrize(("size", "passes"), [(0.0, True), (1e-3, False)])
def test_what_lies_between_two_near_edges_is_judged(size, passes):
    x, y = inputs(20)
    with torch.no_grad():
        x[0], y[0] = 0.13 * 66.99, 0.13
    only = torch.zeros(x.numel(), dtype=torch.float64)
    only[0] = size
    assert judged(divided(lambda _, g: g * only, height=0.3).apply, x, y) == (passes, "")


@pytest.mark.parametrize("row", [0, 57, "steepest"])
@pytest.mark.parametrize("size", [1e-3, 1.0])
def test_what_is_not_zero_on_stairs_is_found(row, size):
    x, y = inputs()
    at = int((x / y).argmax()) if row == "steepest" else row
    only = torch.zeros(x.numel(), dtype=torch.float64)
    only[at] = size
    assert not judged(divided(lambda _, g: g * only).apply, x, y)[0]


@pytest.mark.parametrize("rows", [3, 20, 200])
def test_zeros_where_forward_rounds_inside_are_not_verified(rows):
    class Rounded(Function):
        @staticmethod
        def forward(ctx, x, y):
            return (x / y).bfloat16().double()

        @staticmethod
        def backward(ctx, g):
            return torch.zeros_like(g), torch.zeros_like(g)

    x, y = inputs(rows)
    assert UNVERIFIED in judged(Rounded.apply, x, y)[1]


def test_a_few_rows_that_round_inside_are_not_verified_beside_stairs():
    """What rounds there to bfloat16 looks as flat as the rest; most of it has stairs."""

    class Mixed(Function):
        @staticmethod
        def forward(ctx, x):
            return torch.where(torch.arange(x.numel()) % 40 == 7, x.bfloat16().double(), (x / 8).floor())

        @staticmethod
        def backward(ctx, g):
            return torch.zeros_like(g)

    x = torch.rand(120, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 1.1
    assert UNVERIFIED in judged(Mixed.apply, x.requires_grad_())[1]
