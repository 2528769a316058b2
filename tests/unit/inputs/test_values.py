"""Drawn values: short, distinct, inside their bounds, away from what is declared, the same every time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradverify.model import Point, TensorInput
from gradverify.verifier.inputs.values import KEEP_AWAY, MODERATE, draw_booleans, draw_integers, draw_values

DOMAINS = ("real", "nonzero", "positive", "negative", "unit")
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
ranges = st.tuples(st.floats(-50, 50), st.floats(0.01, 100)).map(lambda r: (r[0], r[0] + r[1]))


def spec(shape=(12,), **fields):
    return TensorInput("x", shape, **fields)


def typical(spec, seed=0, draw=0):
    return draw_values(spec, seed, Point.TYPICAL, draw)


@given(shape=shapes, domain=st.sampled_from(DOMAINS), seed=st.integers(0, 2**40), draw=st.integers(0, 1))
def test_short_distinct_and_in_the_domain(shape, domain, seed, draw):
    values = typical(spec(shape, domain=domain), seed, draw)
    assert len(values) == math.prod(shape)
    assert len(set(values)) == len(values)
    assert all(len(f"{abs(v):g}") <= 6 for v in values)
    assert all(0 < abs(v) <= MODERATE for v in values)
    bounds = {"positive": (0, math.inf), "negative": (-math.inf, 0), "unit": (0, 1)}
    low, high = bounds.get(domain, (-math.inf, math.inf))
    assert all(low < v < high for v in values)


@given(bounds=ranges, seed=st.integers(0, 1000), draw=st.integers(0, 1))
def test_inside_the_range_and_off_its_ends(bounds, seed, draw):
    values = typical(spec(range=bounds), seed, draw)
    assert all(bounds[0] < v < bounds[1] for v in values)
    assert len(set(values)) == len(values)


@given(seed=st.integers(0, 1000), draw=st.integers(0, 1))
def test_away_from_declared_kinks_and_from_zero(seed, draw):
    kinks = (-0.5, 0.5, 1.0)
    values = typical(spec((20,), avoid=kinks), seed, draw)
    assert min(abs(v - k) for v in values for k in (*kinks, 0.0)) >= KEEP_AWAY


@given(seed=st.integers(0, 1000))
def test_the_second_draw_has_a_sum_of_the_other_sign(seed):
    first, second = (typical(spec((5,)), seed, draw) for draw in (0, 1))
    assert sum(first) * sum(second) <= 0


def test_deterministic_and_different_by_seed_name_and_draw():
    assert typical(spec()) == typical(spec())
    others = [typical(spec(), seed=1), typical(spec(), draw=1), typical(TensorInput("y", (12,)))]
    assert all(other != typical(spec()) for other in others)


def test_wide_values_reach_the_ends():
    values = draw_values(spec(range=(-30.0, 70.0)), 0, Point.WIDE, 0)
    assert {-30.0, 70.0} <= set(values)
    assert all(-30 <= v <= 70 for v in values)


@pytest.mark.parametrize("count", [1, 2, 40])
def test_special_values_are_planted(count):
    values = draw_values(spec((count,), special=(0.0, 1.0)), 0, Point.SPECIAL, 0)
    assert sum(v in {0.0, 1.0} for v in values) >= min(2, count)
    assert not {0.0} & set(typical(spec((count,), special=(0.0, 1.0))))


@given(seed=st.integers(0, 1000), count=st.integers(0, 9))
def test_integers_are_distinct_first_and_then_reach_both_ends(seed, count):
    wanted = spec((count,), dtype="int64", range=(-2, 7))
    first = draw_integers(wanted, seed, Point.TYPICAL, 0)
    second = draw_integers(wanted, seed, Point.TYPICAL, 1)
    assert len(set(first)) == len(first) == len(second) == count
    assert all(-2 <= v < 7 for v in (*first, *second))
    assert count < 2 or {-2, 6} <= set(second)


@given(seed=st.integers(0, 1000), count=st.integers(1, 40))
def test_special_integers_are_planted_beside_others(seed, count):
    wanted = spec((count,), dtype="int64", range=(0, 5), special=(-100,))
    values = draw_integers(wanted, seed, Point.SPECIAL, 0)
    assert -100 in values
    assert count == 1 or set(values) - {-100} <= set(range(5)) != set()
    assert count == 1 or any(v != -100 for v in values)
    for point, draw in ((Point.TYPICAL, 0), (Point.TYPICAL, 1), (Point.SPECIAL, 1)):
        assert -100 not in draw_integers(wanted, seed, point, draw)


def test_more_integers_than_candidates():
    values = draw_integers(spec((20,), dtype="int64", range=(0, 3)), 0, Point.TYPICAL, 0)
    assert set(values) == {0, 1, 2}


@given(seed=st.integers(0, 1000), count=st.integers(2, 9), draw=st.integers(0, 1))
def test_booleans_are_both(seed, count, draw):
    assert set(draw_booleans(spec((count,), dtype="bool"), seed, Point.TYPICAL, draw)) == {True, False}


def test_empty_shapes():
    assert typical(spec((3, 0))) == []
    assert draw_integers(spec((0,), dtype="int64"), 0, Point.TYPICAL, 0) == []
    assert draw_booleans(spec((0,), dtype="bool"), 0, Point.TYPICAL, 0) == []


@given(seed=st.integers(0, 1000), count=st.integers(1, 12), draw=st.integers(0, 1))
def test_integers_to_avoid_are_never_drawn(seed, count, draw):
    wanted = spec((count,), dtype="int64", range=(-2, 7), avoid=(6, 0, -2, 99))
    values = draw_integers(wanted, seed, Point.TYPICAL, draw)
    assert set(values) <= {-1, 1, 2, 3, 4, 5}
    assert draw == 0 or count < 2 or {-1, 5} <= set(values)


def test_the_largest_range_is_drawn_from():
    wanted = spec((3,), dtype="int64", range=(-(2**63), 2**63), avoid=(0,))
    assert all(-(2**63) <= v < 2**63 for v in draw_integers(wanted, 0, Point.TYPICAL, 0))


@given(seed=st.integers(0, 500), count=st.integers(2, 6), draw=st.integers(0, 3))
def test_several_typical_values_have_both_signs_where_they_may(seed, count, draw):
    """What is asked at one draw alone, as subsets of the inputs are, meets both branches of a sign."""
    for spec in (TensorInput("x", (count,)), TensorInput("x", (count,), range=(-50.0, 50.0), avoid=(0.5,))):
        values = draw_values(spec, seed, Point.TYPICAL, draw)
        assert min(values) < 0 < max(values)
        assert len({abs(v) for v in values}) == count or len(set(values)) == count
