"""Which changes of forward's own gradient give backward's numbers along one grad_output."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from torch import Tensor

from gradverify.verifier.numerics.diagnosis.formulas import FUNCTIONS, MULTIPLES
from gradverify.verifier.numerics.diagnosis.paths.alternatives import EVERY
from gradverify.verifier.numerics.diagnosis.paths.changes import Edge, OnePass
from gradverify.verifier.numerics.diagnosis.paths.glance import SAME, Candidate, Glance
from gradverify.verifier.numerics.diagnosis.paths.operations import LINEAR_IN_EACH
from gradverify.verifier.numerics.diagnosis.paths.own_forward import Altered, OwnForward
from gradverify.verifier.numerics.diagnosis.paths.values import TRANSFORMS

MOST_OPERATIONS = 160_000
"""... and operations of forward that all of them together may go through: a loop has many."""


def candidates(glance: Glance) -> Iterator[Candidate]:
    """Those that give backward's gradient along one grad_output, the simplest first."""
    right = glance.of(Altered())
    if right is None or glance.agrees(right):
        return  # nothing is lacking along this grad_output
    parts: dict[Edge, Tensor] = {}
    for edge in glance.own.edges:
        without = glance.of(Altered(_uses(edge, glance.own)))
        if without is None:
            continue
        part = right - without
        if bool((part.abs() > glance.allowed).any()):
            parts[edge] = part
    lacking = right - glance.claimed
    yield from _in_order(_parts_with_coefficient(glance, parts, lacking))
    yield from _one_pass(glance, parts)
    pairs = _pairs_of(glance, parts)
    yield from _two_parts(glance, pairs, lacking)
    yield from _replaced(glance, parts)
    yield from _weighted_parts(glance, pairs, lacking)
    yield from _replaced_in_part(glance, _distinct(glance, parts), lacking)


def _in_order(found: list[Candidate]) -> list[Candidate]:
    """Missing before turned before any other coefficient; of equals the last, where paths meet."""
    rank = {0.0: 0, -1.0: 1, 2.0: 2, 0.5: 3}
    latest_first = found[::-1]
    return sorted(latest_first, key=lambda c: rank.get(round(c.share, 6), 4))


def _parts_with_coefficient(glance: Glance, parts: dict[Edge, Tensor], lacking: Tensor) -> list[Candidate]:
    found = []
    for edge, part in parts.items():
        if edge.place == EVERY:
            continue
        share = 1 - ((lacking @ part) / (part @ part)).item()
        if bool((lacking - (1 - share) * part).abs().le(glance.allowed).all()):
            found.append(Candidate(Altered(frozenset({edge})), rounded(share)))
    return found


def _one_pass(glance: Glance, parts: dict[Edge, Tensor]) -> Iterator[Candidate]:
    """Of a value that a loop uses, the first or the last use alone counts."""
    for edge in reversed(parts):
        for which in PASSES if edge.place != EVERY and glance.own.passes(edge) > 1 else ():
            candidate = Candidate(Altered(frozenset({OnePass(edge, which)})), 0.0)
            given = glance.given(candidate)
            if given is not None and glance.agrees(given):
                yield candidate


PASSES = ("first", "last", "all but the first", "all but the last")
"""Passes of a loop that an assignment in place of a sum leaves, and those that a wrong bound leaves."""


def rounded(share: float) -> float:
    """A coefficient that is nearly a half of a whole number, as that."""
    near = round(share * 2) / 2
    return near if abs(share - near) < SAME else share


_Parts = tuple[tuple[Edge, Tensor], tuple[Edge, Tensor]]


def _pairs_of(glance: Glance, parts: dict[Edge, Tensor]) -> list[_Parts]:
    """Every two parts that are not one part."""
    return list(itertools.combinations(_distinct(glance, parts), 2))


def _distinct(glance: Glance, parts: dict[Edge, Tensor]) -> list[tuple[Edge, Tensor]]:
    """The parts, each once: a value has one at every use on its way."""
    distinct: list[tuple[Edge, Tensor]] = []
    for edge, part in reversed(parts.items()):
        if edge.place != EVERY and not any(
            bool((part - known).abs().le(glance.allowed).all()) for _, known in distinct
        ):
            distinct.append((edge, part))
    return distinct


def _two_parts(glance: Glance, pairs: Sequence[_Parts], lacking: Tensor) -> Iterator[Candidate]:
    for (a, one), (b, other) in pairs:
        if bool((lacking - one - other).abs().le(glance.allowed).all()):
            yield Candidate(Altered(frozenset({a, b})), 0.0)


def _weighted_parts(glance: Glance, pairs: Sequence[_Parts], lacking: Tensor) -> Iterator[Candidate]:
    for (a, one), (b, other) in pairs:
        for x, y in WEIGHTS:
            off = lacking - (1 - x) * one - (1 - y) * other
            if bool(off.abs().le(glance.allowed).all()) and _are_apart(glance, a, b, one + other):
                yield Candidate(Altered(frozenset({a, b})), 0.0, ((a, x), (b, y)))


WEIGHTS = ((0.0, 2.0), (2.0, 0.0), (-1.0, -1.0), (0.0, -1.0), (-1.0, 0.0), (0.0, 0.5), (0.5, 0.0))
"""Coefficients of two parts: one taken for the other, both turned, one lost and the other turned or so."""


def _are_apart(glance: Glance, a: Edge, b: Edge, parts: Tensor) -> bool:
    """Whether no path goes through both: else neither part is what it is called."""
    right, without = glance.of(Altered()), glance.of(Altered(frozenset({a, b})))
    if right is None or without is None:
        return False
    return bool((right - without - parts).abs().le(glance.allowed).all())


def _replaced_in_part(
    glance: Glance, parts: Sequence[tuple[Edge, Tensor]], lacking: Tensor
) -> Iterator[Candidate]:
    """One part alone lacks a factor that the others have."""
    right = glance.of(Altered())
    lost = [
        (edge, change)
        for edge, changes in glance.own.edges.items()
        for change in changes
        if change.name == "1" and edge.site.operation in LINEAR_IN_EACH
    ]
    tried = itertools.islice(itertools.product(parts, lost), MOST_IN_PART)
    for (edge, part), (other, change) in tried:
        uses = _uses(other, glance.own)
        everywhere = glance.of(Altered(uses, change))
        if edge in uses or right is None or everywhere is None:
            continue
        if bool((right - part).abs().le(glance.allowed).all()):
            continue  # there is no other part
        elsewhere = glance.of(Altered(uses | {edge}, change))
        if elsewhere is None:
            continue
        off = lacking - part + (everywhere - elsewhere)
        if bool(off.abs().le(glance.allowed).all()):
            yield Candidate(Altered(uses, change), 1.0, within=edge)


MOST_IN_PART = 150
"""Pairs of a part and of a factor that may be lost there, that are tried."""

_ORDER = (
    "formula",
    "duplicates",
    "slice",
    "reduced",
    "averaged",
    "output",
    "argument",
    "saved",
    "transposed",
    "conjugate",
    "dim",
    "operand",
    "instead",
    "nothing",
    "times",
)


def _replaced(glance: Glance, parts: dict[Edge, Tensor]) -> Iterator[Candidate]:
    found: list[tuple[tuple[int, int, int], Candidate]] = []
    right = glance.of(Altered())
    for edge in parts:
        uses = _uses(edge, glance.own)
        without = glance.of(Altered(uses))
        for change in glance.own.edges[edge]:
            if (
                glance.spent > min(glance.own.most, MOST_OPERATIONS // glance.own.calls)
                or without is None
                or right is None
            ):
                break
            changed = glance.of(Altered(uses, change))
            if changed is None:
                continue
            instead, wanted = changed - without, glance.claimed - without
            square = (instead @ instead).item()
            is_none = change.name != "1" and bool((changed - right).abs().le(glance.allowed).all())
            if square == 0 or is_none:
                continue  # with a coefficient, it would be told of a part that is a multiple
            share = ((wanted @ instead) / square).item()
            near = next((k for k in MULTIPLES if abs(share - k) <= 1e-5 * abs(k)), None)
            if near is None and (change.name == "1" or change.kind == "reduced"):
                near = share  # what stands there may be a size
            if near not in {None, 1.0} and change.kind == "operand" and change.name in _OF_AN_OPERAND:
                continue
            if near is None or not bool((wanted - near * instead).abs().le(glance.allowed).all()):
                continue
            order = -1 if change.name == "1" else _ORDER.index(change.kind)
            known = _KNOWN.get(change.name, 0) if change.kind == "formula" else 0
            found.append(((order, 0 if near == 1 else 1, known), Candidate(Altered(uses, change), near)))
    yield from (candidate for _, candidate in sorted(found, key=lambda pair: pair[0]))


_OF_AN_OPERAND = frozenset(text for text, _ in TRANSFORMS)
"""Two inventions at once, a function and a coefficient, are some identity more often than a mistake."""

_KNOWN = {text: k for k, (text, _) in enumerate(FUNCTIONS)}


def _uses(edge: Edge, own: OwnForward) -> frozenset[Edge]:
    """The arguments whose derivatives a change takes the place of."""
    if edge.place != EVERY:
        return frozenset({edge})
    return frozenset(e for e in own.edges if e.site == edge.site and e.place != EVERY)
