"""Where ours cannot tell a few entries, torch's own check is asked about these alone."""

import pytest
import torch
from torch.autograd import Function

import gradverify
from gradverify.api import part_asked
from gradverify.api.options import Options
from gradverify.api.original import original_of
from gradverify.api.part_asked import Entries, entries_of, passes_in_part

OPTIONS = Options(1e-6, 1e-5, 1e-3, 0.0, True, False, False, False, False, True, False, False)


class Wave(Function):
    """(sin x · y, sum of y): the gradient of one entry of x is wrong."""

    @staticmethod
    def forward(ctx, x, y, wrong):
        ctx.save_for_backward(x, y)
        ctx.wrong = wrong
        return x.sin() * y, y.sum()

    @staticmethod
    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        by_x = g * y * x.cos()
        by_x.view(-1)[ctx.wrong] *= 2
        return by_x, g * x.sin() + h, None


def wave():
    x = torch.linspace(0.1, 1.2, 12, dtype=torch.float64).reshape(4, 3).mT.requires_grad_()
    y = torch.linspace(1.0, 2.0, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
    return lambda x, y: Wave.apply(x, y, 5), (x, y)


@pytest.mark.parametrize(
    ("entries", "right"),
    [
        (Entries((4, 12), (4, 16)), True),
        (Entries((5, 12), (5,)), False),
        (Entries((5,), (6, 17)), True),
        (Entries(tuple(range(13)), tuple(range(24))), False),
    ],
    ids=["others", "the wrong one", "another column of its row", "all, for which that is not made"],
)
def test_only_the_entries_asked_about_count(entries, right):
    function, inputs = wave()
    original = original_of(inputs, function(*inputs))
    assert passes_in_part(function, original, entries, OPTIONS) is right


@pytest.mark.parametrize("keyword", ["fast_mode", "check_grad_dtypes", "check_batched_grad"])
def test_what_is_another_question_is_asked_whole(keyword):
    function, inputs = wave()
    original = original_of(inputs, function(*inputs))
    entries = Entries((4,), (4,))
    assert not passes_in_part(function, original, entries, OPTIONS._replace(**{keyword: True}))


def test_entries_are_told_by_their_positions_in_the_whole():
    missing = torch.zeros(3, 4, dtype=torch.bool)
    missing[1, 2] = missing[1, 0] = True
    assert entries_of(missing) == Entries((1,), (0, 2))
    assert entries_of(missing, (10, 20, 30), (5, 6, 7, 8)) == Entries((20,), (5, 7))


class Divided(Function):
    """Floor division, right; one quotient lies between two near edges, which no measurement tells."""

    calls = 0

    @staticmethod
    def forward(ctx, x, y, undefined):
        Divided.calls += 1
        ctx.undefined = undefined
        ctx.set_materialize_grads(False)
        return (x / y).floor()

    @staticmethod
    def backward(ctx, g):
        if g is None and not ctx.undefined:
            raise TypeError("no grad_output")
        zeros = None if g is None else torch.zeros_like(g)
        return zeros, zeros, None


def quotients():
    g = torch.Generator().manual_seed(3)
    x, y = (torch.rand(200, generator=g, dtype=torch.float64) * 8.9 + 0.1 for _ in range(2))
    x[0], y[0] = 0.13 * 66.99, 0.13
    return x.requires_grad_(), y.requires_grad_()


def test_one_entry_takes_no_slow_mode_of_the_whole():
    Divided.calls = 0
    with pytest.warns(UserWarning, match="torch's own check decided: 1 of 40000 entries"):
        assert gradverify.gradcheck(lambda x, y: Divided.apply(x, y, True), quotients())
    assert Divided.calls < 1200  # 941 and torch's; slow mode of the whole calls it 800 times more


def test_what_torch_asks_of_every_backward_is_asked_all_the_same(monkeypatch):
    asked = []
    monkeypatch.setattr(part_asked, "torch_gradcheck", lambda *_, **__: asked.append(1) or True)
    with pytest.raises(TypeError, match="no grad_output"):
        gradverify.gradcheck(lambda x, y: Divided.apply(x, y, False), quotients())
    assert not asked
