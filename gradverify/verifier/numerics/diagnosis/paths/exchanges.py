"""Forward with another number, or with other values, in one place: backward may give its gradient."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.paths.changes import Edge
from gradverify.verifier.numerics.diagnosis.paths.glance import Glance, block_of
from gradverify.verifier.numerics.diagnosis.paths.instrumented import Factor, Instrumented
from gradverify.verifier.numerics.diagnosis.paths.own_forward import OwnForward
from gradverify.verifier.numerics.diagnosis.paths.sites import Site, text_of
from gradverify.verifier.numerics.diagnosis.paths.values import TRANSFORMS

MOST_RUNS = 600
"""Exchanges that are tried."""


NUMBERS: tuple[tuple[str, Callable[[float], float]], ...] = (
    ("1", lambda _: 1.0),
    ("0", lambda _: 0.0),
    ("-{}", lambda c: -c),
    ("2 * {}", lambda c: 2 * c),
    ("{} / 2", lambda c: c / 2),
    ("1 / {}", lambda c: 1 / c if c else math.nan),
    ("1 - {}", lambda c: 1 - c),
    ("{}**2", lambda c: c * c),
    ("sqrt({})", lambda c: math.sqrt(abs(c))),
    ("{} - 1", lambda c: c - 1),
    ("{} + 1", lambda c: c + 1),
)
"""What a number of forward may have been taken for."""


@dataclass(frozen=True)
class Exchange:
    """Forward with another number, or other values, in one place."""

    kind: str
    """`number`, `value`, `swapped` for the values of two calls, `transposed` for a factor of a derivative,
    `use` for one use of a value, `neighbour` for one that is given the value of another pass of a loop."""
    site: Site
    place: int
    """Number of the argument, for a number."""
    text: str
    """What stands there instead; `{}` for what stood there."""
    mode: Callable[[OwnForward], Instrumented | None]
    """A run with the exchange; None where it changes nothing."""
    other: Site | None = None


def held(first: Glance, rest: Sequence[Glance]) -> Exchange | None:
    """The first exchange after which forward's gradient is what backward gives, at every point."""
    tried = itertools.islice(_exchanges(first.own), MOST_RUNS)
    return next((e for e in tried if all(_is_with(g, e) for g in (first, *rest))), None)


def _exchanges(own: OwnForward) -> Iterator[Exchange]:
    for edge in own.constants:
        for text, number in NUMBERS:
            yield Exchange("number", edge.site, edge.place, text, _with_number(edge, number))
    for factor in own.factors:
        yield Exchange("transposed", factor[0], -1, "operand", _with_turned(factor))
    sites = [site for site in own.results if not site.part]
    for site in sites:
        for text, transform in TRANSFORMS:
            yield Exchange("value", site, -1, text, _with_values(site, transform))
    for site in sites:
        for k, name in enumerate(own.input_names):
            yield Exchange("value", site, -1, name, _with_input(site, k))
    for edge in own.given:
        for name, by in ((("previous"), -1), (("next"), 1)):
            yield Exchange("neighbour", edge.site, edge.place, name, _with_neighbour(edge, by))
    alike = [
        (a, b)
        for a, b in itertools.permutations(sites, 2)
        if own.results[a][0].shape == own.results[b][0].shape
    ]
    for a, b in alike:
        yield Exchange("value", a, -1, text_of(b), _with_result(a, b))
    for a, b in alike:
        if sites.index(a) < sites.index(b):
            yield Exchange("swapped", a, -1, text_of(b), _swapping(a, b), b)
    for edge, given in own.given.items():
        for k, name in enumerate(own.input_names):
            if own.input_values[k].shape == given[0].shape:
                yield Exchange("use", edge.site, edge.place, name, _using_input(edge, k))
        for site in sites:
            if own.results[site][0].shape == given[0].shape and not torch.equal(own.results[site][0], given[0]):
                yield Exchange("use", edge.site, edge.place, text_of(site), _using_result(edge, site))


def _with_neighbour(edge: Edge, by: int) -> Callable[[OwnForward], Instrumented | None]:
    def mode(own: OwnForward) -> Instrumented | None:
        given = own.given.get(edge, [])
        if len(given) < 2 or any(v.shape != given[0].shape for v in given):
            return None
        nothing, results = torch.zeros_like(given[0]), own.results.get(edge.site, [])
        return Instrumented(
            instead={edge: lambda k: given[k + by] if 0 <= k + by < len(given) else nothing},
            # The loop goes on as it did: only the derivative sees the other value.
            moved={edge.site: lambda _, k: results[k] if k < len(results) else None},
        )

    return mode


def _using_input(edge: Edge, number: int) -> Callable[[OwnForward], Instrumented | None]:
    def mode(own: OwnForward) -> Instrumented | None:
        value, given = own.input_values[number].detach(), own.given.get(edge, [])
        if not given or any(v.shape != value.shape or v.dtype != value.dtype for v in given):
            return None
        return None if all(torch.equal(v, value) for v in given) else _using(edge, lambda _: value)

    return mode


def _using_result(edge: Edge, site: Site) -> Callable[[OwnForward], Instrumented | None]:
    def mode(own: OwnForward) -> Instrumented | None:
        given, there = own.given.get(edge, []), own.results.get(site, [])
        if not given or len(given) != len(there):
            return None
        if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(given, there, strict=True)):
            return None
        return _using(edge, lambda k: there[k] if k < len(there) else None)

    return mode


def _using(edge: Edge, other: Callable[[int], Tensor | None]) -> Instrumented:
    return Instrumented(instead={edge: other})


def _with_turned(factor: Factor) -> Callable[[OwnForward], Instrumented | None]:
    return lambda own: Instrumented(turned=frozenset({factor})) if factor in own.factors else None


def _with_number(edge: Edge, other: Callable[[float], float]) -> Callable[[OwnForward], Instrumented | None]:
    def mode(own: OwnForward) -> Instrumented | None:
        number = own.constants.get(edge)
        value = math.nan if number is None else other(number)
        return Instrumented(exchanged={edge: value}) if math.isfinite(value) and value != number else None

    return mode


def _with_values(
    site: Site, transform: Callable[[Tensor], Tensor]
) -> Callable[[OwnForward], Instrumented | None]:
    return lambda own: Instrumented(moved={site: lambda v, _: transform(v)}) if site in own.results else None


def _with_input(site: Site, number: int) -> Callable[[OwnForward], Instrumented | None]:
    def mode(own: OwnForward) -> Instrumented | None:
        value = own.input_values[number]
        results = own.results.get(site)
        if results is None or results[0].shape != value.shape or results[0].dtype != value.dtype:
            return None
        return Instrumented(moved={site: lambda _, __: value})

    return mode


def _with_result(site: Site, other: Site) -> Callable[[OwnForward], Instrumented | None]:
    def mode(own: OwnForward) -> Instrumented | None:
        move = _values_of(own, site, other)
        return None if move is None else Instrumented(moved={site: move})

    return mode


def _swapping(site: Site, other: Site) -> Callable[[OwnForward], Instrumented | None]:
    def mode(own: OwnForward) -> Instrumented | None:
        one, two = _values_of(own, site, other), _values_of(own, other, site)
        return None if one is None or two is None else Instrumented(moved={site: one, other: two})

    return mode


def _values_of(own: OwnForward, site: Site, other: Site) -> Callable[[Tensor, int], Tensor | None] | None:
    """The other call's values, pass by pass, where they have the shape of this one's."""
    here, there = own.results.get(site), own.results.get(other)
    if not here or not there or len(here) != len(there):
        return None
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(here, there, strict=True)):
        return None
    return lambda _, k: there[k] if k < len(there) else None


def _is_with(glance: Glance, exchange: Exchange) -> bool:
    mode = exchange.mode(glance.own)
    if mode is None:
        return False
    seen = glance.at_others(mode)
    if seen is None or not glance.agrees(seen):
        return False
    again = exchange.mode(glance.own)
    rows = None if again is None else glance.own.at_others(again, glance.pair.output, None)
    if rows is None:
        return False
    block = block_of(rows, glance.pair)
    return glance.pair.explained_by(block, torch.zeros_like(block))
