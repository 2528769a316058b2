"""Which entries interact: only the diagonal is right, the last use alone counts, another dimension.

The right numbers in another order: flipped, shifted, transposed, or J g in place of Jᵀ g.

The gradient of another input was returned.

Forward is flat wherever it is measured and yet not constant: a staircase, whose backward is a choice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.diagnose.evidence import (
    Cause,
    Explanation,
    Hypothesis,
    Pair,
    Pairs,
    cotangent,
    first_that_holds,
    has_other_sizes,
    of_gradient,
    wrong_ones,
)

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


Order = Callable[[Tensor], Tensor]
"""Of a tensor shaped (rows, the tensor's own dimensions)."""


@dataclass(frozen=True)
class _Reordering:
    """One way to reorder the entries of a tensor."""

    cause: str
    how: str
    dims: tuple[int, ...]
    """Those of the tensor that take part; none where all do."""
    apply: Order


def reordered(pairs: Pairs) -> Cause | None:
    """The gradient, or grad_output before it is used, is flipped, shifted, or transposed and reshaped."""
    return first_that_holds(_hypotheses(pairs), pairs)


def other_product(pairs: Pairs) -> Cause | None:
    """J g is computed where Jᵀ g is needed."""
    cause = Cause(
        "transposed",
        f"{of_gradient(pairs[0])} is J g where Jᵀ g is needed",
        "Transpose the linear map in backward.",
        is_weak=True,  # a scan from the wrong end, or a conjugate, has the same numbers
    )
    return first_that_holds([Hypothesis(cause, _transposed_block)], pairs)


def _transposed_block(pair: Pair) -> Explanation | None:
    is_square = pair.true.shape[0] == pair.true.shape[1] and pair.source_shape == pair.output_shape
    return (pair.true.mT, pair.bound.mT) if is_square else None


def _hypotheses(pairs: Pairs) -> Iterator[Hypothesis]:
    for is_input in (True, False):
        shapes = [pair.source_shape if is_input else pair.output_shape for pair in pairs]
        if len({len(shape) for shape in shapes}) > 1:
            continue
        for one in _reorderings(len(shapes[0])):
            is_square = one.dims and all(len({shape[d] for d in one.dims}) == 1 for shape in shapes)
            words = _of_square if one.cause == "transposed" and is_square else _of_order
            cause = words(one, pairs[0], is_input=is_input)
            yield Hypothesis(cause, _in_order(one.apply, is_input=is_input))


def _reorderings(dims: int) -> Iterator[_Reordering]:
    """Of a tensor with so many dimensions, the likely ones first."""
    for a, b in itertools.combinations(range(dims), 2):
        yield _Reordering("transposed", f"with dimensions {a} and {b} exchanged", (a, b), _exchanged(a, b))
    for dim in reversed(range(dims)):
        yield _along("flipped", dim, lambda t, d: t.flip(d))
        yield _along("shifted on by 1", dim, lambda t, d: t.roll(1, d))
        yield _along("shifted back by 1", dim, lambda t, d: t.roll(-1, d))


def _along(how: str, dim: int, apply: Callable[[Tensor, int], Tensor]) -> _Reordering:
    """Along one dimension, which is `dim + 1` behind the rows."""
    return _Reordering("permuted", f"{how} along dimension {dim}", (dim,), lambda t: apply(t, dim + 1))


def _exchanged(a: int, b: int) -> Order:
    return lambda t: t.transpose(a + 1, b + 1)


def _in_order(apply: Order, *, is_input: bool) -> Callable[[Pair], Explanation]:
    """The block with its columns, or its rows, in another order."""

    def moved(matrix: Tensor, shape: tuple[int, ...]) -> Tensor:
        lined_up = matrix if is_input else matrix.mT
        changed = apply(lined_up.reshape(-1, *shape)).reshape(lined_up.shape)
        return changed if is_input else changed.mT

    def explain(pair: Pair) -> Explanation:
        shape = pair.source_block.shape if is_input else pair.output_block.shape
        return moved(pair.true, shape), moved(pair.bound, shape)

    return explain


def _of_square(one: _Reordering, pair: Pair, *, is_input: bool) -> Cause:
    """Two dimensions are exchanged that are equally long at every point."""
    gradient = of_gradient(pair)
    start = (
        gradient if is_input else f"{gradient} is right but that the grad_output that backward uses for it"
    )
    exchanged = one.how.removeprefix("with ").removesuffix(" exchanged")
    what = f"{start} is transposed: {exchanged} are exchanged"
    return Cause("transposed", what, "A transpose is missing in backward, or one too many.")


def _of_order(one: _Reordering, pair: Pair, *, is_input: bool) -> Cause:
    gradient = of_gradient(pair)
    places = f"{gradient} has the right numbers in the wrong places: it is"
    if one.cause == "permuted":
        return Cause(
            "permuted",
            f"{places if is_input else f'{gradient} is right for a grad_output that is'} {one.how}",
        )
    what = f"{places} right" if is_input else f"{gradient} is right for a grad_output"
    advice = "A reshape or view is used where a transpose is needed, or one of them is missing."
    return Cause("transposed", f"{what} {one.how} and reshaped", advice)


def swapped(pairs: Pairs) -> Cause | None:
    """What is returned for this input is the gradient of another one of the same shape."""
    first = pairs[0]
    for other, name in enumerate(first.point.input_names):
        what = f"the gradient returned for `{first.name}` is the one of `{name}`"
        cause = Cause("swapped-inputs", what)
        if other == first.source or not Hypothesis(cause, _gradient_of(other)).holds(pairs):
            continue
        back = Hypothesis(cause, _gradient_of(first.source))
        if back.holds([Pair(pair.point, pair.output, other) for pair in pairs]):
            advice = "Exchange the two values in backward's return statement."
            return Cause("swapped-inputs", f"{what}, and vice versa", advice)
        return cause
    return None


def _gradient_of(source: int) -> Callable[[Pair], Explanation | None]:
    def explain(pair: Pair) -> Explanation | None:
        other = Pair(pair.point, pair.output, source)
        is_alike = other.source_block.shape == pair.source_block.shape
        return (other.true, other.bound) if is_alike else None

    return explain


MOVES = (1.0, -1.0, 3.0)
"""How far the whole input is moved, in units of its typical size, to find the next step."""


def looks_surrogate(pairs: Pairs) -> Cause | None:
    """The derivative is exactly zero wherever it exists, backward's is not, and forward has steps.

    A forward that does not depend on the input at all is flat too: no surrogate, only a wrong gradient.
    """
    # Entries that are not known lie at a step itself.
    if not all(bool(pair.cut(pair.point.flat)[pair.known].all()) for pair in pairs):
        return None
    if not all(_has_steps(pair) for pair in wrong_ones(pairs)):
        return None
    return Cause(
        "looks-surrogate",
        f"forward is a step function of `{pairs[0].name}`, whose derivative is zero, and backward is not "
        "zero: this looks like a deliberate surrogate gradient",
        "If it is one (straight-through, spiking), declare it in the spec: `surrogate: module:function` with "
        'a composite whose gradient is meant, or `surrogate: {reason: "straight-through"}`.',
    )


def _has_steps(pair: Pair) -> bool:
    forward, block = pair.point.forward, pair.source_block
    typical = pair.x.abs().median().clamp_min(2.0**-8)
    for move in MOVES:
        x = pair.point.x.clone()
        # Each entry by another distance, so that what sums up cannot cancel.
        distance = torch.linspace(1.0, 1.5, pair.x.numel(), dtype=torch.float64)
        x[block.start : block.stop] += move * typical * distance
        y = forward(x)
        if y is None:
            continue
        own = y[pair.output_block.start : pair.output_block.stop]
        if not torch.equal(own, pair.y):
            return True
    return False
