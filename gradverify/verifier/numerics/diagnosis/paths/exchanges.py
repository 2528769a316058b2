"""Forward with another number, or with other values, in one place: backward may give its gradient."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.paths.changes import Edge
from gradverify.verifier.numerics.diagnosis.paths.exchange import Exchange
from gradverify.verifier.numerics.diagnosis.paths.glance import Glance, block_of
from gradverify.verifier.numerics.diagnosis.paths.instrumented import Factor, Instrumented
from gradverify.verifier.numerics.diagnosis.paths.operations import BOUNDED
from gradverify.verifier.numerics.diagnosis.paths.own_forward import OwnForward
from gradverify.verifier.numerics.diagnosis.paths.sites import Site, text_of
from gradverify.verifier.numerics.diagnosis.paths.uses import passes_exchanged, uses_exchanged
from gradverify.verifier.numerics.diagnosis.paths.values import TRANSFORMS

MOST_RUNS = 600
"""Exchanges that are tried."""

MOST_OPERATIONS = 24_000
"""... and operations that the forwards of all of them may run together: a loop has many in each."""


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

BOUNDS: tuple[tuple[str, Callable[[float], float]], ...] = (
    ("-inf", lambda _: -math.inf),
    ("inf", lambda _: math.inf),
)
"""What a bound is where backward has none."""


MOST_ALIKE = 2
"""Numbers or values of one place that give the same: where more do, as behind a bound, none is meant."""


def held(first: Glance, rest: Sequence[Glance]) -> Exchange | None:
    """The first exchange after which forward's gradient is what backward gives, at every point."""
    glances = (first, *rest)
    refuted: set[Edge] = set()
    for exchange in itertools.islice(
        _exchanges(first.own), min(MOST_RUNS, first.own.most, MOST_OPERATIONS // first.own.calls)
    ):
        place = Edge(exchange.site, exchange.place)
        if place in refuted or not all(_is_with(g, exchange) for g in glances):
            continue
        if "{}" not in exchange.text or len(_alike(first.own, exchange, glances)) <= MOST_ALIKE:
            return exchange
        refuted.add(place)
    return None


def _alike(own: OwnForward, exchange: Exchange, glances: Sequence[Glance]) -> list[Exchange]:
    """Those of the same place, made of what stands there, that give the same."""
    others = _of_constants(own) if exchange.kind == "number" else _of_own_values(exchange.site)
    at = [e for e in others if (e.site, e.place) == (exchange.site, exchange.place)]
    return [e for e in at if all(_is_with(g, e) for g in glances)]


def _exchanges(own: OwnForward) -> Iterator[Exchange]:
    yield from _of_constants(own)
    yield from _of_values(own)
    yield from passes_exchanged(own)
    yield from _of_results(own)
    yield from uses_exchanged(own)


def _of_constants(own: OwnForward) -> Iterator[Exchange]:
    for edge in own.constants:
        for text, number in (*BOUNDS, *NUMBERS) if edge.site.operation in BOUNDED else NUMBERS:
            yield Exchange("number", edge.site, edge.place, text, _with_number(edge, number))
    for factor in own.factors:
        yield Exchange("transposed", factor[0], -1, "operand", _with_turned(factor))


def _of_values(own: OwnForward) -> Iterator[Exchange]:
    sites = own.sites
    for site in sites:
        yield from _of_own_values(site)
    for site in sites:
        for k, name in enumerate(own.input_names):
            yield Exchange("value", site, -1, name, _with_input(site, k))


def _of_own_values(site: Site) -> Iterator[Exchange]:
    for text, transform in TRANSFORMS:
        yield Exchange("value", site, -1, text, _with_values(site, transform))


def _of_results(own: OwnForward) -> Iterator[Exchange]:
    sites = own.sites
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


def _with_turned(factor: Factor) -> Callable[[OwnForward], Instrumented | None]:
    return lambda own: Instrumented(turned=frozenset({factor})) if factor in own.factors else None


def _with_number(edge: Edge, other: Callable[[float], float]) -> Callable[[OwnForward], Instrumented | None]:
    def mode(own: OwnForward) -> Instrumented | None:
        number = own.constants.get(edge)
        value = math.nan if number is None else other(number)
        return None if math.isnan(value) or value == number else Instrumented(exchanged={edge: value})

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
