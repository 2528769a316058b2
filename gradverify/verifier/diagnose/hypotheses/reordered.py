"""The right numbers in another order: flipped, shifted, transposed, or J g in place of Jᵀ g."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.evidence import Pair, Pairs


@dataclass(frozen=True)
class _Named:
    """One way to reorder the entries of a tensor."""

    cause: str
    kind: str
    dim: int | None
    other_dim: int | None
    apply: Callable[[Tensor], Tensor]
    """Of a tensor shaped (..., tensor's own dimensions)."""


def reordered(pairs: Pairs) -> Cause | None:
    """The gradient, or grad_output before it is used, is flipped, shifted, or transposed and reshaped."""
    for side in ("input", "output"):
        dims = _dims(pairs[0], side)
        if any(_dims(pair, side) != dims for pair in pairs):
            continue
        for named in _reorderings(dims):
            if all(_explains(pair, side, named) for pair in pairs):
                return Cause(
                    named.cause, side=side, kind=named.kind, dim=named.dim, other_dim=named.other_dim
                )
    return None


def other_product(pairs: Pairs) -> Cause | None:
    """J g is computed where Jᵀ g is needed."""
    for pair in pairs:
        if pair.true.shape[0] != pair.true.shape[1] or pair.source_shape != pair.output_shape:
            return None
        if not pair.explained_by(pair.true.mT, pair.bound.mT):
            return None
    return Cause("transposed", kind="jvp")


def _reorderings(dims: int) -> Iterator[_Named]:
    """Of a tensor with so many dimensions, the likely ones first."""
    for a, b in itertools.combinations(range(dims), 2):
        yield _Named("transposed", "reshaped", a, b, _transposed(a, b))
    if dims > 2:
        yield _Named("transposed", "reversed", None, None, _reversed(dims))
    for dim in reversed(range(dims)):
        yield _Named("permuted", "flipped", dim, None, _flipped(dim))
        yield _Named("permuted", "shifted on by 1", dim, None, _shifted(dim, 1))
        yield _Named("permuted", "shifted back by 1", dim, None, _shifted(dim, -1))
    for a, b in itertools.combinations(range(dims), 2):
        yield _Named("permuted", "flipped", a, b, _flipped(a, b))
    for dim in reversed(range(dims)):
        yield _Named("permuted", "reversed, all but the first slice,", dim, None, _mirrored(dim))
    for dim in reversed(range(dims)):
        yield _Named("permuted", "moved on by 1 (the first slice empty)", dim, None, _moved(dim, 1))
        yield _Named("permuted", "moved back by 1 (the last slice empty)", dim, None, _moved(dim, -1))


def _moved(dim: int, by: int) -> Callable[[Tensor], Tensor]:
    def apply(t: Tensor) -> Tensor:
        moved = t.roll(by, dim + 1)
        moved.select(dim + 1, 0 if by > 0 else -1).zero_()
        return moved

    return apply


def _transposed(a: int, b: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t.transpose(a + 1, b + 1)


def _reversed(dims: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t.permute(0, *reversed(range(1, dims + 1)), *range(dims + 1, t.dim()))


def _flipped(*dims: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t.flip([d + 1 for d in dims])


def _mirrored(dim: int) -> Callable[[Tensor], Tensor]:
    """The slice k where slice -k should be, as a forgotten conjugate does in a Fourier transform."""
    return lambda t: t.flip(dim + 1).roll(1, dim + 1)


def _shifted(dim: int, by: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t.roll(by, dim + 1)


def _shape(pair: Pair, side: str) -> tuple[int, ...]:
    return pair.source_block.shape if side == "input" else pair.output_block.shape


def _dims(pair: Pair, side: str) -> int:
    """Those that the user knows: the parts of a complex number are none."""
    return len(pair.source_shape if side == "input" else pair.output_shape)


def _explains(pair: Pair, side: str, named: _Named) -> bool:
    shape = _shape(pair, side)

    def moved(matrix: Tensor) -> Tensor:
        lined_up = matrix if side == "input" else matrix.mT
        changed = named.apply(lined_up.reshape(-1, *shape)).reshape(lined_up.shape)
        return changed if side == "input" else changed.mT

    return pair.explained_by(moved(pair.true), moved(pair.bound))
