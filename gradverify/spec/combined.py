"""Combinations of three and more options that pairs leave out.

Options are where code branches. A pair of them occurs together in some case, three need not: `causal`, with a
mask and without dropout, say. Each that no case has is judged once, at the sizes of the base case.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from gradverify.model import Case, Scalar
from gradverify.spec.cases import bound_case
from gradverify.spec.evaluated import InfeasibleError
from gradverify.spec.sweep import Factor, Sweep, Values, factors_of

FEWEST_OPTIONS = 3
"""Of two, pairs have every combination."""

MOST_COMBINED = 16
"""Combinations that are judged; each costs a few evaluations."""


def combined(sweep: Sweep, cases: Sequence[Case]) -> tuple[Case, ...]:
    """The combinations of options that no case has, at the sizes of the first one; without seeds."""
    if sweep.hook or sweep.rows != "pairwise" or not cases:
        return ()
    factors = factors_of(sweep)
    options = [f for f in factors if not f.is_size and len(f.levels) > 1]
    if len(options) < FEWEST_OPTIONS:
        return ()
    known = {case.options for case in cases}
    return tuple(itertools.islice(_unknown(sweep, factors, cases[0], known), MOST_COMBINED))


def _unknown(
    sweep: Sweep, factors: Sequence[Factor], base: Case, known: set[tuple[tuple[str, Scalar], ...]]
) -> Iterator[Case]:
    for row in itertools.product(*_levels(factors, dict(base.sizes))):
        try:
            case = bound_case(sweep, factors, row)
        except InfeasibleError:
            continue
        if case.options not in known:
            yield case


def _levels(factors: Sequence[Factor], sizes: dict[str, int]) -> Iterator[Values]:
    return ((sizes[f.name],) if f.is_size else f.levels for f in factors)
