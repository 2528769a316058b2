"""Where several coordinates meet in a kink, each piece that meets there may be the one backward chose."""

import pytest
import torch
from extent import extent


class Quantile(torch.autograd.Function):
    """Between the smallest and the middle one; ties are broken by position."""

    weights = (0.4, 0.6, 0.0)

    @staticmethod
    def forward(ctx, x):
        values, order = x.sort(stable=True)
        ctx.save_for_backward(order)
        return (values * torch.tensor([0.4, 0.6, *[0.0] * (len(x) - 2)], dtype=x.dtype)).sum()

    @classmethod
    def backward(cls, ctx, g):
        (order,) = ctx.saved_tensors
        given = torch.tensor([*cls.weights, *[0.0] * (len(order) - 3)], dtype=g.dtype)
        return torch.zeros_like(given).scatter(0, order, g * given)


class TooMuch(Quantile):
    """More than any piece has."""

    weights = (0.4, 0.9, 0.0)


@pytest.mark.parametrize("equal", [3, 4, 9])
def test_the_gradient_of_one_of_the_pieces_is_not_wrong(maps, equal):
    judged = maps.judged(Quantile.apply, torch.full((equal,), 0.5, dtype=torch.float64))
    assert judged.comparison.analytical[0, 1] > judged.comparison.numerical[0, 1] + judged.measured.kink[0, 1]
    assert not judged.comparison.wrong.any()
    assert judged.comparison.kinks[0, :2].all()


@pytest.mark.parametrize("equal", [3, 4])
def test_what_no_piece_has_is_wrong(maps, equal):
    judged = maps.judged(TooMuch.apply, torch.full((equal,), 0.5, dtype=torch.float64))
    assert judged.comparison.wrong[0, 1]
    apart = torch.tensor([0.1, 0.3, 0.7], dtype=torch.float64)
    assert maps.judged(TooMuch.apply, apart).comparison.wrong.tolist() == [[False, True, False]]


class Routed(torch.autograd.Function):
    """A token goes to the two experts with the largest scores; if it is zero, all scores are equal."""

    @staticmethod
    def forward(ctx, token, router, experts):
        index = (router @ token).topk(2).indices
        ctx.save_for_backward(experts, index)
        return (experts @ token)[index].sum()[None]

    @classmethod
    def gradient(cls, experts, index):
        return experts[index].sum(0)

    @classmethod
    def backward(cls, ctx, g):
        experts, index = ctx.saved_tensors
        return g * cls.gradient(experts, index), None, None


class ToNoExpert(Routed):
    """Beyond what any two of the experts give together."""

    @classmethod
    def gradient(cls, experts, index):
        return 2 * experts.abs().sum(0)


@pytest.mark.parametrize("seed", range(extent(6, 16)))
@pytest.mark.parametrize("function", [Routed, ToNoExpert])
def test_pieces_that_meet_in_cones_are_found_in_every_direction(maps, function, seed):
    generator = torch.Generator().manual_seed(seed)
    router = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    experts = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    judged = maps.judged(lambda x: function.apply(x, router, experts), torch.zeros(3, dtype=torch.float64))
    assert judged.measured.kink[0].all()
    assert judged.comparison.wrong.any() == (function is ToNoExpert)
