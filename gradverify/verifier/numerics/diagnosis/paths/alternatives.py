"""Other derivatives that authors write for an operation: at another value, transposed, along another dim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.paths.changes import Change, Edge
from gradverify.verifier.numerics.diagnosis.paths.operations import (
    ALONG,
    BEHIND_A_NUMBER,
    BROADCASTING,
    BY_RESULT,
    ELEMENTWISE,
    INDEXED,
    LINEAR_IN_EACH,
)
from gradverify.verifier.numerics.diagnosis.paths.sites import Site
from gradverify.verifier.numerics.diagnosis.paths.switches import Conjugated
from gradverify.verifier.numerics.diagnosis.paths.taken_for import INSTEAD
from gradverify.verifier.numerics.diagnosis.paths.values import TRANSFORMS, Values


@dataclass(frozen=True)
class Called:
    """One call of an operation."""

    name: str
    again: Callable[[Sequence[Any]], Any]
    """The operation, of other leaves."""
    as_other: Callable[[Callable[..., Any], Sequence[Any]], Any]
    """Another operation, called in the same way."""
    leaves: Sequence[Any]
    site: Site

    @property
    def is_elementwise(self) -> bool:
        """Whether each entry of the result is made of one entry of the argument."""
        return self.name in ELEMENTWISE

    @property
    def is_of_one_tensor(self) -> bool:
        """Whether a single tensor takes part."""
        return sum(isinstance(leaf, Tensor) for leaf in self.leaves) == 1


@dataclass(frozen=True)
class Alternative:
    """A change, and a tensor whose gradient is that of the operation with the change."""

    change: Change
    value: Tensor


Make = Callable[[], Any]


def alternatives_of(
    call: Called, edge: Edge, value: Tensor, result: Tensor, values: Values
) -> Iterator[Alternative]:
    """Every other derivative with respect to one argument that gives a tensor of the result's shape."""
    yield from _made(_changes(_Argument(call, edge, value), result, values), result)


def alternatives_of_all(
    call: Called, result: Tensor, values: Values, earlier: Sequence[tuple[str, Tensor]]
) -> Iterator[Alternative]:
    """Derivatives with respect to all arguments at once.

    Those of another operation, of this one with a factor too many, or of nothing between an earlier value and
    this one.
    """
    everywhere = Edge(call.site, EVERY)
    changes: list[tuple[Change, Make]] = [
        (Change(everywhere, "instead", words), partial(call.as_other, other, call.leaves))
        for words, other in INSTEAD.get(call.name, ())
    ]
    if not call.site.part and not result.is_complex():
        for name, value in values.like(result, call.site):
            changes.append((Change(everywhere, "times", name), partial(_times, call, value)))
        for name, live in earlier:
            same_kind = live.shape == result.shape and live.dtype == result.dtype
            if same_kind and _is_made_of(result, live):
                changes.append((Change(everywhere, "nothing", name), live.clone))
    yield from _made(iter(changes), result)


def _is_made_of(result: Tensor, value: Tensor) -> bool:
    """Whether a value lies on some path to the result."""
    seen: set[object] = set()
    todo = [result.grad_fn]
    while todo and len(seen) < MOST_NODES:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if node is value.grad_fn:
            return True
        seen.add(node)
        todo += [before for before, _ in node.next_functions]
    return False


MOST_NODES = 2000
"""Nodes of a graph that are searched for one value."""


def _times(call: Called, value: Tensor) -> Tensor:
    result: Tensor = call.again(call.leaves)
    return result * value


EVERY = -1
"""The place of all arguments together."""


def _made(changes: Iterator[tuple[Change, Make]], result: Tensor) -> Iterator[Alternative]:
    for change, make in changes:
        try:
            made = make()
        except (RuntimeError, TypeError, IndexError, ValueError):
            continue  # the operation does not take such a value
        if isinstance(made, Tensor) and made.shape == result.shape and made.requires_grad:
            yield Alternative(change, made)


@dataclass(frozen=True)
class _Argument:
    """The argument with respect to which a derivative is taken."""

    call: Called
    edge: Edge
    value: Tensor

    def with_leaf(self, number: int, other: Any) -> Make:  # noqa: ANN401
        """The operation with another argument replaced: only this argument has a gradient."""
        return self._call({number: other, self.edge.place: self.value})

    def with_own(self, own: Tensor) -> Make:
        """The operation with this argument replaced."""
        return self._call({self.edge.place: own})

    def _call(self, replaced: dict[int, Any]) -> Make:
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in self.call.leaves]
        return lambda: self.call.again([replaced.get(k, leaf) for k, leaf in enumerate(leaves)])


def _changes(argument: _Argument, result: Tensor, values: Values) -> Iterator[tuple[Change, Make]]:
    yield from _of_gradients(argument, result)
    yield from _at_other_values(argument, result, values)
    yield from _along_others(argument)
    yield from _with_other_operands(argument, values)


def _of_gradients(argument: _Argument, result: Tensor) -> Iterator[tuple[Change, Make]]:
    """What comes back is summed further, scattered otherwise, or transposed."""
    call, edge, value = argument.call, argument.edge, argument.value
    if value.numel() < result.numel() and not value.is_complex():
        for words, summed in _sums(value):
            own = value.detach() + summed - summed.detach()
            yield Change(edge, "reduced", words), argument.with_own(own)
        for words, averaged in _averages(value):
            own = value.detach() + averaged - averaged.detach()
            yield Change(edge, "averaged", words), argument.with_own(own)
        if call.name in BROADCASTING:
            for words, sliced in _slices(value, result):
                yield Change(edge, "slice", words), argument.with_own(sliced)
    if value.is_complex():
        yield Change(edge, "conjugate", "derivative"), _unconjugated(argument)
    if INDEXED.get(call.name) == edge.place:
        yield Change(edge, "duplicates"), _last_uses(call, edge.place)
    if is_square(value):
        yield Change(edge, "transposed", "gradient"), argument.with_own(value.mT)
    if is_square(result):
        yield Change(edge, "transposed", "grad_output"), _transposed(argument.with_own(value))


def _at_other_values(argument: _Argument, result: Tensor, values: Values) -> Iterator[tuple[Change, Make]]:
    """The derivative at the result, or at another value of forward."""
    call, edge, value = argument.call, argument.edge, argument.value
    if value.shape == result.shape and value.dtype == result.dtype:
        yield Change(edge, "output"), argument.with_own(at(value, result))
    if call.is_elementwise and call.is_of_one_tensor and not call.site.part:
        for name, other in values.like(value, call.site):
            yield Change(edge, "argument", name), argument.with_own(at(value, other))
        slope = BY_RESULT.get(call.name)
        if slope is not None:
            for name, other in values.like(value, call.site):
                yield Change(edge, "saved", name), partial(torch.mul, value, slope(other))


def _along_others(argument: _Argument) -> Iterator[tuple[Change, Make]]:
    if argument.call.name not in ALONG:
        return
    leaves = argument.call.leaves
    whole = [k for k, leaf in enumerate(leaves) if type(leaf) is int]
    at = BEHIND_A_NUMBER.get(argument.call.name)
    for number in whole[:1] if at is None else [k for k in whole if k == at]:
        for dim in range(argument.value.dim()):
            yield Change(argument.edge, "dim", str(dim)), argument.with_leaf(number, dim)


def _with_other_operands(argument: _Argument, values: Values) -> Iterator[tuple[Change, Make]]:
    call = argument.call
    if call.name not in LINEAR_IN_EACH:
        return
    for number, leaf in enumerate(call.leaves):
        if number != argument.edge.place and isinstance(leaf, Tensor):
            for change, other in _operands(call, argument.edge, number, values):
                yield change, argument.with_leaf(number, other)


def is_square(tensor: Tensor) -> bool:
    """Whether it is a square matrix, or a batch of such."""
    return tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2]


def _sums(value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What stands for a value where its gradient is summed over one more dimension, or over all."""
    long = [dim for dim, n in enumerate(value.shape) if n > 1]
    for dim in long if len(long) > 1 else []:
        yield str(dim), value.sum(dim, keepdim=True)
    if long:
        yield "all", value.sum()


def _averages(value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The same, and divided by how many there are."""
    return (
        (words, summed / (value.numel() if words == "all" else value.shape[int(words)]))
        for words, summed in _sums(value)
    )


def _slices(value: Tensor, result: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A value that is spread over a dimension, of which one slice alone has a gradient."""
    if value.dim() > result.dim():
        return
    spread = value.expand(result.shape)
    whole = (1,) * (result.dim() - value.dim()) + tuple(value.shape)
    for dim, (own, n) in enumerate(zip(whole, result.shape, strict=True)):
        for words, place in (("first", 0), ("last", n - 1)) if own == 1 < n else ():
            along = [-1 if k == dim else 1 for k in range(result.dim())]
            kept = (torch.arange(n) == place).reshape(along)
            yield f"{words} slice along dimension {dim}", torch.where(kept, spread, spread.detach())


def _unconjugated(argument: _Argument) -> Make:
    """The operation with the conjugate of its derivative: what comes back is conjugated before and behind."""
    make = argument.with_own(Conjugated.apply(argument.value))  # type: ignore[no-untyped-call]
    return lambda: Conjugated.apply(make())  # type: ignore[no-untyped-call]


def _last_uses(call: Called, place: int) -> Make:
    """The entries picked; of several uses of one, the last alone has a gradient."""

    def make() -> Tensor:
        value: Tensor = call.leaves[place]
        numbers = torch.arange(value.numel(), dtype=torch.float64).reshape(value.shape)
        leaves = list(call.leaves)
        leaves[place] = numbers
        picked = call.again(leaves).reshape(-1).long()
        order = torch.arange(picked.numel())
        last = torch.full((value.numel(),), -1).scatter_reduce(0, picked, order, "amax")
        result: Tensor = call.again(call.leaves)
        return result * (last[picked] == order).reshape(result.shape)

    return make


def _transposed(make: Make) -> Make:
    return lambda: make().mT


def at(tensor: Tensor, value: Tensor) -> Tensor:
    """A tensor of other values whose gradient goes where it went."""
    return tensor + (value - tensor).detach()


def _operands(call: Called, edge: Edge, number: int, values: Values) -> Iterator[tuple[Change, Tensor]]:
    leaf = call.leaves[number].detach()
    if not leaf.is_complex() and not leaf.is_floating_point():
        leaf = leaf.to(torch.get_default_dtype())  # a mask counts as ones and zeros
    if leaf.dim() > 1 and leaf.shape[-1] == leaf.shape[-2]:
        yield Change(edge, "transposed", "operand", other=number), leaf.mT
    if leaf.dim() > 1:
        yield Change(edge, "transposed", "operand reshaped", other=number), leaf.mT.reshape(leaf.shape)
    if leaf.is_complex():
        yield Change(edge, "conjugate", other=number), leaf.conj()
    else:
        for text, transform in TRANSFORMS:
            yield Change(edge, "operand", text, other=number), transform(leaf)
    if "conv" in call.name:
        for dim in range(2, leaf.dim()):
            yield Change(edge, "operand", f"{{}}.flip({dim})", other=number), leaf.flip(dim)
    for name, value in values.like(leaf, call.site):
        yield Change(edge, "operand", name, other=number), value
