"""Values of a backward as a graph in which equal values are one node, simplified as it is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})
"""Operations that make zeros."""

SAME = frozenset({"detach", "alias", "clone", "lift_fresh", "lift_fresh_copy", "contiguous", "resolve_conj"})
"""Operations that return the values of their first argument, in another place."""

RESHAPES = frozenset({"view", "_unsafe_view", "reshape", "expand", "squeeze", "unsqueeze"})

_POINTWISE = (
    "add sub mul div neg pow exp log sqrt rsqrt sin cos tanh abs sigmoid erf sign sgn square reciprocal "
    "where masked_fill conj _conj eq ne gt ge lt le logical_and logical_or logical_not maximum minimum"
)
POINTWISE = frozenset(_POINTWISE.split())

LINEAR = RESHAPES - {"_unsafe_view"} | {"sum", "mean", "t", "transpose", "permute", "cumsum"}


@dataclass(frozen=True, eq=False)
class Node:
    """One value: a named one, or an operation on others. Equal values are the same object."""

    op: str
    """The operation's name without namespace and overload; `name` for a named value, `literal` for a
    constant tensor without dimensions."""
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    target: Any = None
    """The `OpOverload` behind it, which knows the names and defaults of its arguments."""

    @property
    def inputs(self) -> Iterator[Node]:
        """The nodes it is made of, as often as it uses them."""
        return _nodes_in((self.args, [value for _, value in self.kwargs]))


def _nodes_in(value: Any) -> Iterator[Node]:  # noqa: ANN401 - nested arguments
    if isinstance(value, Node):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _nodes_in(item)


@dataclass
class Builder:
    """Makes nodes; the same value twice is one node."""

    rules: Mapping[str, Callable[[Builder, Node], Node | None]]
    """By operation: how it is written in more ordinary ones; None where it stays."""
    _known: dict[Any, Node] = field(default_factory=dict)

    def named(self, name: str, value: Tensor) -> Node:
        """A value that is there when backward begins."""
        return self.kept(Node("name", (name,), (), tuple(value.shape), value.dtype))

    def kept(self, node: Node) -> Node:
        """The one node of this value, as it is."""
        key = (node.op, _key(node.args), _key(node.kwargs), node.shape, node.dtype)
        return self._known.setdefault(key, node)

    def made(self, node: Node) -> Node:
        """The same, simplified."""
        simpler = self._same(node) or self._sign_outside(node)
        if simpler is not None:
            return simpler
        if node.op in POINTWISE:
            return self._pointwise(node)
        rule = self.rules.get(node.op)
        return (rule and rule(self, node)) or self.kept(node)

    def _same(self, node: Node) -> Node | None:
        """An earlier node of the same values, where there is one."""
        op, args, shape = node.op, node.args, node.shape
        first = args[0] if args and isinstance(args[0], Node) else None
        if first is None:
            return None
        keeps = first.dtype == node.dtype and first.shape == shape
        by_one = op in {"mul", "div", "pow"} and _is_one(args[1])
        if op in SAME or (keeps and (by_one or op in RESHAPES or op == "_to_copy")):
            return first
        swapped = op == "transpose" and set(args[1:]) == set(first.args[1:])
        if op == first.op and (op in {"t", "neg"} or swapped):
            return first.args[0]  # type: ignore[no-any-return]
        if op == "permute":
            order, source = args[1], first
            if first.op == "permute":
                order, source = tuple(first.args[1][d] for d in order), first.args[0]
            if [d % len(shape) for d in order] == list(range(len(shape))):
                return source
            return self.kept(replace(node, args=(source, order), kwargs=())) if source is not first else None
        return self._plain_sum(node, first)

    def _plain_sum(self, node: Node, first: Node) -> Node | None:
        """A sum that need not have kept its dimensions."""
        if node.op not in {"view", "reshape", "squeeze"} or first.op not in {"sum", "mean"}:
            return None
        source, dims, *kept = first.args if len(first.args) > 2 else (first, ())
        over = {d % len(source.shape) for d in (dims if isinstance(dims, tuple) else (dims,))}
        if kept != [True] or node.shape != tuple(n for k, n in enumerate(source.shape) if k not in over):
            return None
        return self.kept(replace(first, args=(source, dims), kwargs=(), shape=node.shape, dtype=node.dtype))

    def _sign_outside(self, node: Node) -> Node | None:
        """-f(x) for f(-x), where f is linear: signs meet further out, and become subtractions."""
        op, args = node.op, node.args
        count = 2 if op in {"mul", "div", "mm", "bmm"} else 1 if op in LINEAR else 0
        for k, one in enumerate(args[:count]):
            if isinstance(one, Node) and one.op == "neg":
                plain = (*args[:k], one.args[0], *args[k + 1 :])
            elif k and op in {"mul", "div"} and isinstance(one, int | float) and one < 0:
                plain = (args[0], -one)
            else:
                continue
            inner = self.made(replace(node, args=plain))
            return self.made(
                replace(node, op="neg", args=(inner,), kwargs=(), target=torch.ops.aten.neg.default)
            )
        return None

    def _pointwise(self, node: Node) -> Node:
        args = tuple(a.args[0] if isinstance(a, Node) and a.op == "literal" else a for a in node.args)
        tensors = [a for a in args if isinstance(a, Node)]
        expanded = [a for a in tensors if a.op == "expand"]
        if len(tensors) == 1 and expanded and node.op != "neg":
            one = expanded[0]
            short = tuple(one.args[0] if a is one else a for a in args)
            inner = self.made(replace(node, args=short, shape=one.args[0].shape))
            return self.kept(
                replace(node, op="expand", args=(inner, node.shape), kwargs=(), target=one.target)
            )
        for one in expanded:
            shapes = [one.args[0].shape, *(a.shape for a in args if isinstance(a, Node) and a is not one)]
            if tuple(torch.broadcast_shapes(*shapes)) == node.shape:  # type: ignore[no-untyped-call]
                args = tuple(a.args[0] if a is one else a for a in args)
        node = replace(node, args=args)
        return self._sum(node) if node.op in {"add", "sub"} and len(args) == 2 else self.kept(node)

    def _sum(self, node: Node) -> Node:
        """Without zeros, and a difference where one part is negative."""
        if node.kwargs:
            return self.kept(node)
        left, right = node.args
        for one, other in ((left, right), (right, left)):
            zero = node.op == "add" and isinstance(one, Node) and one.op in ZEROS
            if zero and isinstance(other, Node) and other.shape == node.shape:
                return other
        if isinstance(right, Node) and right.op == "neg":
            flipped = "sub" if node.op == "add" else "add"
            target = getattr(torch.ops.aten, flipped).Tensor
            return self.made(replace(node, op=flipped, args=(left, right.args[0]), target=target))
        if node.op == "add" and isinstance(left, Node) and left.op == "neg" and isinstance(right, Node):
            args = (right, left.args[0])
            return self.made(replace(node, op="sub", args=args, target=torch.ops.aten.sub.Tensor))
        return self.kept(node)


def _is_one(value: Any) -> bool:  # noqa: ANN401 - any argument
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 1


def _key(value: Any) -> Any:  # noqa: ANN401 - nested arguments
    if isinstance(value, tuple):
        return tuple(_key(v) for v in value)
    return ("node", id(value)) if isinstance(value, Node) else (type(value).__name__, repr(value))
