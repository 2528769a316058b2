"""Where several coordinates meet in a kink, each piece that meets there may be the one backward chose."""

import pytest
import torch


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
