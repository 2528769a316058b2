"""A case as a pure map from k differentiable tensors to m differentiable outputs.

Everything numerical sees only this. The first-order problem calls the target; the second-order problem
is the problem of its vector-Jacobian product; a composite reference is another problem over the same
inputs. Every call gets fresh tensors, so no call can spoil another.

Tensors as one float64 vector and back: no other code cares about shapes, counts or complex numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Part, RaisedError
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import (
    Gradients,
    Kept,
    Tensors,
    copies,
    differentiate,
    differentiate_again,
    differentiate_with_graph,
    is_nested,
    returned_tensors,
    substitute,
    with_zeros,
)


def multi_index(place: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Multi-index of the entry at a flat place. `torch.unravel_index` loads torch's compiler and sympy."""
    index = []
    for size in reversed(shape):
        place, here = divmod(place, size)
        index.append(here)
    return tuple(reversed(index))


@dataclass(frozen=True)
class Block:
    """Where one tensor lies in the flat vector."""

    shape: tuple[int, ...]
    """Shape of the tensor; a complex one counts as `view_as_real`, with a last dimension of 2."""
    dtype: torch.dtype
    device: torch.device
    start: int
    stop: int

    @property
    def span(self) -> slice:
        """Its part of the flat vector."""
        return slice(self.start, self.stop)

    @property
    def size(self) -> int:
        """How many coordinates the tensor has."""
        return self.stop - self.start

    @property
    def is_complex(self) -> bool:
        """Whether the tensor itself is complex."""
        return self.dtype.is_complex

    def index(self, position: int) -> tuple[int, ...]:
        """Multi-index within the tensor of a position in the flat vector."""
        index = multi_index(position - self.start, self.shape)
        return (*index[:-1], Part(index[-1])) if self.is_complex else index


@dataclass(frozen=True)
class Layout:
    """The order in which several tensors make up one flat float64 vector on the CPU."""

    blocks: tuple[Block, ...]

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> Layout:
        """Lay out tensors one after the other."""
        return _laid_out(tuple([(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]))

    @cached_property
    def size(self) -> int:
        """Length of the flat vector."""
        return self.blocks[-1].stop if self.blocks else 0

    @cached_property
    def filled(self) -> list[int]:
        """Which tensors have coordinates."""
        return [number for number, block in enumerate(self.blocks) if block.size]

    @cached_property
    def slices(self) -> list[slice]:
        """Where each of these lies."""
        return [self.blocks[number].span for number in self.filled]

    @property
    def rounding(self) -> Tensor:
        """Relative rounding of each coordinate in its tensor's own dtype."""
        parts = [torch.full((b.size,), _epsilon(b.dtype), dtype=torch.float64) for b in self.blocks]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    @cached_property
    def is_double(self) -> bool:
        """Whether every tensor holds float64 numbers, or pairs of them."""
        return all(block.dtype in (torch.float64, torch.complex128) for block in self.blocks)

    def block_of(self, position: int) -> int:
        """Which tensor a position of the flat vector belongs to."""
        return next(
            number for number, block in enumerate(self.blocks) if block.start <= position < block.stop
        )

    def flatten(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Join tensors of this layout's shapes into one fresh vector; None stands for zeros.

        Raises `ValueError` where a tensor has another shape than laid out.
        """
        parts = [_part(tensor, block) for tensor, block in zip(tensors, self.blocks, strict=True)]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def unflatten(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Cut a vector into fresh tensors of this layout's shapes, dtypes and devices."""
        return tuple(_tensor(vector[block.span], block) for block in self.blocks)


@lru_cache(maxsize=1024)  # a small problem's proof would otherwise build several, at 10 µs each
def _laid_out(tensors: tuple[tuple[torch.Size, torch.dtype, torch.device], ...]) -> Layout:
    blocks: list[Block] = []
    start = 0
    for size, dtype, device in tensors:
        shape = (*size, 2) if dtype.is_complex else tuple(size)
        stop = start + math.prod(shape)
        blocks.append(Block(shape, dtype, device, start, stop))
        start = stop
    return Layout(tuple(blocks))


def _epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def _tensor(part: Tensor, block: Block) -> Tensor:
    """A fresh tensor of a block's shape, dtype and device, from its part of the vector."""
    shaped = part.view(block.shape)
    if block.is_complex:
        shaped = torch.view_as_complex(shaped.clone())
    return shaped.to(device=block.device, dtype=block.dtype, copy=True)


def _part(tensor: Tensor | None, block: Block) -> Tensor:
    """A tensor as its part of the vector, a view where it can be; None stands for zeros.

    Raises `ValueError` where it has another shape than laid out.
    """
    if tensor is None:
        return torch.zeros(block.size, dtype=torch.float64)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if block.is_complex and not tensor.is_complex():
        tensor = tensor.to(block.dtype)
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if tuple(real.shape) != block.shape:
        raise ValueError(f"shape {list(real.shape)} where {list(block.shape)} was laid out")
    return real.to(device="cpu", dtype=torch.float64).reshape(-1)


__all__ = ["CallProblem", "Gradients", "Tensors", "VjpProblem", "is_nested", "returned_tensors", "substitute"]

Cotangents = Sequence[Tensor | None]
"""One grad_output for each output; None leaves that output undefined."""

Around = Callable[[], AbstractContextManager[Any]]
"""A context in which user code runs, forward and backward: another arithmetic."""

OTHER_OUTPUTS = "OtherOutputs"
"""The type of what stands for an exception where forward returns other outputs than before."""


@dataclass
class Counter:
    """How often user code was called: shared by a problem and the problems made from it."""

    forward: int = 0
    backward: int = 0

    @property
    def calls(self) -> int:
        """Both together."""
        return self.forward + self.backward


@dataclass(frozen=True)
class Graph:
    """One forward with its autograd graph."""

    leaves: Tensors
    outputs: Tensors
    """The differentiable outputs."""
    behind: Tensors = ()
    """Outputs of the graph that this one is the backward of: what that evaluates lives as long as they do."""
    of_module: bool = False
    """Of a module: its backward is that of a training step."""
    nodes: tuple[object, ...] = field(init=False, repr=False)
    """What made the outputs."""

    def __post_init__(self) -> None:
        """Note the nodes: a forward that returns one buffer each time gives it another one."""
        object.__setattr__(self, "nodes", tuple(o.grad_fn for o in self.outputs))

    @property
    def is_stale(self) -> bool:
        """Whether a later call has taken its outputs."""
        return any(o.grad_fn is not node for o, node in zip(self.outputs, self.nodes, strict=True))


class _Map:
    """What a map that calls user code has once it can evaluate it and record a graph."""

    counter: Counter
    random_states: guard.RandomStates
    around: Around
    evaluate_fresh: Callable[[Sequence[Tensor]], Returned[Tensors] | Raised]
    graph: Callable[[Sequence[Tensor]], Returned[Graph] | Raised]

    def evaluate(self, primals: Sequence[Tensor]) -> Returned[Tensors] | Raised:
        return self.evaluate_fresh(copies(primals))

    def pull_back(self, primals: Sequence[Tensor], cotangents: Cotangents) -> Returned[Gradients] | Raised:
        graph = self.graph(primals)
        return graph if isinstance(graph, Raised) else self.back(graph.value, cotangents)

    def back(
        self, graph: Graph, cotangents: Cotangents, through: Callable[..., Gradients] = differentiate
    ) -> Returned[Gradients] | Raised:
        self.counter.backward += 1
        self.random_states.replay_for_backward()
        with self.around():
            return guard.call(through, graph.outputs, graph.leaves, cotangents, training=graph.of_module)

    def back_each(self, graph: Graph, cotangents: Sequence[Cotangents]) -> Returned[list[Gradients]] | Raised:
        """From one graph while backward leaves what forward kept as it was; else forward runs again."""
        rows: list[Gradients] = []
        kept: Kept | None = None
        for given in cotangents:
            if kept is not None and kept.is_written:
                made = self.graph(graph.leaves)
                if isinstance(made, Raised):
                    return made
                graph, kept = made.value, None
            kept = Kept.of(graph.outputs) if kept is None and len(cotangents) > 1 else kept
            result = self.back(graph, given, differentiate_again)
            if isinstance(result, Raised):  # a compiled backward may refuse to leave its graph
                result = self.pull_back(graph.leaves, given)
            if isinstance(result, Raised):
                return result
            rows.append(result.value)
        return Returned(rows)


@dataclass(frozen=True)
class CallProblem(_Map):
    """The map computed by one call of a target."""

    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    output_positions: tuple[int, ...]
    outputs: Layout
    random_states: guard.RandomStates
    counter: Counter = field(default_factory=Counter)
    around: Around = nullcontext
    of_module: bool = False
    """It is a call of a module."""

    @cached_property
    def _differentiable(self) -> tuple[Argument, ...]:
        return tuple(a for a in self.arguments if a.differentiable)

    @cached_property
    def primals(self) -> Tensors:
        """The differentiable arguments."""
        return tuple(a.value for a in self._differentiable)

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        """Names of the differentiable arguments."""
        return tuple(a.name for a in self._differentiable)

    def evaluate_fresh(self, primals: Sequence[Tensor]) -> Returned[Tensors] | Raised:
        """Forward under `no_grad`, on the tensors given; held entries stay as they are."""
        self.counter.forward += 1
        self.random_states.replay()
        with torch.no_grad(), self.around():
            kept = [a.without_held(p) for a, p in zip(self._differentiable, primals, strict=True)]
            result = guard.call(self.function, *substitute(self.arguments, kept))
        picked = self._pick(result)
        return picked if isinstance(picked, Raised) else Returned(copies(picked.value))

    def graph(self, primals: Sequence[Tensor]) -> Returned[Graph] | Raised:
        """Forward with its graph, on non-leaf copies of fresh leaves.

        Copies, not the leaves themselves nor views of them: `mark_dirty` refuses both.
        """
        return self.graph_of(copies(primals))

    def graph_of(self, leaves: Tensors) -> Returned[Graph] | Raised:
        """Forward with its graph, on non-leaf copies of the given leaves, which become part of the graph."""
        self.counter.forward += 1
        self.random_states.replay()
        for leaf in leaves:
            leaf.requires_grad_()
        with torch.enable_grad(), self.around():
            arguments = substitute(self.arguments, [leaf.clone() for leaf in leaves])
            result = guard.call(self.function, *arguments)
        picked = self._pick(result)
        if isinstance(picked, Raised):
            return picked
        return Returned(Graph(leaves, picked.value, of_module=self.of_module))

    def _pick(self, result: Returned[Any] | Raised) -> Returned[Tensors] | Raised:
        if isinstance(result, Raised):
            return result
        expected = tuple(b.shape[:-1] if b.is_complex else b.shape for b in self.outputs.blocks)
        returned = returned_tensors(result.value)
        picked = tuple(returned[p] for p in self.output_positions if p < len(returned))
        shapes = tuple(tuple(t.shape) if isinstance(t, Tensor) else None for t in picked)
        if shapes != expected:
            return Raised(RaisedError(OTHER_OUTPUTS, f"returned {_said(shapes)}, before {_said(expected)}"))
        return Returned(picked)


def _said(shapes: Sequence[tuple[int, ...] | None]) -> str:
    """`a tensor of shape [4, 3] and None`."""
    each = ["None" if shape is None else f"a tensor of shape {list(shape)}" for shape in shapes]
    return " and ".join(each) or "nothing"


@dataclass(frozen=True)
class VjpProblem(_Map):
    """The map (x, u) -> A(x)ᵀu of another problem's backward; its own backward is the double backward."""

    first_order: CallProblem
    cotangents: Tensors
    """The point u in the space of grad_outputs."""

    @cached_property
    def primals(self) -> Tensors:
        """The inputs, then the grad_outputs."""
        return (*self.first_order.primals, *self.cotangents)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Input names, then `grad_output` (numbered where there are several)."""
        positions = self.first_order.output_positions
        numbered = [f"grad_output[{p}]" for p in positions]
        return (*self.first_order.input_names, *(numbered if len(positions) > 1 else ["grad_output"]))

    @property
    def output_positions(self) -> tuple[int, ...]:
        """One output for each differentiable input of the first order."""
        return tuple(range(self._count))

    @cached_property
    def outputs(self) -> Layout:
        """Gradients are shaped like the inputs."""
        return Layout.of(self.first_order.primals)

    @property
    def counter(self) -> Counter:  # type: ignore[override]
        """The first-order problem's."""
        return self.first_order.counter

    @property
    def random_states(self) -> guard.RandomStates:  # type: ignore[override]
        """Those of the first order."""
        return self.first_order.random_states

    @property
    def around(self) -> Around:  # type: ignore[override]
        """That of the first order."""
        return self.first_order.around

    def evaluate_fresh(self, primals: Sequence[Tensor]) -> Returned[Tensors] | Raised:
        """The first-order gradients, the tensors given as leaves; a missing one counts as zeros."""
        leaves = tuple(primals[: self._count])
        graph = self.first_order.graph_of(leaves)
        if isinstance(graph, Raised):
            return graph
        result = self.first_order.back(graph.value, primals[self._count :])
        return result if isinstance(result, Raised) else Returned(with_zeros(result.value, leaves))

    def graph(self, primals: Sequence[Tensor]) -> Returned[Graph] | Raised:
        """First-order gradients with the graph of backward: `create_graph=True`.

        grad_output requires grad: otherwise `once_differentiable` detaches silently instead of leaving
        the node that raises.
        """
        graph = self.first_order.graph(primals[: self._count])
        if isinstance(graph, Raised):
            return graph
        given = tuple(u.requires_grad_() for u in copies(primals[self._count :]))
        result = self.back(graph.value, given, differentiate_with_graph)
        if isinstance(result, Raised):
            return result
        leaves = graph.value.leaves
        gradients = with_zeros(result.value, leaves)
        return Returned(Graph((*leaves, *given), gradients, graph.value.outputs))

    @property
    def _count(self) -> int:
        return len(self.first_order.primals)


Problem = CallProblem | VjpProblem
"""A differentiable map and its backward, both of which may raise."""
