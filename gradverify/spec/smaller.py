"""Smaller sizes for a case that fails: the smallest that the spec allows and at which it still does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from gradverify.model import WORLD, Case, Parameter
from gradverify.spec.cases import case_seed
from gradverify.spec.function import SpecFunction
from gradverify.spec.other_sizes import case_at, dimensions_of, with_dimensions
from gradverify.spec.plan import in_call_order
from gradverify.spec.sweep import allowed, factors_of

ONE_BY_ONE = 3
"""A size alone is tried at 1 up to this; a larger one that must stay is halved as often as it can be."""

Sizes = Mapping[str, int]
Resized = Callable[[Sizes], Case | None]


def sizes_of(case: Case) -> dict[str, int]:
    """What may be made smaller: its named sizes, else the dimensions of its tensors."""
    if case.world:
        return {name: n for name, n in case.sizes if name != WORLD}
    return dict(case.sizes) or dimensions_of(case)


def resizing(function: SpecFunction, case: Case, parameters: tuple[Parameter, ...], seed: int) -> Resized:
    """How a case of a function is had at other sizes, seeded as any case; None where the spec forbids them.

    `seed` is the run's.
    """
    sweep = function.sweep
    factors = factors_of(sweep) if sweep is not None else []

    def resized(sizes: Sizes) -> Case | None:
        if sweep is None:
            return None
        if not case.sizes:
            named = ",".join(map(str, sizes.values()))
            found: Case | None = replace(with_dimensions(case, sizes), id=f"{case.id} at {named}")
        else:
            at = {**dict(case.sizes), **sizes}
            found = case_at(sweep, factors, case, at) if allowed(sweep, at) is None else None
        if found is None:
            return None
        return in_call_order(found, case_seed(seed, function.name, found.id), parameters)

    return resized


def smallest(sizes: Sizes, fails: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    """The smallest sizes found at which `fails` holds, as it does at the given ones.

    All are made small together first; then one after the other, the largest first.
    """
    best = dict(sizes)
    for together in _together(best):
        if fails(together):
            best = together
            break
    for name in sorted(best, key=lambda name: -best[name]):
        best[name] = _smallest_of(best, name, fails)
    return best


def _together(sizes: Sizes) -> Iterator[dict[str, int]]:
    ones = dict.fromkeys(sizes, 1)
    # Pairwise different where they were: 2, 3, ... from the smallest on.
    order = sorted(set(sizes.values()) - {0, 1})
    different = {name: min(n, 2 + order.index(n)) if n > 1 else n for name, n in sizes.items()}
    for together in (ones, different):
        if together != sizes and all(n > 0 for n in sizes.values()):
            yield together


def _smallest_of(best: Sizes, name: str, fails: Callable[[dict[str, int]], bool]) -> int:
    size = best[name]
    for n in range(1, min(size, ONE_BY_ONE + 1)):
        if fails({**best, name: n}):
            return n
    while size > 2 * ONE_BY_ONE and fails({**best, name: size // 2}):
        size //= 2
    return size
