"""Complex gradients that are conjugated."""

from __future__ import annotations

import itertools

from torch import Tensor

from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.evidence import Pair, Pairs

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


def _is_turned(pair: Pair, kind: str, turn: str) -> bool:
    return pair.explained_by(_turned(_conjugated(pair.true, kind), turn), _turned(pair.bound, turn).abs())


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
