"""Undeclared draws: magnitudes, signs, zeros, ties and duplicates, and nothing a spec forbids."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradverify.model import Case, Point, TensorInput
from gradverify.model.case import KEEP_AWAY, MODERATE, is_declared, points_of
from gradverify.verifier.inputs.undeclared import LARGE, draw_duplicates, draw_one_truth, draw_undeclared
from gradverify.verifier.inputs.values import DOMAINS, SMALL, draw_integers, draw_values

DOMAIN = st.sampled_from(sorted(DOMAINS))
SEED = st.integers(0, 1000)
DRAWS = [(Point.WIDE, 1), (Point.WIDE, 2), (Point.WIDE, 3), (Point.SPECIAL, 1), (Point.SPECIAL, 2)]


def spec(shape=(12,), **fields):
    return TensorInput("x", shape, **fields)


@pytest.mark.parametrize(("point", "draw"), DRAWS)
@given(seed=SEED, domain=DOMAIN, count=st.integers(0, 40))
def test_inside_the_domain_and_short(point, draw, seed, domain, count):
    values = draw_undeclared(spec((count,), domain=domain), seed, point, draw)
    low, high = DOMAINS[domain]
    assert len(values) == count
    assert all(low < v < high for v in values)
    assert all(len(f"{v:.8g}") <= 12 for v in values)
    assert not (domain == "nonzero" and 0.0 in values)


@given(seed=SEED)
def test_four_entries_pass_the_usual_thresholds_on_both_sides(seed):
    drawn = [v for draw in (1, 2) for v in draw_undeclared(spec((4,)), seed, Point.WIDE, draw)]
    for threshold in (1.0, 3.16, 10.0, 31.6):
        assert any(v >= threshold for v in drawn)
        assert any(v <= -threshold for v in drawn)
    assert all(LARGE[0] <= abs(v) <= LARGE[1] for v in drawn)


@given(seed=SEED, count=st.integers(1, 300))
def test_small_values_are_all_small(seed, count):
    values = draw_undeclared(spec((count,)), seed, Point.WIDE, 3)
    assert all(SMALL[0] <= abs(v) <= SMALL[1] for v in values)


@given(seed=SEED, count=st.integers(1, 200))
def test_distinct_values_stay_distinct(seed, count):
    for point, draw in DRAWS:
        values = draw_undeclared(spec((count,), distinct=True), seed, point, draw)
        assert len(set(values)) == count


@given(seed=SEED)
def test_zeros_and_ties_are_planted(seed):
    values = draw_undeclared(spec((12,)), seed, Point.SPECIAL, 1)
    assert values.count(0.0) == 3
    rows = draw_undeclared(spec((4, 3)), seed, Point.SPECIAL, 2)
    alike = [row for row in (rows[k : k + 3] for k in range(0, 12, 3)) if len(set(row)) == 1]
    assert len(alike) == 2
    assert [0.0] * 3 in alike


@given(seed=SEED)
def test_a_declared_special_value_fills_a_row_beside_ordinary_ones(seed):
    values = draw_undeclared(spec((6, 3), special=(0.5,)), seed, Point.SPECIAL, 2)
    rows = [values[k : k + 3] for k in range(0, 18, 3)]
    assert [0.5] * 3 in rows
    assert any(len(set(row)) > 1 for row in rows)


@given(seed=SEED)
def test_no_zero_where_a_spec_forbids_it(seed):
    for forbidding in (
        {"avoid": (0.0,)},
        {"range": (0.5, 2.0)},
        {"domain": "nonzero"},
    ):
        for point, draw in DRAWS:
            values = draw_undeclared(spec((6,), **forbidding), seed, point, draw)
            assert 0.0 not in values


@given(seed=SEED)
def test_kinks_are_avoided(seed):
    for point, draw in DRAWS:
        values = draw_undeclared(spec((20,), avoid=(0.0, 5.0)), seed, point, draw)
        assert min(abs(v - kink) for v in values for kink in (0.0, 5.0)) >= KEEP_AWAY


@given(seed=SEED, count=st.integers(2, 9))
def test_integers_repeat(seed, count):
    index = spec((count,), dtype="int64", range=(0, 50))
    assert len(set(draw_integers(index, seed, Point.TYPICAL, 0))) == count
    assert count == 2 or len(set(draw_integers(index, seed, Point.TYPICAL, 1))) < count
    half, all_of_them = (draw_duplicates(index, seed, draw) for draw in (1, 2))
    assert max(map(half.count, half)) >= (count + 1) // 2
    assert len(set(all_of_them)) == 1


@given(seed=SEED)
def test_distinct_integers_do_not_repeat(seed):
    index = spec((6,), dtype="int64", range=(0, 9), distinct=True)
    drawn = [draw_integers(index, seed, Point.TYPICAL, draw) for draw in (0, 1)]
    assert all(len(set(values)) == 6 for values in (*drawn, draw_duplicates(index, seed, 1)))


def test_masks_of_one_value():
    assert draw_one_truth(spec((2, 2), dtype="bool"), 1) == [True] * 4
    assert draw_one_truth(spec((2, 2), dtype="bool"), 2) == [False] * 4


def test_structured_and_ranged_inputs_have_no_undeclared_wide_draw():
    structured = Case("base", 0, inputs=(TensorInput("a", (3, 3), structure="spd"),))
    assert all(is_declared(*where) for where in points_of(structured) if where[0] is Point.WIDE)
    ranged = Case("base", 0, inputs=(spec(range=(-3.0, 3.0)),))
    assert all(is_declared(*where) for where in points_of(ranged) if where[0] is Point.WIDE)
    empty = Case("base", 0, inputs=(spec((0,)),))
    assert all(is_declared(*where) for where in points_of(empty))


def test_ranged_inputs_stay_in_their_range_beside_free_ones():
    values = draw_undeclared(spec(range=(-3.0, 3.0)), 0, Point.WIDE, 1)
    assert all(-3 <= v <= 3 for v in values)
    assert math.prod((12,)) == len(values)


@pytest.mark.parametrize("seed", range(3))
def test_the_second_round_goes_further(seed):
    first, second = (draw_undeclared(spec((6,)), seed, Point.WIDE, draw) for draw in (1, 4))
    assert max(map(abs, first)) <= 100 < min(map(abs, second))
    assert max(map(abs, second)) > 1e3


@pytest.mark.parametrize("seed", range(5))
def test_one_row_is_the_same_in_inputs_of_one_shape(seed):
    x, y = (draw_undeclared(replace(spec((4, 3)), name=name), seed, Point.SPECIAL, 2) for name in ("x", "y"))
    rows = [(tuple(x[k : k + 3]), tuple(y[k : k + 3])) for k in range(0, 12, 3)]
    assert sum(one == other for one, other in rows if any(one)) == 1


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 5)])
@pytest.mark.parametrize("ends", [(-50.0, 50.0), (0.0, 1000.0), (1e-4, 1e3), (-1e4, 1.0)])
def test_a_declared_range_is_drawn_at_every_magnitude_that_it_holds(shape, ends):
    ranged = spec(shape, range=ends)
    case = Case("base", 0, inputs=(ranged,))
    places = [where for where in points_of(case) if where[0] is Point.WIDE]
    values = [v for where in places for v in draw_values(ranged, 0, *where)]
    assert all(ends[0] <= v <= ends[1] for v in values)
    assert any(0 < abs(v) < 0.1 for v in values)
    decades = {math.floor(math.log10(abs(v) / MODERATE)) for v in values if abs(v) > MODERATE}
    assert decades >= set(range(math.floor(math.log10(max(map(abs, ends)) / MODERATE))))
