"""Values of very many entries: what holds of few holds of them, and they are the same every time."""

from __future__ import annotations

import pytest
import torch

from gradverify.model import Point, TensorInput
from gradverify.model.points import KEEP_AWAY
from gradverify.verifier.inputs.many import MANY, draw_many
from gradverify.verifier.inputs.regimes import LARGE, SMALL
from gradverify.verifier.inputs.values import MODERATE

ROWS = 500


def spec(**fields):
    return TensorInput("x", (ROWS, MANY // ROWS), **fields)


def drawn(spec, point=Point.TYPICAL, draw=0, seed=0):
    return draw_many(spec, seed, point, draw)


@pytest.mark.parametrize("domain", ["real", "positive", "negative", "unit"])
def test_typical_ones_are_distinct_moderate_decimals_of_the_domain(domain) -> None:
    values = drawn(spec(domain=domain))
    assert values.dtype is torch.float64 and values.unique().numel() == MANY == len(values)
    assert values.abs().min() > 0 and values.abs().max() <= MODERATE
    low, high = {"positive": (0, MODERATE), "negative": (-MODERATE, 0), "unit": (0, 1)}.get(domain, (-2, 2))
    assert low < values.min() and values.max() < high
    assert all(len(f"{abs(v):.9g}") <= 9 for v in values[:1000].tolist())


def test_they_keep_away_from_zero_and_from_declared_kinks() -> None:
    values = drawn(spec(avoid=(1.0,)))
    assert min((values - point).abs().min().item() for point in (0.0, 1.0, -1.0)) >= KEEP_AWAY


def test_neighbours_have_nothing_in_common() -> None:
    values = drawn(spec())
    together = torch.corrcoef(torch.stack([values[:-1], values[1:], values.roll(ROWS)[1:]])).fill_diagonal_(0)
    assert together.abs().max() < 0.02  # six standard deviations of 10^5 independent ones


def test_deterministic_and_different_by_seed_name_and_draw() -> None:
    first = drawn(spec())
    assert torch.equal(first, drawn(spec()))
    others = [drawn(spec(), seed=1), drawn(spec(), draw=2), drawn(TensorInput("y", (MANY,)))]
    assert all((first == other).count_nonzero() < MANY // 100 for other in others)
    assert first.sum() * drawn(spec(), draw=1).sum() <= 0


@pytest.mark.parametrize(("draw", "span"), [(1, LARGE), (3, SMALL)])
def test_wide_ones_are_of_all_magnitudes_and_of_both_signs(draw, span) -> None:
    values = drawn(spec(), Point.WIDE, draw)
    sizes = values.abs()
    assert span[0] <= sizes.min() < 1.01 * span[0] and 0.99 * span[1] < sizes.max() <= span[1]
    assert (values > 0).count_nonzero() == MANY // 2
    assert sizes.log().std() == pytest.approx(torch.tensor(span).log().diff().item() / 12**0.5, rel=1e-2)


def test_special_ones_hold_ties_zeros_and_even_rows() -> None:
    ties = drawn(spec(), Point.SPECIAL, 1)
    assert (ties == 0).count_nonzero() == MANY // 4
    assert (ties[1:] == ties[:-1]).count_nonzero() > MANY // 6
    rows = drawn(spec(), Point.SPECIAL, 2).view(ROWS, -1)
    even = (rows == rows[:, :1]).all(dim=1)
    assert even.count_nonzero() == 2 and (rows == 0).all(dim=1).count_nonzero() == 1
    other = draw_many(TensorInput("y", rows.shape), 0, Point.SPECIAL, 2).view_as(rows)
    assert (rows == other).all(dim=1).count_nonzero() >= 1
    distinct = drawn(spec(distinct=True), Point.SPECIAL, 1)
    assert distinct.unique().numel() == MANY and (distinct == 0).count_nonzero() == 1


def test_declared_ends_and_special_values_are_planted() -> None:
    ends = drawn(spec(range=(-30.0, 70.0)), Point.WIDE)
    assert {ends.min().item(), ends.max().item()} == {-30.0, 70.0}
    planted = drawn(spec(special=(0.25, 0.5)), Point.SPECIAL)
    assert all((planted == value).count_nonzero() >= MANY // 8 for value in (0.25, 0.5))


def test_where_too_few_are_allowed_some_occur_twice() -> None:
    assert drawn(spec(range=(1.0, 1.0))).eq(1.0).all()
