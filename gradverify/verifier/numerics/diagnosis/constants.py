"""The right formula with another value of what is not differentiated: an index, a mask, a target, a flag."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.cause import Cause, Strength
from gradverify.verifier.numerics.diagnosis.evidence import Pairs
from gradverify.verifier.numerics.diagnosis.paths.glance import Glance, block_of, glances_of

MOST_CONSTANTS = 6
"""Constants of one call that are tried in each other's places."""


@dataclass(frozen=True)
class _Other:
    """Other values of arguments, made of those that a call has."""

    kind: str
    argument: str
    instead: str
    """The other argument, or what the flag would be."""
    values: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Of all arguments: those that are replaced."""


def other_flag(pairs: Pairs) -> Cause | None:
    """Forward's own gradient with one flag the other way round: backward does not look at it."""
    own = pairs[0].point.own_forward
    arguments = {} if own is None else own.arguments
    flags = [(name, value) for name, value in arguments.items() if isinstance(value, bool)]
    return _first(pairs, [_Other("flag", name, str(not value), _turned(name)) for name, value in flags])


def _turned(name: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return lambda arguments: {name: not arguments[name]}


def other_constant(pairs: Pairs) -> Cause | None:
    """The same with a tensor that is not differentiated: another one in its place, or its order turned."""
    return _first(pairs, [*_exchanges(pairs), *_flips(pairs)])


def _first(pairs: Pairs, others: list[_Other]) -> Cause | None:
    glances = glances_of(pairs) if others else None
    for other in others if glances is not None else ():
        if all(_is_with(glance, other) for glance in glances or ()):
            return Cause("operand", Strength.WEAK, other=other.argument, law=other.instead, kind=other.kind)
    return None


def _exchanges(pairs: Pairs) -> Iterator[_Other]:
    names = [name for name, _ in pairs[0].point.constants][:MOST_CONSTANTS]
    alike = [(a, b) for a, b in itertools.permutations(names, 2) if _are_alike(pairs, a, b)]
    for a, b in alike:
        yield _Other("replaced", a, b, _renamed({a: b}))
    for a, b in alike:
        if names.index(a) < names.index(b):
            yield _Other("exchanged", a, b, _renamed({a: b, b: a}))


def _renamed(names: Mapping[str, str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return lambda arguments: {name: arguments[other] for name, other in names.items()}


def _flips(pairs: Pairs) -> Iterator[_Other]:
    """Two rows of a tensor of indices are taken for each other, or a list is gone through from behind."""
    for name, value in pairs[0].point.constants[:MOST_CONSTANTS]:
        for dim in range(value.dim()):
            yield _Other("flipped", name, str(dim), _flipped(name, dim))


def _flipped(name: str, dim: int) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    def values(arguments: Mapping[str, Any]) -> dict[str, Any]:
        value = arguments.get(name)
        return {name: value.flip(dim)} if isinstance(value, Tensor) and dim < value.dim() else {}

    return values


def _are_alike(pairs: Pairs, a: str, b: str) -> bool:
    """Whether two constants have one shape at every point, and other values."""
    values = [dict(pair.point.constants) for pair in pairs]
    if any(a not in v or b not in v or v[a].shape != v[b].shape for v in values):
        return False
    return not any(torch.equal(v[a], v[b]) for v in values)


def _is_with(glance: Glance, other: _Other) -> bool:
    values = other.values(glance.own.arguments)
    if not values:
        return False
    own = glance.own.with_values(values)
    seen = glance.cut(own.derivative(glance.pair.output, glance.u))
    if seen is None or not glance.agrees(seen):
        return False
    rows = own.derivative(glance.pair.output, None)
    if rows is None:
        return False
    block = block_of(rows, glance.pair)
    return glance.pair.explained_by(block, torch.zeros_like(block))
