"""User code as a graph of operations, recorded while it runs on real tensors; and changes of such a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree
from torch.utils._python_dispatch import autograd_would_have_decomposed
from torch.utils.weak import WeakTensorKeyDictionary

from gradverify.verifier.guard.dispatching import Dispatched

MOST_OPERATIONS = 300
"""Operations of a forward up to which its backward is still something to read: loops run to more."""


CUTS = (torch.ops.aten.detach.default, torch.ops.aten.detach_.default)
"""Operations that return their input's values and stop its gradient."""

_MEMORY = ("data_ptr", "numpy", "map_", "map2_", "apply_", "share_memory_", "__dlpack__")
"""Methods that go to a tensor's memory, past torch's dispatcher; another hides each for a while."""

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}

_OF_A_TENSOR = (
    torch.ops.aten.size.default,
    torch.ops.aten.stride.default,
    torch.ops.aten.storage_offset.default,
)
"""Operations that only a tensor itself answers."""

_PLAIN = (Tensor, torch.nn.Parameter)
"""Types of tensors whose operations are what they compute: a subclass may mean anything by its own."""

_LITERALS = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Arguments of operations that the source of a graph can name."""

_WIDENING = (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default)  # noqa: SLF001 - operators
"""Operators whose third argument says that they turn float16 into float32."""


def functional_graph(
    function: Callable[..., Any],
    tensors: Sequence[Tensor],
    written_out: Mapping[Any, Callable[..., Any]] | None = None,
) -> GraphModule:
    """Record the operations that a function of tensors runs, in-place ones as functional ones.

    Autograd is below it or has run already: `.data`, `no_grad` leave no trace.
    """
    return recorded_graph(functionalize(function), tensors, written_out)


def recorded_graph(
    function: Callable[..., Any],
    tensors: Sequence[Tensor],
    written_out: Mapping[Any, Callable[..., Any]] | None = None,
) -> GraphModule:
    """Record the operations that a function of tensors runs, those of autograd inside it too.

    Branches on data are recorded as taken. `written_out` says how some operations are made of others. Raises
    whatever the function raises, for operations that cannot be recorded, and where it asks for the memory of
    a tensor: its address, a NumPy array.
    """
    recorder = _Recorder(written_out or {})
    for place, tensor in enumerate(tensors):
        recorder.nodes[tensor] = recorder.graph.placeholder(f"arg{place}")
    caches = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # what it holds was computed outside of the graph
    try:
        with _without_memory(), recorder:
            results = function(*tensors)
    finally:
        torch.set_autocast_cache_enabled(caches)
    recorder.graph.output(recorder.argument(results))
    return GraphModule(recorder.root, recorder.graph)


class _Recorder(Dispatched):  # type: ignore[no-untyped-call]
    """Runs operations and notes each as a node of a graph.

    `torch.fx.experimental.proxy_tensor.make_fx` does the same for real tensors, and loads torch's compiler
    for it, which takes longer than torch itself and than most verifications.
    """

    may_leave = False

    def __init__(self, written_out: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.graph, self.root = Graph(), torch.nn.Module()
        self.nodes: Any = WeakTensorKeyDictionary()
        self._written_out = written_out
        self._constants = 0

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one operation, or those that it is made of."""
        leaves = _pytree.tree_leaves((args, dict(given)))
        if any(type(leaf) not in _PLAIN for leaf in leaves if isinstance(leaf, Tensor)):
            return NotImplemented
        with self:
            if func in self._written_out:
                return self._written_out[func](*args, **given)
            if func not in _OF_A_TENSOR and autograd_would_have_decomposed(func, leaves):
                made = func.decompose(*args, **given)
                if made is not NotImplemented:
                    return made
        # The argument of `lift_fresh` is a constant of the graph, and its result may be written to.
        func = torch.ops.aten.lift_fresh_copy.default if func is torch.ops.aten.lift_fresh.default else func
        node = self.graph.call_function(func, self.argument(args), self.argument(given))
        result = func(*args, **given)
        self._keep(result, node)
        return result

    def argument(self, value: Any) -> Any:  # noqa: ANN401 - whatever an operation is given
        """A value as the graph has it; raises `TypeError` for what a graph cannot hold."""
        if isinstance(value, Tensor):
            return self.nodes[value] if value in self.nodes else self._constant(value)
        if isinstance(value, list | tuple):
            return type(value)([self.argument(one) for one in value])
        if isinstance(value, Mapping):
            return {name: self.argument(one) for name, one in value.items()}
        if value is None or isinstance(value, _LITERALS):
            return value
        raise TypeError(f"a {type(value).__name__} is no value of a graph")

    def _keep(self, result: Any, node: Node) -> None:  # noqa: ANN401
        if isinstance(result, Tensor):
            self.nodes[result] = node
        elif isinstance(result, list | tuple):
            for place, one in enumerate(result):
                self._keep(one, self.graph.call_function(operator.getitem, (node, place)))

    def _constant(self, value: Tensor) -> Node:
        name = f"_tensor_constant{self._constants}"
        self._constants += 1
        self.root.register_buffer(name, value)
        node = self.nodes[value] = self.graph.get_attr(name)
        return node


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


def _no_memory(_: Tensor, *__: Any, **___: Any) -> NoReturn:  # noqa: ANN401 - as each of these takes
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
