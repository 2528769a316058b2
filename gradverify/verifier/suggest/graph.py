"""Values of a backward as a graph in which equal values are one node, simplified as it is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

aten = torch.ops.aten

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
        simpler = self._same(node)
        if simpler is not None:
            return simpler
        if node.op in POINTWISE:
            return self._pointwise(node)
        rule = RULES.get(node.op)
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
        if op == "permute" and [d % len(shape) for d in args[1]] == list(range(len(shape))):
            return first
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

    def _pointwise(self, node: Node) -> Node:
        args = tuple(a.args[0] if isinstance(a, Node) and a.op == "literal" else a for a in node.args)
        tensors = [a for a in args if isinstance(a, Node)]
        expanded = [a for a in tensors if a.op == "expand"]
        if len(tensors) == 1 and expanded:
            one = expanded[0]
            short = tuple(one.args[0] if a is one else a for a in args)
            inner = self.made(replace(node, args=short, shape=one.args[0].shape))
            grown = (inner, node.shape)
            return self.kept(replace(node, op="expand", args=grown, kwargs=(), target=one.target))
        for one in expanded:
            shapes = [one.args[0].shape, *(a.shape for a in args if isinstance(a, Node) and a is not one)]
            if tuple(torch.broadcast_shapes(*shapes)) == node.shape:  # type: ignore[no-untyped-call]
                args = tuple(a.args[0] if a is one else a for a in args)
        node = replace(node, args=args)
        return self._sum(node) if node.op in {"add", "sub"} and len(args) == 2 else self.kept(node)

    def _sum(self, node: Node) -> Node:
        """Without zeros; a difference where the second part is negative."""
        if node.kwargs:
            return self.kept(node)
        left, right = node.args
        for one, other in ((left, right), (right, left)):
            zero = node.op == "add" and isinstance(one, Node) and one.op in ZEROS
            if zero and isinstance(other, Node) and other.shape == node.shape:
                return other
        if node.op == "add" and isinstance(right, Node) and right.op == "neg":
            args, target = (left, right.args[0]), aten.sub.Tensor
            return self.kept(replace(node, op="sub", args=args, target=target))
        return self.kept(node)


def _is_one(value: Any) -> bool:  # noqa: ANN401 - any argument
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 1


def _key(value: Any) -> Any:  # noqa: ANN401 - nested arguments
    if isinstance(value, tuple):
        return tuple(_key(v) for v in value)
    return ("node", id(value)) if isinstance(value, Node) else (type(value).__name__, repr(value))


def _addmm(builder: Builder, node: Node) -> Node:
    product = builder.made(replace(node, op="mm", args=node.args[1:3], kwargs=(), target=aten.mm.default))
    return builder.made(
        replace(node, op="add", args=(product, node.args[0]), kwargs=(), target=aten.add.Tensor)
    )


def _number(builder: Builder, node: Node) -> Node:
    return builder.kept(Node("literal", node.args[:1], dtype=node.dtype))


def _copy(builder: Builder, node: Node) -> Node | None:
    source: Node = node.args[1]
    if source.dtype != node.dtype or source.shape == node.shape:
        return source if source.dtype == node.dtype else None
    expand = aten.expand.default
    return builder.made(Node("expand", (source, node.shape), (), node.shape, node.dtype, expand))


def _slice_backward(builder: Builder, node: Node) -> Node | None:
    grad, _, dim, start, end, step = node.args
    if grad.op in ZEROS:
        return builder.kept(Node("zeros", (node.shape,), (), node.shape, node.dtype))
    return _padded(builder, grad, (dim, start, end, step), node.shape)


def _slice_scatter(builder: Builder, node: Node) -> Node | None:
    into, source, *given = node.args
    defaults = [0, None, None, 1]
    place = (*given, *defaults[len(given) :])
    return _padded(builder, source, place, node.shape) if into.op in ZEROS else None


def _padded(builder: Builder, source: Node, place: tuple[Any, ...], shape: tuple[int, ...]) -> Node | None:
    """A part with zeros around it, where it is one piece."""
    dim, start, end, step = place
    size, dim = shape[dim], dim % len(shape)
    first, last, _ = slice(start, end, step).indices(size)
    if step != 1 or last - first != source.shape[dim] or source.shape == shape:
        return source if source.shape == shape else None
    pads = (0, 0) * (len(shape) - dim - 1) + (first, size - last)
    target = aten.constant_pad_nd.default
    return builder.kept(Node("constant_pad_nd", (source, pads), (), shape, source.dtype, target))


def _index_put(builder: Builder, node: Node) -> Node | None:
    """Along one dimension an `index_add`."""
    into, indices, values, *accumulate = node.args
    given = [(k, index) for k, index in enumerate(indices) if index is not None]
    if len(given) != 1 or accumulate != [True] or values.dtype != node.dtype:
        return None
    dim, index = given[0]
    expected = (*node.shape[:dim], *index.shape, *node.shape[dim + 1 :])
    if len(index.shape) != 1 or index.dtype not in {torch.int32, torch.int64} or values.shape != expected:
        return None
    args, target = (into, dim, index, values), aten.index_add.default
    return builder.kept(Node("index_add", args, (), node.shape, node.dtype, target))


RULES: dict[str, Callable[[Builder, Node], Node | None]] = {
    "addmm": _addmm,
    "scalar_tensor": _number,
    "copy": _copy,
    "slice_backward": _slice_backward,
    "slice_scatter": _slice_scatter,
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
}
"""By operation: how what torch calls by a private name is written in ordinary ones; None where it stays."""


def _embedding_backward(
    grad_output: Tensor,
    index: Tensor,
    rows: int,
    padding: int,
    scale_by_frequency: bool,  # noqa: FBT001 - the signature of torch's operation
) -> Tensor:
    if scale_by_frequency:
        raise NotImplementedError("an embedding that scales its gradient by frequency")
    if padding >= 0:
        grad_output = grad_output.masked_fill((index == padding).unsqueeze(-1), 0)
    width = grad_output.shape[-1]
    table = grad_output.new_zeros(rows, width)
    return table.index_add(0, index.reshape(-1), grad_output.reshape(-1, width))


def decompositions() -> dict[Any, Any]:
    """How torch's fused operations are written in ordinary ones: where torch's own way is long, a shorter."""
    layer_norm = aten.native_layer_norm.default
    table = {
        op: rule
        for op, rule in decomposition_table.items()
        if op is layer_norm
        or ("_backward" in str(op) and "convolution" not in str(op) and "slice" not in str(op))
    }
    return table | {
        aten.tanh_backward.default: lambda g, y: g * (1 - y * y),
        aten.sigmoid_backward.default: lambda g, y: g * (y * (1 - y)),
        aten.embedding_dense_backward.default: _embedding_backward,
        aten.threshold_backward.default: lambda g, y, threshold: g * (y > threshold),
    }
