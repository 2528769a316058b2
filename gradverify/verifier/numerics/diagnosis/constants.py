"""The right formula with another constant of the call in the place of one: an index, a mask, a target."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import torch

from gradverify.verifier.numerics.diagnosis.cause import Cause, Strength
from gradverify.verifier.numerics.diagnosis.evidence import Pairs
from gradverify.verifier.numerics.diagnosis.paths.glance import Glance, block_of, glances_of

MOST_CONSTANTS = 6
"""Constants of one call that are tried in each other's places."""


def other_constant(pairs: Pairs) -> Cause | None:
    """Forward's own gradient with a tensor that is not differentiated exchanged for another one like it."""
    if len(pairs[0].point.constants) < 2:
        return None
    glances = glances_of(pairs)
    if glances is None:
        return None
    for kind, one, other, others in _exchanges(pairs):
        if all(_is_with(glance, others) for glance in glances):
            return Cause("operand", Strength.WEAK, other=one, law=other, kind=kind)
    return None


def _exchanges(pairs: Pairs) -> Iterator[tuple[str, str, str, Mapping[str, str]]]:
    names = [name for name, _ in pairs[0].point.constants][:MOST_CONSTANTS]
    alike = [(a, b) for a, b in itertools.permutations(names, 2) if _are_alike(pairs, a, b)]
    for a, b in alike:
        yield "replaced", a, b, {a: b}
    for a, b in alike:
        if names.index(a) < names.index(b):
            yield "exchanged", a, b, {a: b, b: a}


def _are_alike(pairs: Pairs, a: str, b: str) -> bool:
    """Whether two constants have one shape at every point, and other values."""
    values = [dict(pair.point.constants) for pair in pairs]
    if any(a not in v or b not in v or v[a].shape != v[b].shape for v in values):
        return False
    return not any(torch.equal(v[a], v[b]) for v in values)


def _is_with(glance: Glance, others: Mapping[str, str]) -> bool:
    own = glance.own.with_arguments(others)
    seen = glance.cut(own.derivative(glance.pair.output, glance.u))
    if seen is None or not glance.agrees(seen):
        return False
    rows = own.derivative(glance.pair.output, None)
    if rows is None:
        return False
    block = block_of(rows, glance.pair)
    return glance.pair.explained_by(block, torch.zeros_like(block))
