"""Backward is forward's own gradient with one of its local derivatives left out, or taken otherwise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from gradverify.verifier.numerics.diagnosis.cause import Cause
from gradverify.verifier.numerics.diagnosis.evidence import Pairs, same_everywhere
from gradverify.verifier.numerics.diagnosis.paths.candidates import candidates, rounded
from gradverify.verifier.numerics.diagnosis.paths.exchanges import held
from gradverify.verifier.numerics.diagnosis.paths.glance import (
    Candidate,
    Glance,
    block_of,
    glances_of,
    mixed,
    without_shifts,
)
from gradverify.verifier.numerics.diagnosis.paths.naming import cause_of, cause_of_exchange
from gradverify.verifier.numerics.diagnosis.sizes import size_law


def altered_forward(pairs: Pairs) -> Cause | None:
    """The first change of forward's own gradient that gives backward's numbers at every point."""
    glances = glances_of(pairs)
    if glances is None:
        return None
    without_shifts(glances)
    wrong = [g for g in glances if g.pair.is_wrong]
    # Where nothing flows, as where a mask leaves nothing, every part is nothing.
    first = next((g for g in wrong if g.pair.nonzero.any()), wrong[0])
    rest = [g for g in glances if g is not first]
    found = candidates(first)
    for candidate in found:
        law = _law_of(candidate, first, rest)
        if law is not None:
            if not law:
                first.own.held += [candidate, *_alike(candidate, found)]
            return cause_of(candidate, law, first.own)
    exchange = held(first, rest)
    return None if exchange is None else cause_of_exchange(exchange, first.own)


MOST_ALIKE = 8
"""Uses on the way of one part that are kept for other gradients."""


def _alike(candidate: Candidate, following: Iterator[Candidate]) -> list[Candidate]:
    """The same part at other uses on its way: for another gradient, these may be apart."""
    if candidate.altered.instead is not None or candidate.weights:
        return []
    alike = itertools.takewhile(lambda c: c.altered.instead is None and c.share == candidate.share, following)
    return [*itertools.islice(alike, MOST_ALIKE)]


def altered_as_elsewhere(pairs: Pairs) -> Cause | None:
    """A change that was found for another gradient of the same call, where it gives these numbers, too."""
    known = [one for pair in pairs if (own := pair.point.own_forward) is not None for one in own.held]
    glances = glances_of(pairs) if known else None
    if glances is None:
        return None
    without_shifts(glances)
    found = next((one for one in known if all(_explains(one, glance) for glance in glances)), None)
    return None if found is None else cause_of(found, "", glances[0].own)


def _law_of(candidate: Candidate, first: Glance, rest: Sequence[Glance]) -> str | None:
    """The law of sizes that a coefficient follows, empty for one number; None where it does not hold."""
    if candidate.weights or candidate.within is not None:
        return "" if all(_explains(candidate, g) for g in (first, *rest)) else None
    shares = [(first, candidate.share)]
    for glance in rest:
        share = _fitted(candidate, glance)
        if share is None:
            continue  # nothing comes of the change here
        if math.isnan(share):
            return None
        shares.append((glance, share))
    same = same_everywhere([share for _, share in shares])
    law = "" if same else size_law([(g.pair.point.shapes, share) for g, share in shares])
    if not same and not law:
        return None
    here = dict(shares)
    everywhere = (replace(candidate, share=here.get(g, candidate.share)) for g in (first, *rest))
    holds = all(_explains(c, g) for c, g in zip(everywhere, (first, *rest), strict=True))
    return law if holds else None


def _fitted(candidate: Candidate, glance: Glance) -> float | None:
    """The coefficient at another point: None where any one will do, NaN where it cannot be had."""
    nothing, one = (glance.given(replace(candidate, share=k)) for k in (0.0, 1.0))
    if nothing is None or one is None:
        return math.nan
    way = one - nothing
    if not bool((way.abs() > glance.allowed).any()):
        return None
    return rounded(((glance.claimed - nothing) @ way / (way @ way)).item())


def _explains(candidate: Candidate, glance: Glance) -> bool:
    """Whether the change gives what backward gives, at every entry of the point's block."""
    explained = mixed(candidate, lambda altered: glance.own.jacobian(glance.pair.output, altered))
    if explained is None:
        return False
    block = block_of(explained, glance.pair)
    return glance.pair.explained_by(block, torch.zeros_like(block))
