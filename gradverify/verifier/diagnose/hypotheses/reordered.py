"""The right numbers in another order: flipped, shifted, transposed, or J g in place of Jᵀ g."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.evidence import Explanation, Hypothesis, Pair, Pairs, first_that_holds
from gradverify.verifier.diagnose.words import of_gradient

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
