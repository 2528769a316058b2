"""One use of a value that is given another one: an input, another result, or what another pass gave it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.paths.changes import Edge
from gradverify.verifier.numerics.diagnosis.paths.exchange import Exchange
from gradverify.verifier.numerics.diagnosis.paths.instrumented import Instrumented
from gradverify.verifier.numerics.diagnosis.paths.own_forward import OwnForward
from gradverify.verifier.numerics.diagnosis.paths.sites import Site, text_of

PASSES = (("previous", -1), ("next", 1))
"""Passes of a loop whose value may be taken."""


def passes_exchanged(own: OwnForward) -> Iterator[Exchange]:
    """Uses that are given what they get in the pass of a loop before, or behind."""
    for edge, given in own.given.items():
        for name, by in PASSES if len(given) > 1 else ():
            yield Exchange("neighbour", edge.site, edge.place, name, _with_neighbour(edge, by))


def uses_exchanged(own: OwnForward) -> Iterator[Exchange]:
    """Uses that are given an input, or another result, of their shape."""
    for edge, given in own.given.items():
        for k, name in enumerate(own.input_names):
            if own.input_values[k].shape == given[0].shape:
                yield Exchange("use", edge.site, edge.place, name, _using_input(edge, k))
        for site in own.sites:
            result = own.results[site][0]
            if result.shape == given[0].shape and not torch.equal(result, given[0]):
                yield Exchange("use", edge.site, edge.place, text_of(site), _using_result(edge, site))
    for edge, given in own.given.items():
        for site in own.sites if len(given) > 1 else ():
            if len(own.results[site]) > 1 and own.results[site][0].shape == given[0].shape:
                yield Exchange("final", edge.site, edge.place, text_of(site), _using_final(edge, site))


def _with_neighbour(edge: Edge, by: int) -> Callable[[OwnForward], Instrumented | None]:
    def mode(own: OwnForward) -> Instrumented | None:
        given = own.given.get(edge, [])
        if len(given) < 2 or any(v.shape != given[0].shape for v in given):
            return None
        nothing = torch.zeros_like(given[0])
        return _using(own, edge, lambda k: given[k + by] if 0 <= k + by < len(given) else nothing)

    return mode


def _using_input(edge: Edge, number: int) -> Callable[[OwnForward], Instrumented | None]:
    def mode(own: OwnForward) -> Instrumented | None:
        value, given = own.input_values[number].detach(), own.given.get(edge, [])
        if not given or any(v.shape != value.shape or v.dtype != value.dtype for v in given):
            return None
        return (
            None
            if all(torch.equal(v, value) for v in given)
            else Instrumented(instead={edge: lambda _: value})
        )

    return mode


def _using_result(edge: Edge, site: Site) -> Callable[[OwnForward], Instrumented | None]:
    def mode(own: OwnForward) -> Instrumented | None:
        given, there = own.given.get(edge, []), own.results.get(site, [])
        if not given or len(given) != len(there):
            return None
        if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(given, there, strict=True)):
            return None
        return Instrumented(instead={edge: lambda k: there[k] if k < len(there) else None})

    return mode


def _using_final(edge: Edge, site: Site) -> Callable[[OwnForward], Instrumented | None]:
    def mode(own: OwnForward) -> Instrumented | None:
        given, there = own.given.get(edge, []), own.results.get(site, [])
        if len(given) < 2 or len(there) < 2 or any(v.shape != there[-1].shape for v in given):
            return None
        return _using(own, edge, lambda _: there[-1])

    return mode


def _using(own: OwnForward, edge: Edge, other: Callable[[int], Tensor | None]) -> Instrumented:
    results = own.results.get(edge.site, [])
    return Instrumented(
        instead={edge: other},
        # Forward goes on as it did: only the derivative sees the other value.
        moved={edge.site: lambda _, k: results[k] if k < len(results) else None},
    )
