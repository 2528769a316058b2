"""Values of very many entries: what holds of few holds of them, and they are the same every time."""

from __future__ import annotations

import pytest
import torch

from gradverify.model import Point, TensorInput
from gradverify.model.case import KEEP_AWAY
from gradverify.verifier.inputs.tensors import DRAWN, MANY, build_tensor
from gradverify.verifier.inputs.values import MODERATE

ROWS = 750


def spec(**fields):
    return TensorInput("x", (ROWS, 3 * MANY // ROWS), **fields)


def drawn(spec, point=Point.TYPICAL, draw=0, seed=0):
    return build_tensor(spec, seed, point, draw, "cpu")


@pytest.mark.parametrize("domain", ["real", "positive", "negative", "unit"])
def test_typical_ones_are_distinct_moderate_values_of_the_domain(domain) -> None:
    values = drawn(spec(domain=domain))
    assert values.dtype is torch.float64 and values.unique().numel() == 3 * MANY == values.numel()
    low, high = {"positive": (0, MODERATE), "negative": (-MODERATE, 0), "unit": (0, 1)}.get(domain, (-2, 2))
    assert low < values.min() and values.max() < high
    assert torch.corrcoef(values[:: ROWS // 9]).fill_diagonal_(0).abs().max() < 0.3


def test_they_keep_away_from_zero_and_from_declared_kinks() -> None:
    values = drawn(spec(avoid=(1.0,)))
    assert min((values - point).abs().min().item() for point in (0.0, 1.0, -1.0)) >= 0.99 * KEEP_AWAY


def test_deterministic_and_different_by_seed_name_and_draw() -> None:
    first = drawn(spec())
    assert torch.equal(first, drawn(spec()))
    others = [drawn(spec(), seed=1), drawn(spec(), draw=2), drawn(TensorInput("y", first.shape))]
    assert all((first == other).count_nonzero() < MANY // 100 for other in others)


def test_complex_ones_and_special_ones() -> None:
    assert drawn(spec(dtype="complex128")).imag.unique().numel() == 3 * MANY
    ties = drawn(spec(), Point.SPECIAL, 1)
    assert (ties == 0).count_nonzero() >= 3 * MANY // 4
    rows = drawn(spec(), Point.SPECIAL, 2)
    assert (rows == rows[:, :1]).all(dim=1).any()
    assert drawn(spec(distinct=True), Point.SPECIAL, 1).unique().numel() >= 3 * (MANY - MANY // DRAWN)
    assert drawn(spec(range=(1.0, 1.0))).eq(1.0).all()
