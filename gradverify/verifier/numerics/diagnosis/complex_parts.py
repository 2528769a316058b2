"""Complex gradients that are conjugated, turned by a constant, or lack one of their parts."""

from __future__ import annotations

import itertools

from torch import Tensor

from gradverify.verifier.numerics.diagnosis.cause import Cause
from gradverify.verifier.numerics.diagnosis.evidence import Pair, Pairs

_TURNS = ("1", "-1", "1j", "-1j")
"""Constants of magnitude 1 that are forgotten, or one too many."""


def conjugate(pairs: Pairs) -> Cause | None:
    """The gradient, grad_output or what stands between them is conjugated where it must not be, or not so.

    With another sign, or times the imaginary unit, where that is forgotten, too.
    """
    first = pairs[0]
    kinds = []
    if first.source_block.is_complex:
        kinds.append("gradient")
    if first.output_block.is_complex:
        kinds.append("grad_output")
    if len(kinds) == 2:
        kinds.insert(0, "saved")
    turns = _TURNS if first.source_block.is_complex else _TURNS[:2]
    for turn, kind in itertools.product(turns, kinds):
        if all(_is_turned(pair, kind, turn) for pair in pairs):
            return Cause("conjugate", kind=kind, law="" if turn == "1" else turn)
    return None


def imaginary_factor(pairs: Pairs) -> Cause | None:
    """The gradient is the true one times the imaginary unit, which is forgotten or one too many.

    Of a real input, whose gradient is the real part of a complex one: grad_output is.
    """
    if not (pairs[0].source_block.is_complex or pairs[0].output_block.is_complex):
        return None
    side = "" if pairs[0].source_block.is_complex else "output"
    for turn in ("1j", "-1j"):
        if all(_is_turned(pair, "", turn, side) for pair in pairs):
            return Cause("constant-factor", kind="imaginary", law=turn, side=side)
    return None


def part_alone(pairs: Pairs) -> Cause | None:
    """Of the gradient the real or the imaginary part is right, and the other one zero; or of grad_output."""
    for number, kind in enumerate(("real", "imaginary")):
        if pairs[0].source_block.is_complex and all(_has_alone(pair, number, "gradient") for pair in pairs):
            return Cause("missing-term", kind=kind)
        if pairs[0].output_block.is_complex and all(
            _has_alone(pair, number, "grad_output") for pair in pairs
        ):
            return Cause("missing-term", kind=kind, side="output")
    return None


def _is_turned(pair: Pair, kind: str, turn: str, side: str = "") -> bool:
    """Whether the gradient, or the grad_output that it comes from, is turned."""
    if side:
        # Row k is the gradient for one part of grad_output: times 1j, the real part counts as imaginary.
        return pair.explained_by(
            _turned(pair.true.mT, turn.removeprefix("-") if turn[0] == "-" else f"-{turn}").mT,
            _turned_bound(pair.bound.mT, turn).mT,
        )
    return pair.explained_by(_turned(_conjugated(pair.true, kind), turn), _turned_bound(pair.bound, turn))


def _conjugated(true: Tensor, kind: str) -> Tensor:
    """The true block with the signs of imaginary rows, columns, or both turned."""
    true = true.clone()
    if kind in {"grad_output", "saved"}:
        true[1::2] *= -1
    if kind in {"gradient", "saved"}:
        true[:, 1::2] *= -1
    return true


def _turned(block: Tensor, turn: str) -> Tensor:
    """The gradients, a row each, times a constant of magnitude 1."""
    sign = -1 if turn.startswith("-") else 1
    if not turn.endswith("j"):
        return sign * block
    other = block.clone()
    other[:, 0::2], other[:, 1::2] = -sign * block[:, 1::2], sign * block[:, 0::2]
    return other


def _turned_bound(bound: Tensor, turn: str) -> Tensor:
    return _turned(bound, turn).abs()


def _has_alone(pair: Pair, number: int, whose: str) -> bool:
    kept, bound = pair.true.clone(), pair.bound.clone()
    for block in (kept, bound):
        (block[:, 1 - number :: 2] if whose == "gradient" else block[1 - number :: 2])[:] = 0.0
    return bool(kept.any()) and pair.explained_by(kept, bound)
