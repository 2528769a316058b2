"""One pair seen along one random grad_output: what backward gives, and what changes of forward would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.evidence import RELATIVE, ROUNDING, Pair, Pairs
from gradverify.verifier.numerics.diagnosis.paths.changes import Edge
from gradverify.verifier.numerics.diagnosis.paths.instrumented import Instrumented
from gradverify.verifier.numerics.diagnosis.paths.own_forward import Altered, OwnForward

SAME = 1e-7
"""Gradients along one grad_output agree within this share of the sum of their terms."""

LARGEST = 400
"""Rows of a block that are still compared with forward's own gradient one by one."""

SEED = 11
"""Of the random grad_output."""


@dataclass(frozen=True)
class Candidate:
    """The own gradient with a change."""

    altered: Altered
    share: float
    """Coefficient of what is left out (0), or of what stands instead."""
    weights: tuple[tuple[Edge, float], ...] = ()
    """Coefficients of two parts that are apart, where each has another one."""
    within: Edge | None = None
    """The one part that has the change; None for all."""


class Glance:
    """One pair along one random grad_output: what backward gives, and what changes would give."""

    def __init__(self, pair: Pair, own: OwnForward) -> None:
        self.pair, self.own = pair, own
        generator = torch.Generator().manual_seed(SEED)
        rows = pair.claimed.shape[0]
        signs = torch.randint(0, 2, (rows,), generator=generator).double() * 2 - 1
        self.u = signs * (0.5 + torch.rand(rows, generator=generator, dtype=torch.float64))
        self.judged = pair.known.all(dim=0)
        self._asked_before = own.asked
        self._seen: dict[Altered, Tensor | None] = {}

    @property
    def spent(self) -> int:
        """Backwards of forward's own graph that were run for this pair."""
        return self.own.asked - self._asked_before

    @cached_property
    def claimed(self) -> Tensor:
        """What backward gives, of the entries that are judged."""
        return (self.u @ torch.where(self.judged, self.pair.claimed, 0.0))[self.judged]

    @cached_property
    def allowed(self) -> Tensor:
        """How far another gradient may be from that."""
        terms = self.u.abs() @ torch.where(self.judged, self.pair.claimed.abs() + self.pair.true.abs(), 0.0)
        return (SAME * terms + ROUNDING * self.pair.scale * self.u.abs().sum())[self.judged]

    def of(self, altered: Altered) -> Tensor | None:
        """Forward's own gradient with a change."""
        if altered not in self._seen:
            self._seen[altered] = self.cut(self.own.pulled_back(self.pair.output, self.u, altered))
        return self._seen[altered]

    def cut(self, whole: Tensor | None) -> Tensor | None:
        """The entries that are judged of a gradient by all inputs; None where it is not finite."""
        if whole is None:
            return None
        block = self.pair.source_block
        own = whole[block.start : block.stop][self.judged]
        return own if bool(own.isfinite().all()) else None

    def at_others(self, mode: Instrumented) -> Tensor | None:
        """What backward would give with other numbers or values in forward."""
        return self.cut(self.own.at_others(mode, self.pair.output, self.u))

    def agrees(self, gradient: Tensor) -> bool:
        """Whether backward gives this gradient."""
        return bool(((self.claimed - gradient).abs() <= self.allowed).all())

    def given(self, candidate: Candidate) -> Tensor | None:
        """What backward would give."""
        return mixed(candidate, self.of)


def glances_of(pairs: Pairs) -> list[Glance] | None:
    """None where forward's own gradient is not to be had, or not the one that was measured."""
    found = []
    for pair in pairs:
        own = pair.point.own_forward
        if own is None or pair.claimed.shape[0] > LARGEST:
            return None
        own.cut = frozenset()  # what cancels for one input may count for another
        rows = own.jacobian(pair.output, Altered())
        if rows is None:
            return None
        derived = block_of(rows, pair)
        off = (derived - pair.true).abs()
        allowed = pair.bound + RELATIVE * (derived.abs() + pair.true.abs()) + ROUNDING * pair.scale
        if not bool((off <= allowed)[pair.known].all()):
            return None
        glance = Glance(pair, own)
        if not glance.judged.any():
            return None
        found.append(glance)
    return found


def without_shifts(glances: Sequence[Glance]) -> None:
    """Take the maxima that forward shifts by for constants, as authors do, where what they add cancels."""
    edges = {edge for glance in glances for edge in glance.own.edges if edge.site.operation in LARGEST_OF}
    for glance in glances if edges else ():
        right, cut = glance.of(Altered()), glance.of(Altered(frozenset(edges)))
        if right is None or cut is None or not bool((right - cut).abs().le(glance.allowed).all()):
            return
    for glance in glances:
        glance.own.cut = frozenset(edges)


LARGEST_OF = frozenset({"amax", "max", "maximum", "cummax"})
"""Operations by which exponents are kept small."""


def block_of(rows: Tensor, pair: Pair) -> Tensor:
    """The columns of a pair's input."""
    return rows[:, pair.source_block.start : pair.source_block.stop]


def mixed(candidate: Candidate, of: Callable[[Altered], Tensor | None]) -> Tensor | None:
    """What backward would give, from forward's own gradients with and without the change."""
    if candidate.weights:
        return _weighted(candidate, of)
    if candidate.within is not None:
        return _within(candidate.altered, candidate.within, of)
    without, other = (
        of(Altered(candidate.altered.dropped)),
        of(candidate.altered if candidate.altered.instead else Altered()),
    )
    if without is None or other is None:
        return None
    return without + candidate.share * (other - without)


def _weighted(candidate: Candidate, of: Callable[[Altered], Tensor | None]) -> Tensor | None:
    right = of(Altered())
    if right is None:
        return None
    found = right
    for edge, weight in candidate.weights:
        without = of(Altered(frozenset({edge})))
        if without is None:
            return None
        found = found - (1 - weight) * (right - without)
    return found


def _within(altered: Altered, part: Edge, of: Callable[[Altered], Tensor | None]) -> Tensor | None:
    """The gradient without a part, and that part as it is with the change."""
    without, changed = of(Altered(frozenset({part}))), of(altered)
    others = of(Altered(altered.dropped | {part}, altered.instead))
    return None if without is None or changed is None or others is None else without + changed - others
