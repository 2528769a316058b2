"""User code as a graph of operations, recorded while it runs on real tensors; and changes of such a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree

CUTS = (torch.ops.aten.detach.default, torch.ops.aten.detach_.default)
"""Operations that return their input's values and stop its gradient."""

_MEMORY = ("data_ptr", "numpy")
"""Methods of `Tensor`'s base class that hand out its memory; one of `Tensor` hides each while it is there."""

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}

_WIDENING = (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default)  # noqa: SLF001 - operators
"""Operators whose third argument says that they turn float16 into float32."""


def recorded_graph(function: Callable[..., Any], tensors: Sequence[Tensor]) -> GraphModule:
    """Record the operations that a function of tensors runs, those of autograd inside it too.

    Branches on data are recorded as taken. Raises whatever the function raises, and where it asks for the
    memory of a tensor: its address, a NumPy array.
    """
    with _without_memory():
        return make_fx(function, _error_on_data_dependent_ops=False)(*tensors)


def functional_graph(
    function: Callable[..., Any],
    tensors: Sequence[Tensor],
    written_out: Mapping[Any, Callable[..., Any]] | None = None,
) -> GraphModule:
    """Record the operations that a function of tensors runs, in-place ones as functional ones.

    Autograd is below it or has run already: `.data`, `no_grad` leave no trace. Branches on data are recorded
    as taken. `written_out` says how some operations are made of others. Raises whatever the function raises,
    for operations that cannot be recorded, and where it asks for the memory of a tensor.
    """
    table = dict(written_out or {})
    with _without_memory():
        return make_fx(functionalize(function), table, _error_on_data_dependent_ops=False)(*tensors)


@contextmanager
def _without_memory() -> Iterator[None]:
    """Have what hands out a tensor's memory raise: nothing has been written to that of a recorded tensor.

    It says 0 for its address, which a compiled kernel takes for one (Triton, Numba, CuPy and ctypes ask for
    it), and NumPy would compute with what lies there. What they do cannot be recorded anyway.
    """
    before = {name: vars(Tensor).get(name) for name in _MEMORY}
    for name in _MEMORY:
        setattr(Tensor, name, _no_memory)
    try:
        yield
    finally:
        for name, own in before.items():
            if own is None:
                delattr(Tensor, name)
            else:
                setattr(Tensor, name, own)


class NoMemoryError(RuntimeError):
    """A recorded run asked for the memory of a tensor: NumPy or a kernel computes there, unseen by torch."""


def _no_memory(_: Tensor, **__: Any) -> NoReturn:  # noqa: ANN401 - `numpy` takes `force`
    raise NoMemoryError("a tensor of a recorded run has no memory of its own")


def without_cuts(graph: GraphModule) -> GraphModule:
    """The same graph, with gradients flowing through what forward had detached, and its inputs untouched."""
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target in CUTS:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
        elif node.op == "call_function" and node.target is torch.ops.aten.copy_.default:
            # What a functional graph writes back into its inputs is the caller's alone.
            node.replace_all_uses_with(node.args[1])
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def promoted(graph: GraphModule) -> GraphModule:
    """Let every operation of a graph run in float64, in place; its floating inputs must be float64 then.

    A forward that refuses float64, or casts to float32 inside, has no float64 path of its own; the operations
    it runs have one.
    """
    for node in graph.graph.nodes:
        if node.op == "call_function":
            node.args = _pytree.tree_map(_wide, node.args)
            node.kwargs = _pytree.tree_map(_wide, dict(node.kwargs))
            if node.target in _WIDENING:
                node.args = (*node.args[:2], False)
        elif node.op == "get_attr":
            _promote_constant(graph, str(node.target))
    graph.recompile()
    return graph


def _wide(value: Any) -> Any:  # noqa: ANN401 - whatever an operation is given
    return _WIDE.get(value, value) if isinstance(value, torch.dtype) else value


def _promote_constant(graph: GraphModule, name: str) -> None:
    constant = getattr(graph, name, None)
    if isinstance(constant, Tensor) and constant.dtype in _WIDE:
        setattr(graph, name, constant.to(_WIDE[constant.dtype]))
