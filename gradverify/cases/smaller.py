"""Smaller sizes for a case that fails: the smallest that the spec allows and at which it still does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gradverify.cases.further import Asked, with_lengths_named
from gradverify.cases.sweep import in_call_order, resized
from gradverify.model import WORLD, Case

ONE_BY_ONE = 3
"""A size alone is tried at 1 up to this; a larger one that must stay is halved as often as it can be."""

Sizes = Mapping[str, int]


def sizes_of(asked: Asked, case: Case) -> dict[str, int]:
    """What may be made smaller: its sizes but for the number of ranks, or the lengths that are written."""
    sizes = case.sizes or with_lengths_named(asked.sweep).automatic
    return {name: n for name, n in sizes if name != WORLD or not case.world}


def at_sizes_of(asked: Asked, case: Case, sizes: Sizes) -> Case | None:
    """A case at other sizes, seeded as any case; None where the spec forbids them."""
    if sizes == sizes_of(asked, case):
        return case
    found = resized(with_lengths_named(asked.sweep), case, sizes)
    return None if found is None else in_call_order(found, asked.seed, asked.name, asked.order)


def smallest(sizes: Sizes, fails: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    """The smallest sizes found at which `fails` holds, as it does at the given ones.

    All are made small together first; then one after the other, the largest first.
    """
    best, ones = dict(sizes), dict.fromkeys(sizes, 1)
    if all(best.values()) and fails(ones):
        return ones
    for name in sorted(best, key=lambda name: -best[name]):
        small = range(1, min(best[name], ONE_BY_ONE + 1))
        best[name] = next((n for n in small if fails({**best, name: n})), best[name])
    return best
