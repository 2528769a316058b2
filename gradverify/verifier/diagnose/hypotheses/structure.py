"""Which entries interact: only the diagonal is right, the last use alone counts, another dimension."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from gradverify.verifier.diagnose.cause import Cause, Strength
from gradverify.verifier.diagnose.evidence import Pair, Pairs, has_other_sizes, wrong_ones

LEAST_COUPLED = 3
"""Entries that must interact, before a sum over them is named: two do after an exchange as well."""

Dims = tuple[int, int]
"""A dimension of the input and one of the output, of equal length at every point."""


def diagonal_only(pairs: Pairs) -> Cause | None:
    """Entries with equal indices along a dimension are right and all others zero; or the reverse."""
    tied = _decoupled(pairs, "true")
    for dims in _equal_dims(pairs):
        if any((d == dims[0]) != (e == dims[1]) for d, e in tied):
            continue  # another dimension goes with one of these two: equal indices mean nothing
        masks = [_diagonal(pair, dims) for pair in pairs]
        for kind in ("diagonal", "rest"):
            if all(
                _keeps(pair, m if kind == "diagonal" else ~m) for pair, m in zip(pairs, masks, strict=True)
            ):
                if kind == "diagonal":
                    along = "sequence" if _goes_one_way(pairs, dims) else ""
                    return Cause("diagonal-only", kind=along, dim=dims[0], other_dim=dims[1])
                return Cause("missing-term", kind="diagonal", dim=dims[0], other_dim=dims[1])
    return None


def _goes_one_way(pairs: Pairs, dims: Dims) -> bool:
    """Whether outputs depend on entries before them alone, or on those behind them: a scan."""
    before, behind = True, True
    for pair in wrong_ones(pairs):
        columns = _indices(pair.source_shape, dims[0], complex_=pair.source_block.is_complex)
        rows = _indices(pair.output_shape, dims[1], complex_=pair.output_block.is_complex)
        before = before and not bool((pair.nonzero & (columns[None, :] > rows[:, None])).any())
        behind = behind and not bool((pair.nonzero & (columns[None, :] < rows[:, None])).any())
    return before != behind


def other_reduction_dim(pairs: Pairs) -> Cause | None:
    """Entries are coupled along another dimension than the function couples them along."""
    if not has_other_sizes(pairs):
        return None
    claimed, true = _decoupled(pairs, "claimed"), _decoupled(pairs, "true")
    longest = [max(lengths) for lengths in zip(*(p.source_shape for p in wrong_ones(pairs)), strict=False)]
    lost = sorted(dims for dims in true - claimed if longest[dims[0]] >= LEAST_COUPLED)
    gained = sorted(claimed - true)
    # Of one dimension of the output with another one of the input: something is transposed.
    exchanged = any((d == a) != (e == b) for d, e in lost for a, b in gained)
    if lost and gained and not exchanged:
        return Cause("wrong-reduction-dim", Strength.WEAK, dim=lost[0][0], other_dim=gained[0][0])
    for dims in lost:
        if all(_mixes(pair, dims) for pair in wrong_ones(pairs)):
            return Cause("wrong-reduction-dim", Strength.WEAK, kind="mixed", dim=dims[0])
    return None


def _mixes(pair: Pair, dims: Dims) -> bool:
    """Whether backward couples every two indices of a dimension: what a sum over it does."""
    columns = _indices(pair.source_shape, dims[0], complex_=pair.source_block.is_complex)
    rows = _indices(pair.output_shape, dims[1], complex_=pair.output_block.is_complex)
    length = pair.source_shape[dims[0]]
    coupled = torch.zeros(length, length, dtype=torch.bool)
    seen = (pair.claimed.abs() > 2 * pair.bound + 1e-9 * pair.scale) & pair.known
    outputs, inputs = seen.nonzero(as_tuple=True)
    coupled[rows[outputs], columns[inputs]] = True
    return length >= LEAST_COUPLED and bool(coupled.all())


def duplicates(pairs: Pairs) -> Cause | None:
    """Where several outputs use one entry of the input, only the last or the first of them counts."""
    # The two parts of a complex number are no uses: a dimension that nobody knows of lies over them.
    for dim in range(len(pairs[0].output_shape)):
        for kind in ("last", "first"):
            if all(_keeps_one(pair, dim, kind) for pair in pairs):
                return Cause("duplicates", dim=dim, kind=kind)
    return None


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
    columns = _indices(pair.source_shape, dims[0], complex_=pair.source_block.is_complex)
    rows = _indices(pair.output_shape, dims[1], complex_=pair.output_block.is_complex)
    return rows[:, None] == columns[None, :]


def _indices(shape: tuple[int, ...], dim: int, *, complex_: bool) -> Tensor:
    along = [1] * len(shape)
    along[dim] = -1
    flat = torch.arange(shape[dim]).reshape(along).expand(shape).reshape(-1)
    return flat.repeat_interleave(2) if complex_ else flat


def _keeps(pair: Pair, mask: Tensor) -> bool:
    zero = torch.zeros_like(pair.true)
    if pair.is_wrong and not ((mask & pair.nonzero).any() and (~mask & pair.nonzero).any()):
        return False
    return pair.explained_by(torch.where(mask, pair.true, zero), torch.where(mask, pair.bound, zero))


def _decoupled(pairs: Pairs, which: str) -> set[Dims]:
    """Dimension pairs off whose equal indices a matrix vanishes, at every wrong point."""
    found = set()
    for dims in _equal_dims(pairs):
        off = [
            ((pair.claimed if which == "claimed" else pair.true).abs(), ~_diagonal(pair, dims), pair)
            for pair in wrong_ones(pairs)
        ]
        if all(bool((m <= 2 * p.bound + 1e-9 * p.scale)[mask & p.known].all()) for m, mask, p in off):
            found.add(dims)
    return found


def _keeps_one(pair: Pair, dim: int, kind: str) -> bool:
    shape = pair.output_block.shape
    if dim >= len(shape):
        return False
    used = pair.nonzero.reshape(*shape, -1)
    order = used.flip([dim]) if kind == "last" else used
    first = (order.cumsum(dim) == 1) & order
    kept = (first.flip([dim]) if kind == "last" else first).reshape(pair.true.shape)
    zero = torch.zeros_like(pair.true)
    several = bool((used.sum(dim) > 1).any())
    if pair.is_wrong and not (several and (kept & pair.nonzero).any()):
        return False
    return pair.explained_by(torch.where(kept, pair.true, zero), torch.where(kept, pair.bound, zero))
