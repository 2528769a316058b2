"""grad_output is summed or averaged before it is used."""

from __future__ import annotations

from torch import Tensor

from gradverify.verifier.numerics.diagnosis.cause import Cause
from gradverify.verifier.numerics.diagnosis.evidence import Pair, Pairs


def summed_cotangent(pairs: Pairs) -> Cause | None:
    """g.sum() or g.mean(), over everything or along one dimension, stands where g should."""
    dims = len(pairs[0].output_block.shape)
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
    if dim is None:
        return matrix.sum(dim=0, keepdim=True).expand_as(matrix)
    shaped = matrix.reshape(*pair.output_block.shape, matrix.shape[1])
    return shaped.sum(dim=dim, keepdim=True).expand_as(shaped).reshape(matrix.shape)


def _length(pair: Pair, dim: int | None) -> int:
    return pair.claimed.shape[0] if dim is None else pair.output_block.shape[dim]
