"""Properties of the pairwise cover, against brute force."""

from __future__ import annotations

import itertools

import pytest
from extent import extent
from hypothesis import given, settings
from hypothesis import strategies as st

from gradverify.cases.pairwise import MAX_ROWS, Constraint, TooManyError, cover, first_row

LEVELS = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(
    lambda counts: [list(range(count)) for count in counts]
)


@st.composite
def problems(draw):
    levels = draw(LEVELS)
    base = (0,) * len(levels)
    constraints = []
    for _ in range(draw(st.integers(0, 3))):
        used = tuple(sorted(draw(st.sets(st.integers(0, len(levels) - 1), min_size=1, max_size=3))))
        rows = list(itertools.product(*(levels[factor] for factor in used)))
        forbidden = draw(st.sets(st.sampled_from(rows))) - {tuple(base[factor] for factor in used)}
        constraints.append(Constraint(used, lambda row, forbidden=forbidden: row not in forbidden))
    return levels, constraints, base


def feasible(row, constraints):
    return all(
        constraint.holds(tuple(row[factor] for factor in constraint.factors)) for constraint in constraints
    )


def pairs(row):
    entries = list(enumerate(row))
    return set(itertools.combinations(entries, 2)) if len(entries) > 1 else {(entries[0],)}


@settings(max_examples=extent(100, 400), deadline=None)
@given(problems())
def test_every_feasible_pair_is_covered_and_nothing_infeasible_is_run(problem):
    levels, constraints, base = problem
    result = cover(levels, constraints, [base])
    assert all(feasible(row, constraints) for row in result.rows)
    possible = set().union(*(pairs(row) for row in itertools.product(*levels) if feasible(row, constraints)))
    assert set().union(pairs(base), *(pairs(row) for row in result.rows)) == possible
    every = set().union(*(pairs(row) for row in itertools.product(*levels)))
    assert bool(result.infeasible) == bool(every - possible)


@settings(max_examples=extent(50, 200), deadline=None)
@given(problems())
def test_the_cover_is_fixed_and_has_no_idle_row(problem):
    levels, constraints, base = problem
    result = cover(levels, constraints, [base])
    assert result == cover(levels, constraints, [base])
    seen = pairs(base)
    for row in result.rows:
        assert pairs(row) - seen, "a row that covers nothing new"
        seen |= pairs(row)


@settings(max_examples=extent(50, 100), deadline=None)
@given(LEVELS)
def test_the_cover_is_near_the_smallest_possible(levels):
    counts = sorted((len(values) for values in levels), reverse=True)
    smallest = counts[0] * (counts[1] if len(counts) > 1 else 1)
    assert len(cover(levels, [], [(0,) * len(levels)]).rows) + 1 <= 2 * smallest + 2


def test_ten_factors_of_three_need_far_fewer_than_59049_rows():
    assert len(cover([[0, 1, 2]] * 10, [], []).rows) <= 27


def test_unusable_levels_are_left_out():
    assert cover([[1, 2], [0]], [], []).rows == ((1, 0), (2, 0))


def test_lists_that_are_too_long():
    with pytest.raises(TooManyError, match=f"at least 1600 cases, and {MAX_ROWS} are allowed"):
        cover([list(range(40))] * 2, [], [])


def test_a_search_without_end_is_ended():
    # Every pair of the last two factors is feasible alone, and no row holds them: all rows are tried.
    parity = Constraint(tuple(range(14)), lambda row: sum(row) == 0)
    with pytest.raises(TooManyError, match="too many combinations"):
        cover([[0, 1, 2, 3]] * 14, [parity], [(0,) * 14])


def test_the_first_row_in_lexicographic_order():
    odd = Constraint((0, 2), lambda row: sum(row) == 3)
    assert first_row([[0, 1, 2]] * 3, [odd]) == (1, 0, 2)
    assert first_row([[0, 1]] * 3, [odd]) is None
    assert first_row([], []) == ()
    assert first_row([], [Constraint((), lambda _: False)]) is None
