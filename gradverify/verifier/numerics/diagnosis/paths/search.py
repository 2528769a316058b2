"""Backward is forward's own gradient with one of its local derivatives left out, or taken otherwise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.cause import Cause, InForward, Strength
from gradverify.verifier.numerics.diagnosis.evidence import RELATIVE, ROUNDING, Pair, Pairs, same_everywhere
from gradverify.verifier.numerics.diagnosis.formulas import FUNCTIONS, MULTIPLES
from gradverify.verifier.numerics.diagnosis.paths.alternatives import EVERY, LINEAR_IN_EACH, instead_cause
from gradverify.verifier.numerics.diagnosis.paths.changes import Change, Edge
from gradverify.verifier.numerics.diagnosis.paths.instrumented import Instrumented
from gradverify.verifier.numerics.diagnosis.paths.own_forward import Altered, OwnForward
from gradverify.verifier.numerics.diagnosis.paths.sites import Site, argument_text, bracketed, text_of
from gradverify.verifier.numerics.diagnosis.paths.values import TRANSFORMS
from gradverify.verifier.numerics.diagnosis.sizes import size_law

SAME = 1e-7
"""Gradients along one grad_output agree within this share of the sum of their terms."""

MOST_BACKWARDS = 4000
"""Backwards of forward's own graph that one diagnosis may take at a point."""

MOST_RUNS = 600
"""Runs of forward with other numbers or values in it."""

LARGEST = 400
"""Rows of a block that are still compared with forward's own gradient one by one."""


@dataclass(frozen=True)
class _Candidate:
    """The own gradient with a change."""

    altered: Altered
    share: float
    """Coefficient of what is left out (0), or of what stands instead."""


class _Glance:
    """One pair along one random grad_output: what backward gives, and what changes would give."""

    def __init__(self, pair: Pair, own: OwnForward) -> None:
        self.pair, self.own = pair, own
        generator = torch.Generator().manual_seed(11)
        rows = pair.claimed.shape[0]
        signs = torch.randint(0, 2, (rows,), generator=generator).double() * 2 - 1
        self.u = signs * (0.5 + torch.rand(rows, generator=generator, dtype=torch.float64))
        self.judged = pair.known.all(dim=0)
        self._seen: dict[Altered, Tensor | None] = {}

    @cached_property
    def claimed(self) -> Tensor:
        return (self.u @ torch.where(self.judged, self.pair.claimed, 0.0))[self.judged]

    @cached_property
    def allowed(self) -> Tensor:
        terms = self.u.abs() @ torch.where(self.judged, self.pair.claimed.abs() + self.pair.true.abs(), 0.0)
        return (SAME * terms + ROUNDING * self.pair.scale * self.u.abs().sum())[self.judged]

    def of(self, altered: Altered) -> Tensor | None:
        if altered not in self._seen:
            whole = self.own.pulled_back(self.pair.output, self.u, altered)
            self._seen[altered] = None if whole is None else self._cut(whole)
        return self._seen[altered]

    def _cut(self, whole: Tensor) -> Tensor | None:
        block = self.pair.source_block
        own = whole[block.start : block.stop][self.judged]
        return own if bool(own.isfinite().all()) else None

    def at_others(self, mode: Instrumented) -> Tensor | None:
        """What backward would give with other numbers or values in forward."""
        whole = self.own.at_others(mode, self.pair.output, self.u)
        return None if whole is None else self._cut(whole)

    def agrees(self, gradient: Tensor) -> bool:
        return bool(((self.claimed - gradient).abs() <= self.allowed).all())

    def given(self, candidate: _Candidate) -> Tensor | None:
        """What backward would give."""
        return _mixed(candidate, self.of)


def altered_forward(pairs: Pairs) -> Cause | None:
    """The first change of forward's own gradient that gives backward's numbers at every point."""
    glances = _glances(pairs)
    if glances is None:
        return None
    first = next(g for g in glances if g.pair.is_wrong)
    rest = [g for g in glances if g is not first]
    for candidate in _candidates(first):
        at_each = [candidate, *(_fitted(candidate, g) for g in rest)]
        law = _law([(g, c) for g, c in zip([first, *rest], at_each, strict=True)])
        if law is not None and all(
            _holds_everywhere(c, g) for c, g in zip(at_each, [first, *rest], strict=True) if c is not None
        ):
            return _cause(candidate, law)
    return _exchanged(first, rest)


def _fitted(candidate: _Candidate, glance: _Glance) -> _Candidate | None:
    """The same with this point's coefficient; None where the change makes no difference here."""
    nothing, one = (glance.given(replace(candidate, share=k)) for k in (0.0, 1.0))
    if nothing is None or one is None:
        return replace(candidate, share=math.nan)
    way = one - nothing
    if not bool((way.abs() > glance.allowed).any()):
        return None
    return replace(candidate, share=_rounded(((glance.claimed - nothing) @ way / (way @ way)).item()))


def _law(found: list[tuple[_Glance, _Candidate | None]]) -> str | None:
    """Empty where all coefficients are one number, the law of the sizes that they follow, or None."""
    told = [(g, c.share) for g, c in found if c is not None]
    shares = [share for _, share in told]
    if any(math.isnan(share) for share in shares):
        return None
    if same_everywhere(shares):
        return ""
    return size_law([(g.pair.point.shapes, share) for g, share in told]) or None


def _holds_everywhere(candidate: _Candidate, glance: _Glance) -> bool:
    """At every entry of the point's block."""
    explained = _mixed(candidate, lambda a: glance.own.jacobian(glance.pair.output, a))
    if explained is None:
        return False
    block = _block(explained, glance.pair)
    return glance.pair.explained_by(block, torch.zeros_like(block))


def _glances(pairs: Pairs) -> list[_Glance] | None:
    """None where forward's own gradient is not to be had, or not the one that was measured."""
    found = []
    for pair in pairs:
        own = pair.point.own_forward
        if own is None or pair.claimed.shape[0] > LARGEST:
            return None
        rows = own.jacobian(pair.output, Altered())
        if rows is None:
            return None
        derived = _block(rows, pair)
        off = (derived - pair.true).abs()
        allowed = pair.bound + RELATIVE * (derived.abs() + pair.true.abs()) + ROUNDING * pair.scale
        if not bool((off <= allowed)[pair.known].all()):
            return None
        glance = _Glance(pair, own)
        if not glance.judged.any():
            return None
        found.append(glance)
    return found


def _block(rows: Tensor, pair: Pair) -> Tensor:
    return rows[:, pair.source_block.start : pair.source_block.stop]


def _mixed(candidate: _Candidate, of: Callable[[Altered], Tensor | None]) -> Tensor | None:
    """What backward would give, from forward's own gradients with and without the change."""
    without, other = (
        of(Altered(candidate.altered.dropped)),
        of(candidate.altered if candidate.altered.instead else Altered()),
    )
    if without is None or other is None:
        return None
    return without + candidate.share * (other - without)


def _candidates(glance: _Glance) -> Iterator[_Candidate]:
    """Those that give backward's gradient along one grad_output, the simplest first."""
    right = glance.of(Altered())
    if right is None:
        return
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
    yield from _two_parts(glance, parts, lacking)
    yield from _replaced(glance, parts)


def _in_order(found: list[_Candidate]) -> list[_Candidate]:
    """Missing before turned before any other coefficient; of equals the last, where paths meet."""
    rank = {0.0: 0, -1.0: 1, 2.0: 2, 0.5: 3}
    return sorted(reversed(found), key=lambda c: rank.get(round(c.share, 6), 4))


def _parts_with_coefficient(glance: _Glance, parts: dict[Edge, Tensor], lacking: Tensor) -> list[_Candidate]:
    found = []
    for edge, part in parts.items():
        if edge.place == EVERY:
            continue
        share = 1 - ((lacking @ part) / (part @ part)).item()
        if bool((lacking - (1 - share) * part).abs().le(glance.allowed).all()):
            found.append(_Candidate(Altered(frozenset({edge})), _rounded(share)))
    return found


def _rounded(share: float) -> float:
    near = round(share * 2) / 2
    return near if abs(share - near) < SAME else share


def _two_parts(glance: _Glance, parts: dict[Edge, Tensor], lacking: Tensor) -> Iterator[_Candidate]:
    distinct: list[tuple[Edge, Tensor]] = []
    for edge, part in reversed(parts.items()):
        if edge.place != EVERY and not any(
            bool((part - known).abs().le(glance.allowed).all()) for _, known in distinct
        ):
            distinct.append((edge, part))
    for (a, one), (b, other) in itertools.combinations(distinct, 2):
        if bool((lacking - one - other).abs().le(glance.allowed).all()):
            yield _Candidate(Altered(frozenset({a, b})), 0.0)


_ORDER = (
    "formula",
    "duplicates",
    "reduced",
    "output",
    "argument",
    "transposed",
    "conjugate",
    "dim",
    "operand",
    "instead",
)


def _replaced(glance: _Glance, parts: dict[Edge, Tensor]) -> Iterator[_Candidate]:
    found: list[tuple[tuple[int, int, int], _Candidate]] = []
    for edge in parts:
        uses = _uses(edge, glance.own)
        without = glance.of(Altered(uses))
        for change in glance.own.edges[edge]:
            if glance.own.asked > MOST_BACKWARDS or without is None:
                break
            changed = glance.of(Altered(uses, change))
            if changed is None:
                continue
            instead, wanted = changed - without, glance.claimed - without
            square = (instead @ instead).item()
            if square == 0:
                continue
            share = ((wanted @ instead) / square).item()
            near = next((k for k in MULTIPLES if abs(share - k) <= 1e-5 * abs(k)), None)
            if near is None and (change.name == "1" or change.kind == "reduced"):
                near = share  # what stands there may be a size
            if near is None or not bool((wanted - near * instead).abs().le(glance.allowed).all()):
                continue
            order = -1 if change.name == "1" else _ORDER.index(change.kind)
            known = _KNOWN.get(change.name, 0) if change.kind == "formula" else 0
            found.append(((order, 0 if near == 1 else 1, known), _Candidate(Altered(uses, change), near)))
    yield from (candidate for _, candidate in sorted(found, key=lambda pair: pair[0]))


_KNOWN = {text: k for k, (text, _) in enumerate(FUNCTIONS)}


def _uses(edge: Edge, own: OwnForward) -> frozenset[Edge]:
    """The arguments whose derivatives a change takes the place of."""
    if edge.place != EVERY:
        return frozenset({edge})
    return frozenset(e for e in own.edges if e.site == edge.site and e.place != EVERY)


NUMBERS: tuple[tuple[str, Callable[[float], float]], ...] = (
    ("1", lambda c: 1.0),
    ("0", lambda c: 0.0),
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
class _Exchange:
    """Forward with another number, or other values, in one place; its words are those of a cause."""

    kind: str
    site: Site
    place: int
    text: str
    mode: Callable[[OwnForward], Instrumented | None]
    """A run with the exchange; None where it changes nothing."""
    other: Site | None = None


def _exchanged(first: _Glance, rest: Sequence[_Glance]) -> Cause | None:
    """Backward is right for a forward with another number, or with other values, in one place."""
    for k, exchange in enumerate(_exchanges(first.own)):
        if k > MOST_RUNS:
            return None
        if all(_is_with(g, exchange) for g in (first, *rest)):
            return _of_exchange(exchange)
    return None


def _exchanges(own: OwnForward) -> Iterator[_Exchange]:
    for edge in own.constants:
        for text, number in NUMBERS:
            yield _Exchange("number", edge.site, edge.place, text, _with_number(edge, number))
    sites = [site for site in own.results if not site.part]
    for site in sites:
        for text, transform in TRANSFORMS:
            yield _Exchange("value", site, -1, text, _with_values(site, transform))
    for site in sites:
        for k, name in enumerate(own.input_names):
            yield _Exchange("value", site, -1, name, _with_input(site, k))
    alike = [
        (a, b)
        for a, b in itertools.permutations(sites, 2)
        if own.results[a][0].shape == own.results[b][0].shape
    ]
    for a, b in alike:
        yield _Exchange("value", a, -1, text_of(b), _with_result(a, b))
    for a, b in alike:
        if sites.index(a) < sites.index(b):
            yield _Exchange("swapped", a, -1, text_of(b), _swapping(a, b), b)


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


def _is_with(glance: _Glance, exchange: _Exchange) -> bool:
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
    block = _block(rows, glance.pair)
    return glance.pair.explained_by(block, torch.zeros_like(block))


def _of_exchange(exchange: _Exchange) -> Cause:
    own_values = exchange.kind == "value" and "{}" not in exchange.text
    name = "wrong-saved" if own_values else "operand"
    where = _where(Edge(exchange.site, exchange.place))
    too = None if exchange.other is None else _where(Edge(exchange.other, -1))
    return Cause(name, Strength.WEAK, kind=exchange.kind, law=exchange.text, where=where, where_too=too)


_NAMES = {
    "output": "wrong-saved",
    "transposed": "transposed",
    "conjugate": "conjugate",
    "dim": "wrong-reduction-dim",
    "operand": "operand",
    "argument": "operand",
    "reduced": "wrong-reduction-dim",
    "duplicates": "duplicates",
}


def _name(change: Change) -> str:
    return _NAMES[change.kind] if change.kind != "instead" else instead_cause(change.edge.site.operation)


def _cause(candidate: _Candidate, law: str) -> Cause:
    change = candidate.altered.instead
    if change is None:
        edges = sorted(candidate.altered.dropped, key=lambda e: (e.site.line, e.site.start, e.place))
        return Cause(
            "missing-term",
            Strength.WEAK,
            factor=candidate.share,
            law=law,
            kind="paths" if len(edges) > 1 else "path",
            where=_where(edges[0]),
            where_too=_where(edges[1]) if len(edges) > 1 else None,
        )
    where = _where(change.edge)
    if change.kind == "formula":
        ones = change.name == "1" and where.others
        formula = "" if ones else _formula(change, candidate.share)
        return Cause(
            "chain-factor",
            Strength.WEAK,
            factor=candidate.share,
            kind="ones" if ones else "formula",
            law=law or formula,
            where=where,
        )
    other = argument_text(change.edge.site, change.other) if change.other >= 0 else ""
    return Cause(
        _name(change),
        Strength.WEAK,
        factor=candidate.share,
        kind=change.kind,
        other=other,
        law=change.name,
        condition=law,
        where=where,
    )


def _formula(change: Change, share: float) -> str:
    value = bracketed(argument_text(change.edge.site, change.edge.place) or "its argument")
    name = "its result" if change.of_result else value
    multiple = MULTIPLES.get(share)
    if multiple is None:
        return f"{share:.6g}"
    return multiple + change.name.replace("{}", name)


def _where(edge: Edge) -> InForward:
    site = edge.site
    return InForward(
        line=max(0, site.line) if site.file else 0,
        expression=text_of(site),
        argument=argument_text(site, edge.place),
        operation=site.operation,
        others=site.operation in LINEAR_IN_EACH,
        beside=_beside(edge),
    )


def _beside(edge: Edge) -> str:
    """The one other argument of a product or quotient."""
    return argument_text(edge.site, 1 - edge.place) if edge.place in {0, 1} else ""
