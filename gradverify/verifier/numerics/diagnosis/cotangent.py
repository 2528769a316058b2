"""grad_output is summed or averaged before it is used."""

from __future__ import annotations

import math

from torch import Tensor

from gradverify.verifier.numerics.diagnosis.cause import Cause
from gradverify.verifier.numerics.diagnosis.evidence import Pair, Pairs


def summed_cotangent(pairs: Pairs) -> Cause | None:
    """g.sum() or g.mean(), over everything or along one dimension, stands where g should."""
    dims = len(pairs[0].output_shape)
    if not dims:
        return None
    for dim in (None, *reversed(range(dims))) if dims > 1 else (None,):
        for kind in ("sum", "mean"):
            if all(_explains(pair, dim, kind) for pair in pairs) and any(
                _length(pair, dim) > 1 for pair in pairs if pair.is_wrong
            ):
                return Cause("grad-output-summed", kind=kind, dim=dim)
    return None


def _explains(pair: Pair, dim: int | None, kind: str) -> bool:
    divisor = _length(pair, dim) if kind == "mean" else 1
    return pair.explained_by(
        _spread(pair, pair.true, dim) / divisor, _spread(pair, pair.bound, dim) / divisor
    )


def _spread(pair: Pair, matrix: Tensor, dim: int | None) -> Tensor:
    """Rows summed over a dimension of the output, given to every row that took part."""
    shape = pair.output_block.shape
    shaped = matrix.reshape(*shape, matrix.shape[1])
    if dim is None:
        # Each part of a complex number by itself.
        return (
            shaped.sum(dim=tuple(range(len(pair.output_shape))), keepdim=True)
            .expand_as(shaped)
            .reshape(matrix.shape)
        )
    return shaped.sum(dim=dim, keepdim=True).expand_as(shaped).reshape(matrix.shape)


def _length(pair: Pair, dim: int | None) -> int:
    return math.prod(pair.output_shape) if dim is None else pair.output_shape[dim]
