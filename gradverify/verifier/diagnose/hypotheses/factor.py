"""The whole block is the true one times one number: nothing, a constant, or a size."""

from __future__ import annotations

from torch import Tensor

from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.evidence import Pair, Pairs, same_everywhere, sizes_of, wrong_ones
from gradverify.verifier.diagnose.sizes import size_law

SAME_FACTOR = 1e-6
"""Factors that are fitted at two points are the same number within this share."""


def zero(pairs: Pairs) -> Cause | None:
    """Backward gives zeros where the function does depend on the input."""
    if any(pair.claimed.any() for pair in pairs):
        return None
    rest = wrong_ones(pairs)[0]
    others = [k for k in range(len(rest.point.outputs.blocks)) if k != rest.output]
    if any(Pair(rest.point, k, rest.source).claimed.any() for k in others):
        return Cause("ignored-output", other=rest.output_name)
    return Cause("zero", factor=0.0)


def constant_factor(pairs: Pairs) -> Cause | None:
    """Every entry is off by one factor: the same at all points, or a law of the sizes."""
    factors = fitted(pairs)
    if factors is None:
        return None
    values = [c for _, c in factors]
    if same_everywhere(values, SAME_FACTOR):
        return Cause("constant-factor", factor=values[0])
    if not _depends_on_sizes_alone(factors):
        return None
    law = size_law([(pair.point.shapes, c) for pair, c in factors])
    return Cause("constant-factor", factor=values[0], law=law) if law else None


def fitted(pairs: Pairs) -> list[tuple[Pair, float]] | None:
    """The factor of each point that has one to show; None where some entry has another one."""
    factors = []
    for pair in pairs:
        if not pair.informative.any():
            continue
        c = factor_of(pair.claimed[pair.known], pair.true[pair.known])
        if c is None or c == 0 or not pair.explained_by(c * pair.true, abs(c) * pair.bound):
            return None
        factors.append((pair, c))
    return factors or None


def factor_of(claimed: Tensor, true: Tensor) -> float | None:
    """The least-squares factor; None where nothing depends on anything."""
    square = (true @ true).item()
    return (claimed @ true).item() / square if square > 0 else None


def _depends_on_sizes_alone(factors: list[tuple[Pair, float]]) -> bool:
    by_size: dict[object, list[float]] = {}
    for pair, c in factors:
        by_size.setdefault(sizes_of(pair), []).append(c)
    return all(same_everywhere(values, SAME_FACTOR) for values in by_size.values())
