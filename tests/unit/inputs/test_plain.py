"""Plain values: what a person follows by hand, and still valid."""

import math

import pytest

from gradverify.model import Point, TensorInput
from gradverify.verifier.inputs.tensors import build_tensor
from gradverify.verifier.inputs.values import draw_plain

BOUNDS = {"real": (-2, 2), "positive": (0, 2), "negative": (-2, 0), "unit": (0, 1), "nonzero": (-2, 2)}


def plain(shape, draw=0, **fields):
    return draw_plain(TensorInput("x", shape, **fields), 5, Point.PLAIN, draw)


def test_the_plainest_first():
    assert plain((1,)) == [1.0]
    assert sorted(plain((4,))) == [-1.5, -1.0, 1.0, 1.5]


@pytest.mark.parametrize("domain", BOUNDS)
@pytest.mark.parametrize("draw", range(3))
def test_distinct_halves_or_tenths_within_the_domain(domain, draw):
    for count in (1, 3, 8):
        values = plain((count,), draw, domain=domain)
        low, high = BOUNDS[domain]
        assert len(set(values)) == count
        assert all(low <= v <= high and v not in (0, 1 if domain == "unit" else 0) for v in values)
        assert all(math.isclose(10 * v, round(10 * v)) for v in values)


def test_range_and_kinks_are_kept():
    values = plain((4,), range=(0.0, 3.0), avoid=(1.0,))
    assert all(0 < v < 3 and abs(v - 1) > 0.05 for v in values)


def test_many_entries_are_typical_ones():
    assert len(set(plain((10, 10)))) == 100


def test_a_structure_is_kept():
    spd = build_tensor(TensorInput("a", (3, 3), structure="spd"), 5, Point.PLAIN, 0, "cpu")
    assert spd.equal(spd.mT)
    assert spd.dtype.is_floating_point
    unit = build_tensor(TensorInput("u", (2, 3), structure="unit-norm"), 5, Point.PLAIN, 1, "cpu")
    assert unit.norm(dim=-1).allclose(unit.new_ones(2))
