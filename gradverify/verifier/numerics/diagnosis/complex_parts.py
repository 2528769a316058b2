"""Complex gradients whose imaginary parts have the wrong sign."""

from __future__ import annotations

from torch import Tensor

from gradverify.verifier.numerics.diagnosis.cause import Cause
from gradverify.verifier.numerics.diagnosis.evidence import Pair, Pairs


def conjugate(pairs: Pairs) -> Cause | None:
    """The gradient, grad_output or what stands between them is conjugated where it must not be, or not so."""
    first = pairs[0]
    kinds = []
    if first.source_block.is_complex:
        kinds.append("gradient")
    if first.output_block.is_complex:
        kinds.append("grad_output")
    if len(kinds) == 2:
        kinds.insert(0, "saved")
    for kind in kinds:
        if all(pair.explained_by(_conjugated(pair, kind), pair.bound) for pair in pairs):
            return Cause("conjugate", kind=kind)
    return None


def _conjugated(pair: Pair, kind: str) -> Tensor:
    """The true block with the signs of imaginary rows, columns, or both turned."""
    true = pair.true.clone()
    if kind in {"grad_output", "saved"}:
        true[1::2] *= -1
    if kind in {"gradient", "saved"}:
        true[:, 1::2] *= -1
    return true
