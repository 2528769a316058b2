"""Which entries interact: only the diagonal is right, the last use alone counts, another dimension."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.evidence import (
    Explanation,
    Hypothesis,
    Pair,
    Pairs,
    first_that_holds,
    has_other_sizes,
    wrong_ones,
)
from gradverify.verifier.diagnose.words import cotangent, of_gradient

LEAST_COUPLED = 3
"""Entries that must interact, before a sum over them is named: two do after an exchange as well."""

Dims = tuple[int, int]
"""A dimension of the input and one of the output, of equal length at every point."""


def diagonal_only(pairs: Pairs) -> Cause | None:
    """Entries with equal indices along a dimension are right and all others zero."""
    together = _decoupled(pairs, lambda pair: pair.true)
    return first_that_holds(
        (
            _diagonal_hypothesis(pairs[0], dims)
            for dims in _equal_dims(pairs)
            # Where another dimension goes with one of these two, equal indices mean nothing.
            if not any((d == dims[0]) != (e == dims[1]) for d, e in together)
        ),
        pairs,
    )


def _diagonal_hypothesis(pair: Pair, dims: Dims) -> Hypothesis:
    cause = Cause(
        "diagonal-only",
        f"{of_gradient(pair)} is right on the diagonal along dimension {dims[0]} and zero off it: the "
        f"entries of `{pair.name}` interact along it, and backward drops that",
        f"Is a sum over that dimension missing, as `({cotangent(pair)} * y).sum(...)` in softmax, or what "
        "comes back from the other steps of a scan?",
    )
    return Hypothesis(cause, lambda pair: _keeping(pair, _diagonal(pair, dims)))


def other_reduction_dim(pairs: Pairs) -> Cause | None:
    """Entries are coupled along a dimension that the function keeps apart."""
    if not has_other_sizes(pairs):
        return None
    claimed, true = (_decoupled(pairs, of) for of in (lambda pair: pair.claimed, lambda pair: pair.true))
    for dims in sorted(true - claimed):
        if all(_mixes(pair, dims) for pair in wrong_ones(pairs)):
            return Cause(
                "wrong-reduction-dim",
                f"backward lets entries of `{pairs[0].name}` interact along dimension {dims[0]}, which "
                "forward keeps apart",
                "Look for a sum or mean over that dimension, or over all of them, in backward.",
                is_weak=True,
            )
    return None


def _mixes(pair: Pair, dims: Dims) -> bool:
    """Whether backward couples every two indices of a dimension: what a sum over it does."""
    rows, columns = (index.flatten() for index in _indices(pair, dims))
    length = pair.source_shape[dims[0]]
    coupled = torch.zeros(length, length, dtype=torch.bool)
    seen = _is_there(pair, pair.claimed) & pair.known
    outputs, inputs = seen.nonzero(as_tuple=True)
    coupled[rows[outputs], columns[inputs]] = True
    return length >= LEAST_COUPLED and bool(coupled.all())


def duplicates(pairs: Pairs) -> Cause | None:
    """Where several outputs use one entry of the input, only the last or the first of them counts."""
    # The two parts of a complex number are no uses: a dimension that is not declared lies over them.
    return first_that_holds(
        (
            _use_hypothesis(pairs[0].name, dim, kind)
            for dim in range(len(pairs[0].output_shape))
            for kind in ("last", "first")
        ),
        pairs,
    )


def _use_hypothesis(name: str, dim: int, kind: str) -> Hypothesis:
    cause = Cause(
        "duplicates",
        f"where an entry of `{name}` is used several times, only the {kind} use counts",
        "Uses must be added up: is a term missing, or does an assignment by index stand where index_add_ or "
        "scatter_add_ is needed?",
    )
    return Hypothesis(cause, lambda pair: _one_use(pair, dim, kind))


def _equal_dims(pairs: Pairs) -> list[Dims]:
    first = pairs[0]
    shapes = [(pair.source_shape, pair.output_shape) for pair in pairs]
    found = []
    for d, e in itertools.product(range(len(first.source_shape)), range(len(first.output_shape))):
        lengths = [(s[d], o[e]) for s, o in shapes if d < len(s) and e < len(o)]
        if len(lengths) == len(shapes) and all(a == b for a, b in lengths) and max(a for a, _ in lengths) > 1:
            found.append((d, e))
    # Last dimensions first: rows are where entries mostly interact; equal places before different ones.
    return sorted(found, key=lambda pair: (pair[0] != pair[1], -pair[0]))


def _diagonal(pair: Pair, dims: Dims) -> Tensor:
    """bool, m × n: equal indices along the two dimensions."""
    rows, columns = _indices(pair, dims)
    return rows == columns


def _indices(pair: Pair, dims: Dims) -> tuple[Tensor, Tensor]:
    """The index of every row, m × 1, and of every column, 1 × n, along the two dimensions."""
    columns = _index(pair.source_shape, dims[0], is_complex=pair.source_block.is_complex)
    rows = _index(pair.output_shape, dims[1], is_complex=pair.output_block.is_complex)
    return rows[:, None], columns[None, :]


def _index(shape: tuple[int, ...], dim: int, *, is_complex: bool) -> Tensor:
    along = [-1 if k == dim else 1 for k in range(len(shape))]
    flat = torch.arange(shape[dim]).reshape(along).expand(shape).reshape(-1)
    return flat.repeat_interleave(2) if is_complex else flat


def _keeping(pair: Pair, mask: Tensor) -> Explanation | None:
    """The true block where a mask is, zero elsewhere; None where that is no explanation of what is wrong."""
    if pair.is_wrong and not ((mask & pair.nonzero).any() and (~mask & pair.nonzero).any()):
        return None
    zero = torch.zeros_like(pair.true)
    return torch.where(mask, pair.true, zero), torch.where(mask, pair.bound, zero)


def _decoupled(pairs: Pairs, of: Callable[[Pair], Tensor]) -> set[Dims]:
    """Dimension pairs off whose equal indices a matrix vanishes, at every wrong point."""
    return {
        dims
        for dims in _equal_dims(pairs)
        if not any(
            (_is_there(pair, of(pair)) & ~_diagonal(pair, dims) & pair.known).any()
            for pair in wrong_ones(pairs)
        )
    }


def _is_there(pair: Pair, matrix: Tensor) -> Tensor:
    """Where a matrix is not zero."""
    return matrix.abs() > 2 * pair.bound + 1e-9 * pair.scale


def _one_use(pair: Pair, dim: int, kind: str) -> Explanation | None:
    shape = pair.output_block.shape
    if dim >= len(shape):
        return None
    used = pair.nonzero.reshape(*shape, -1)
    order = used.flip([dim]) if kind == "last" else used
    first = (order.cumsum(dim) == 1) & order
    kept = (first.flip([dim]) if kind == "last" else first).reshape(pair.true.shape)
    is_used_again = bool((used.sum(dim) > 1).any())
    return _keeping(pair, kept) if is_used_again or not pair.is_wrong else None
