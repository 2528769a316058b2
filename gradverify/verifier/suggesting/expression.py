"""Values of a backward as a graph in which equal values are one node, simplified as it is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.suggesting.node import ZEROS, Node
from gradverify.verifier.suggesting.ordinary import in_ordinary_operations

SAME = frozenset({"detach", "alias", "clone", "lift_fresh", "lift_fresh_copy", "contiguous", "resolve_conj"})
"""Operations that return the values of their first argument, in another place."""

RESHAPES = frozenset({"view", "_unsafe_view", "reshape", "expand", "squeeze", "unsqueeze"})

POINTWISE = frozenset(
    {
        *(
            "add",
            "sub",
            "mul",
            "div",
            "neg",
            "pow",
            "exp",
            "log",
            "sqrt",
            "rsqrt",
            "sin",
            "cos",
            "tanh",
            "abs",
        ),
        *("sigmoid", "erf", "sign", "sgn", "square", "reciprocal", "where", "masked_fill", "conj", "_conj"),
        *(
            "eq",
            "ne",
            "gt",
            "ge",
            "lt",
            "le",
            "logical_and",
            "logical_or",
            "logical_not",
            "maximum",
            "minimum",
        ),
    }
)

LINEAR = frozenset(
    {
        "sum",
        "mean",
        "expand",
        "view",
        "reshape",
        "t",
        "transpose",
        "permute",
        "unsqueeze",
        "squeeze",
        "cumsum",
    }
)


COMPLEX_PARTS = ("real_alone", "imag_alone")
"""Complex tensors of which the other part is zero."""


@dataclass
class Builder:
    """Makes nodes; the same value twice is one node."""

    known: dict[Any, Node] = field(default_factory=dict)

    def named(self, name: str, value: Tensor) -> Node:
        """A value that is there when backward begins."""
        return self._intern("name", (name,), (), tuple(value.shape), value.dtype, None)

    def call(
        self,
        op: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        value: Any,  # noqa: ANN401
        target: Any,  # noqa: ANN401
    ) -> Node:
        """An operation that gave `value` (a tensor, or anything else for several results)."""
        shape = tuple(value.shape) if isinstance(value, Tensor) else ()
        dtype = value.dtype if isinstance(value, Tensor) else None
        return self.make(op, tuple(args), tuple(sorted(kwargs.items())), shape, dtype, target)

    def make(
        self,
        op: str,
        args: tuple[Any, ...],
        kwargs: tuple[tuple[str, Any], ...],
        shape: tuple[int, ...],
        dtype: torch.dtype | None,
        target: Any = None,  # noqa: ANN401
    ) -> Node:
        """A node, simplified."""
        first = args[0] if args and isinstance(args[0], Node) else None
        if first is not None:
            same = self._same(op, first, args, shape, dtype)
            if same is not None:
                return same
        signed = self._sign_outside(op, args, kwargs, shape, dtype, target)
        if signed is not None:
            return signed
        if op in POINTWISE:
            return self._pointwise(op, args, kwargs, shape, dtype, target)
        rewritten = in_ordinary_operations(self, op, args, shape, dtype)
        return rewritten or self._intern(op, args, kwargs, shape, dtype, target)

    def plain(
        self,
        op: str,
        args: tuple[Any, ...],
        shape: tuple[int, ...],
        dtype: torch.dtype | None,
        target: Any = None,  # noqa: ANN401
    ) -> Node:
        """A node as it is."""
        return self._intern(op, args, (), shape, dtype, target)

    def _same(
        self, op: str, first: Node, args: tuple[Any, ...], shape: tuple[int, ...], dtype: torch.dtype | None
    ) -> Node | None:
        """An earlier node with the values of an operation on `first`, where there is one."""
        keeps = first.dtype == dtype and first.shape == shape
        by_one = op in {"mul", "div", "pow"} and is_number(args[1], 1)
        if op in SAME or (keeps and (by_one or op in RESHAPES or op == "_to_copy")):
            return first
        undone = op == first.op and (
            op in {"t", "neg"} or (op == "transpose" and set(args[1:]) == set(first.args[1:]))
        )
        if undone:
            return first.args[0]  # type: ignore[no-any-return]
        if op == first.op == "permute":
            order = tuple(first.args[1][d] for d in args[1])
            straight = [d % len(shape) for d in order] == list(range(len(shape)))
            source = first.args[0]
            return source if straight else self._intern(op, (source, order), (), shape, dtype, first.target)
        if op == "permute" and keeps and [d % len(shape) for d in args[1]] == list(range(len(shape))):
            return first
        if first.op in {"sum", "mean"} and len(first.args) > 1:
            return self._other_sum(op, first, args, shape, dtype)
        return None

    def _other_sum(
        self, op: str, first: Node, args: tuple[Any, ...], shape: tuple[int, ...], dtype: torch.dtype | None
    ) -> Node | None:
        """A sum that keeps its dimensions for one that does not, or the reverse."""
        source, dims = first.args[:2]
        kept = len(first.args) > 2 and first.args[2] is True
        summed = _positive(dims, source)
        left = tuple(n for k, n in enumerate(source.shape) if k not in summed)
        if kept and op in {"view", "reshape", "squeeze"} and shape == left:
            return self._intern(first.op, (source, dims), (), shape, dtype, first.target)
        if (
            not kept
            and op == "unsqueeze"
            and summed == {args[1] % len(shape)}
            and len(shape) == len(source.shape)
        ):
            return self._intern(first.op, (source, dims, True), (), shape, dtype, first.target)
        return None

    def _sign_outside(
        self,
        op: str,
        args: tuple[Any, ...],
        kwargs: tuple[tuple[str, Any], ...],
        shape: tuple[int, ...],
        dtype: torch.dtype | None,
        target: Any,  # noqa: ANN401
    ) -> Node | None:
        """-f(x) for f(-x), where f is linear: signs meet further out, and become subtractions."""
        count = 2 if op in {"mul", "div", "mm", "bmm"} else 1 if op in LINEAR else 0
        for k, one in enumerate(args[:count]):
            if isinstance(one, Node) and one.op == "neg":
                plain = (*args[:k], one.args[0], *args[k + 1 :])
            elif k and op in {"mul", "div"} and isinstance(one, int | float) and one < 0:
                plain = (args[0], -one)
            else:
                continue
            inner = self.make(op, plain, kwargs, shape, dtype, target)
            return self.make("neg", (inner,), (), shape, dtype, torch.ops.aten.neg.default)
        return None

    def _pointwise(
        self,
        op: str,
        args: tuple[Any, ...],
        kwargs: tuple[tuple[str, Any], ...],
        shape: tuple[int, ...],
        dtype: torch.dtype | None,
        target: Any,  # noqa: ANN401
    ) -> Node:
        args = tuple(a.args[0] if isinstance(a, Node) and a.op == "literal" else a for a in args)
        tensors = [a for a in args if isinstance(a, Node)]
        expanded = [a for a in tensors if a.op == "expand"]
        if len(tensors) == 1 and expanded and op != "neg":
            inner = self.make(
                op,
                tuple(a.args[0] if a is expanded[0] else a for a in args),
                kwargs,
                expanded[0].args[0].shape,
                dtype,
                target,
            )
            return self._intern("expand", (inner, shape), (), shape, dtype, expanded[0].target)
        for one in expanded:
            shapes = [one.args[0].shape, *(a.shape for a in args if isinstance(a, Node) and a is not one)]
            if _broadcast(shapes) == shape:
                args = tuple(a.args[0] if a is one else a for a in args)
        if op in {"add", "sub"} and not kwargs and len(args) == 2:
            return self._sum_of(op, args, shape, dtype, target)
        return self._intern(op, args, kwargs, shape, dtype, target)

    def _sum_of(
        self,
        op: str,
        args: tuple[Any, ...],
        shape: tuple[int, ...],
        dtype: torch.dtype | None,
        target: Any,  # noqa: ANN401
    ) -> Node:
        left, right = args
        for one, other in ((left, right), (right, left)):
            zero = isinstance(one, Node) and one.op in ZEROS
            if op == "add" and zero and isinstance(other, Node) and other.shape == shape:
                return other
        parts = {n.op: n.args[0] for n in args if isinstance(n, Node) and n.op in COMPLEX_PARTS}
        if op == "add" and len(parts) == len(COMPLEX_PARTS):
            return self._intern("complex", tuple(parts[p] for p in COMPLEX_PARTS), (), shape, dtype, None)
        if isinstance(right, Node) and right.op == "neg":
            flipped = "sub" if op == "add" else "add"
            return self.make(flipped, (left, right.args[0]), (), shape, dtype, _target(flipped))
        if op == "add" and isinstance(left, Node) and left.op == "neg" and isinstance(right, Node):
            return self.make("sub", (right, left.args[0]), (), shape, dtype, _target("sub"))
        return self._intern(op, args, (), shape, dtype, target)

    def _intern(
        self,
        op: str,
        args: tuple[Any, ...],
        kwargs: tuple[tuple[str, Any], ...],
        shape: tuple[int, ...],
        dtype: torch.dtype | None,
        target: Any,  # noqa: ANN401
    ) -> Node:
        key = (op, _key(args), _key(kwargs), shape, dtype)
        if key not in self.known:
            self.known[key] = Node(op, args, kwargs, shape, dtype, target)
        return self.known[key]


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def is_number(value: Any, number: float) -> bool:  # noqa: ANN401
    """Whether an argument is this number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == number


def _positive(dims: Any, source: Node) -> set[int]:  # noqa: ANN401
    return {d % max(1, len(source.shape)) for d in (dims if isinstance(dims, tuple) else (dims,))}


def _target(op: str) -> Any:  # noqa: ANN401
    return getattr(torch.ops.aten, op).Tensor


def _key(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, tuple):
        return tuple(_key(v) for v in value)
    if isinstance(value, Node):
        return ("node", id(value))
    return (type(value).__name__, repr(value))
