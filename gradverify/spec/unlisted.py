"""Sizes that a spec leaves open: a bug may show at one size only, and a symbolic shape names none.

`{x: [n, d]}` without `sizes:` says that any sizes are valid, and its case has but one of each. Others follow
here: one more of each, all alike (a transposition that is guessed from shapes needs non-square ones), and
each alone at 1 (`squeeze`, a sum over what looks broadcast). Where `sizes:` lists what is valid, nothing is
left open: 0 and 1 are tried in a thorough run, and what is wrong there is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from gradverify.model import Case
from gradverify.spec.cases import case_id
from gradverify.spec.other_sizes import case_at
from gradverify.spec.sweep import Sweep, allowed, factors_of

ALL_ALIKE = 3
"""What every open size is in a square case: odd, and no multiple of anything usual."""

MOST_OPEN = 8
"""Cases at open sizes: the two with others, and six sizes at 1; each costs a few evaluations."""

Sizes = Mapping[str, int]


def open_sized(sweep: Sweep, base: Case) -> tuple[Case, ...]:
    """The base case at other sizes of those that the spec leaves open; without seeds."""
    if sweep.hook or not sweep.automatic:
        return ()
    return tuple(islice(_cases(sweep, base, _open(sweep.automatic)), MOST_OPEN))


def degenerate(sweep: Sweep, base: Case) -> tuple[Case, ...]:
    """The base case with one size at 0 or 1 that is not listed; without seeds."""
    if sweep.hook:
        return ()
    sizes = dict(base.sizes)
    listed = {name: set(sweep.sizes.get(name, ())) for name in sizes}
    others = (
        {**sizes, name: n}
        for name in sizes
        if name not in sweep.of_ranks
        for n in (0, 1)
        if n not in listed[name] and not (n == 1 and name in sweep.automatic)
    )
    return tuple(_cases(sweep, base, others))


def _open(automatic: Sizes) -> Iterator[dict[str, int]]:
    # Each of the first ones is even where its successor is odd: both halves and tails occur.
    yield {name: n + 1 for name, n in automatic.items()}
    if len(automatic) > 1:
        yield dict.fromkeys(automatic, ALL_ALIKE)
    for name in automatic:
        yield {**automatic, name: 1}


def _cases(sweep: Sweep, base: Case, others: Iterator[dict[str, int]]) -> Iterator[Case]:
    factors = factors_of(sweep)
    for other in others:
        sizes = {**dict(base.sizes), **other}
        case = case_at(sweep, factors, base, sizes) if allowed(sweep, sizes) is None else None
        if case is not None:
            yield replace(case, id=case_id(list(case.sizes), list(case.options)))
