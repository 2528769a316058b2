"""Other derivatives that authors write for an operation: at another value, transposed, along another dim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.paths.changes import Change, Edge
from gradverify.verifier.numerics.diagnosis.paths.sites import Site
from gradverify.verifier.numerics.diagnosis.paths.values import TRANSFORMS, Values

LINEAR_IN_EACH = frozenset(
    """mul div rdiv matmul bmm mm mv dot inner outer ger einsum linear where baddbmm kron pow rpow solve
    linalg_solve solve_triangular linalg_solve_triangular cholesky_solve tensordot conv1d conv2d
    conv_transpose1d conv_transpose2d addmm vdot linalg_vecdot""".split()
)
"""Operations in whose derivative other arguments stand: another value may be taken for them."""

ALONG = frozenset(
    "softmax log_softmax logsumexp cumsum cumprod sum mean prod norm var std flip roll amax amin diff".split()
)
"""Operations along a dimension."""

ELEMENTWISE = frozenset(
    """exp log tanh sigmoid relu sqrt rsqrt reciprocal square pow rpow sin cos tan abs neg erf erfc log1p expm1
    softplus silu gelu clamp clamp_min clamp_max atan arctan asin acos sinh cosh logsigmoid elu leaky_relu exp2
    log2 log10 atanh asinh acosh lgamma digamma rdiv sinc hardtanh relu6""".split()
)
"""Functions of one entry each."""

_INSTEAD: dict[str, tuple[tuple[str, Callable[..., Any]], ...]] = {
    "maximum": (("the smaller one", torch.minimum),),
    "minimum": (("the larger one", torch.maximum),),
    "amax": (("the smallest entry", torch.amin),),
    "amin": (("the largest entry", torch.amax),),
    "where": (("the condition turned round", lambda c, a, b: torch.where(c, b, a)),),
    "relu": (("the condition turned round", lambda x: x - torch.relu(x)),),
    "cumsum": (("the order turned round", lambda x, dim: x.flip(dim).cumsum(dim).flip(dim)),),
    "roll": (("the shift turned round", lambda x, n, dim=None: torch.roll(x, -n, dim)),),
    "flip": (("no flip", lambda x, *_: x),),
    "solve": (("a product in place of the solve", torch.matmul),),
    "linalg_solve": (("a product in place of the solve", torch.matmul),),
    "solve_triangular": (("a product in place of the solve", lambda a, b, **_: a @ b),),
    "linalg_solve_triangular": (("a product in place of the solve", lambda a, b, **_: a @ b),),
}
"""Operations whose derivative stands where that of this one should: each with its words."""


def instead_cause(operation: str) -> str:
    """The cause whose name fits such an exchange best."""
    if operation in {"cumsum", "roll", "flip"}:
        return "permuted"
    return "operand" if "solve" in operation else "branch"


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
    yield from _made(_changes(call, edge, value, result, values), result)


def alternatives_of_all(call: Called, result: Tensor) -> Iterator[Alternative]:
    """Derivatives of other operations, with respect to all arguments at once."""
    everywhere = Edge(call.site, EVERY)
    yield from _made(
        (
            (Change(everywhere, "instead", words), partial(call.as_other, other, call.leaves))
            for words, other in _INSTEAD.get(call.name, ())
        ),
        result,
    )


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


def _changes(
    call: Called, edge: Edge, value: Tensor, result: Tensor, values: Values
) -> Iterator[tuple[Change, Make]]:
    place = edge.place

    def with_leaf(number: int, other: Any, own: Tensor = value) -> Make:  # noqa: ANN401
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in call.leaves]
        leaves[place] = own
        if number >= 0:
            leaves[number] = other
        return lambda: call.again(leaves)

    if value.shape == result.shape and value.dtype == result.dtype:
        yield Change(edge, "output"), with_leaf(-1, None, at(value, result))
    if value.numel() < result.numel() and not value.is_complex():
        for words, summed in _sums(value):
            yield (
                Change(edge, "reduced", words),
                with_leaf(-1, None, value.detach() + summed - summed.detach()),
            )
    if call.name in INDEXED and place == INDEXED[call.name]:
        yield Change(edge, "duplicates"), _last_uses(call, place)
    if value.dim() > 1 and value.shape[-1] == value.shape[-2]:
        yield Change(edge, "transposed", "gradient"), with_leaf(-1, None, value.mT)
    if result.dim() > 1 and result.shape[-1] == result.shape[-2]:
        yield Change(edge, "transposed", "grad_output"), _transposed(with_leaf(-1, None))
    if call.name in ALONG:
        for number in [k for k, leaf in enumerate(call.leaves) if type(leaf) is int][:1]:
            for dim in range(value.dim()):
                yield Change(edge, "dim", str(dim)), with_leaf(number, dim)
    if call.is_elementwise and call.is_of_one_tensor and not call.site.part:
        for name, other in values.like(value, call.site):
            yield Change(edge, "argument", name), with_leaf(-1, None, at(value, other))
    if call.name in LINEAR_IN_EACH:
        for number, leaf in enumerate(call.leaves):
            if (
                number != place
                and isinstance(leaf, Tensor)
                and (leaf.is_floating_point() or leaf.is_complex())
            ):
                for change, other in _operands(call, edge, number, values):
                    yield change, with_leaf(number, other)


def _sums(value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What stands for a value where its gradient is summed over one more dimension, or over all."""
    long = [dim for dim, n in enumerate(value.shape) if n > 1]
    for dim in long if len(long) > 1 else []:
        yield str(dim), value.sum(dim, keepdim=True)
    if long:
        yield "all", value.sum()


INDEXED = {"getitem": 0, "index_select": 0, "gather": 0, "take": 0, "take_along_dim": 0, "embedding": 1}
"""Operations that pick entries of an argument, and the place of that argument."""


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
    if leaf.dim() > 1 and leaf.shape[-1] == leaf.shape[-2]:
        yield Change(edge, "transposed", "operand", other=number), leaf.mT
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
