"""The second witness: what forward computes, differentiated by torch instead of by its author.

Right because nothing of any backward takes part: forward runs with a plain ctx that only remembers, in grad
mode, and so does every Function inside it. Where an operation *hides* (a tensor with a graph goes in, a
floating number or tensor without one comes out), the next form is taken: cuts made transparent, then the
operations themselves, recorded below autograd. What hides in the form that is used is left to the values.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.autograd.function as functions
from torch import Tensor
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.calling import copies, nodes_behind, substitute
from gradverify.verifier.numerics.problem import CallProblem, Counter, Graph
from gradverify.verifier.numerics.tracing import functional_graph, promoted, without_cuts
from gradverify.verifier.targets.discover import uses_setup_context
from gradverify.verifier.targets.forward_itself import run_forward
from gradverify.verifier.witnesses.rounding import FACTOR
from gradverify.verifier.witnesses.values import EPSILON

MOST_NODES = 20_000
"""Operations of a graph beyond which it costs more than it tells: derive at a small size."""

MOST_BYTES = 2**28
"""Bytes of results that a graph may keep."""

SAME = FACTOR * EPSILON
"""Relative difference between the values of forward and those of its derived form that is rounding."""

SAME_WIDE = 0.1
"""The same where the derived form computes in more digits: a branch taken otherwise differs by more."""

MADE = ("_like", "new_zeros", "new_ones", "new_empty", "new_full", "requires_grad_", "register_hook")
"""Endings of operations whose results take only shape and dtype from what they are given."""

OF_SHAPE = frozenset(
    {"grad", "grad_fn", "shape", "size", "numel", "stride", "dim", "is_floating_point", "_version"}
)
"""Operations that tell nothing of the values."""


class TooLargeError(RuntimeError):
    """A graph that takes too many operations or too much memory."""


@dataclass(frozen=True)
class Derived:
    """Forward as a map that torch differentiates."""

    problem: CallProblem
    form: str
    """`eager`, `transparent`, `recorded` or `widened`: recorded, and carried out in float64."""
    hides: bool = False
    """An operation hides a part of forward from torch."""

    @property
    def is_wide(self) -> bool:
        """Whether it computes in more digits than forward."""
        return self.form == "widened"


@dataclass(frozen=True)
class NoDerived:
    """There is none: no graph to every output, other values, or a backward of somebody's own in it."""

    hides: bool = False
    too_large: bool = False


class _Watch(TorchFunctionMode):
    """Notes what hides, and stops a graph that grows too large."""

    def __init__(self) -> None:
        super().__init__()
        self.hides = False
        self.operations = self.bytes = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        name = _name_of(func)
        if name.endswith(MADE) or name in OF_SHAPE:
            return result
        given = any(
            isinstance(a, Tensor) and a.requires_grad for a in _pytree.tree_leaves((args, kwargs or {}))
        )
        if not given:
            return result
        for one in _pytree.tree_leaves(result):
            if isinstance(one, Tensor):
                self._count(one)
                self.hides |= _is_continuous(one) and not one.requires_grad
            else:
                self.hides |= isinstance(one, float | complex) or type(one).__module__ == "numpy"
        return result

    def _count(self, made: Tensor) -> None:
        self.operations += 1
        self.bytes += made.numel() * made.element_size()
        if self.operations > MOST_NODES or self.bytes > MOST_BYTES:
            raise TooLargeError("its graph takes too much memory")


def _name_of(func: Any) -> str:  # noqa: ANN401
    name: str = getattr(func, "__name__", "?")
    return getattr(getattr(func, "__self__", None), "__name__", "?") if name == "__get__" else name


def _is_continuous(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


class _Transparent(TorchFunctionMode):
    """What stops a gradient does not: detach, `.data`, `no_grad`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        name = getattr(func, "__name__", "?")
        if name == "__get__":
            name = f"get {_name_of(func)}"
        if name in {"detach", "get data"} and _is_continuous(args[0]):
            return args[0].view_as(args[0])
        if name in {"requires_grad_", "detach_"} and args[0].grad_fn is not None:
            return args[0]
        if name == "_set_grad_enabled":
            return func(True)  # noqa: FBT003 - its own signature
        return func(*args, **(kwargs or {}))


class _Bare(torch.autograd.Function):
    """Whose `apply` has the code that stands in for `Function.apply` while a derived witness runs."""

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        __class__  # type: ignore[name-defined]  # noqa: B018 - the same free variable as in the code that it replaces
        return _without_its_function(cls, args, kwargs)  # type: ignore[name-defined]  # noqa: F821


def _as_its_forward(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """Forward with a plain ctx; what it marks as not differentiable has no gradient."""
    if uses_setup_context(cls) and (kwargs or len(args) < len(inspect.signature(cls.forward).parameters)):
        bound = inspect.signature(cls.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        args = bound.args
    made, context = run_forward(cls, args)
    stopped = {id(t) for t in context.non_differentiable}
    if not stopped:
        return made
    with torch._C.DisableTorchFunction():  # noqa: SLF001 - it has no public name
        return _pytree.tree_map(lambda t: t.detach() if id(t) in stopped else t, made)


@contextmanager
def opened_functions() -> Iterator[None]:
    """Every Function is called as its forward alone, by whatever name: aliases of `apply` too."""
    apply: Any = torch.autograd.Function.__dict__["apply"].__func__
    before = apply.__code__
    functions._without_its_function = _as_its_forward  # type: ignore[attr-defined]  # noqa: SLF001 - a global of its code
    apply.__code__ = _Bare.__dict__["apply"].__func__.__code__
    try:
        yield
    finally:
        apply.__code__ = before


def _opened(function: Callable[..., Any], transparent: bool, *arguments: Any) -> Any:  # noqa: ANN401, FBT001
    """A call of the target without any Function around it."""
    with opened_functions(), _Transparent() if transparent else nullcontext():
        return function(*arguments)


def derive(
    problem: CallProblem, forward: Callable[..., Any], outputs: Sequence[Tensor], *, first: str, wide: bool
) -> Derived | NoDerived:
    """The first form in which nothing hides, else the last there is; `first` is the one to begin with.

    `forward` is how the target is called where its Functions are opened, `outputs` what it gave; `wide` says
    that it computes in float32 or less: the operations are carried out in float64 then.
    """
    own = Counter()  # a backward of torch's own is no call of the target
    found: Derived | NoDerived = NoDerived()
    if not wide and first != "recorded":
        for form in ("eager", "transparent")[first == "transparent" :]:
            opened = partial(_opened, forward, form == "transparent")
            there = replace(problem, function=opened, counter=own)
            problem.counter.forward += 1
            now = _usable(there, form, outputs)
            if isinstance(now, NoDerived) and now.too_large:
                return now
            if isinstance(now, Derived) and not now.hides:
                return now
            found = now if isinstance(now, Derived) or isinstance(found, NoDerived) else found
    if isinstance(found, Derived) or problem.of_module:  # a module would keep what is recorded
        return found
    problem.counter.forward += 1
    recorded = guard.call(_recorded, replace(problem, counter=own), partial(_opened, forward, False), wide)  # noqa: FBT003
    if isinstance(recorded, Raised):
        return found
    there = replace(problem, function=recorded.value, counter=own)
    usable = _usable(there, "widened" if wide else "recorded", outputs)
    return replace(usable, hides=found.hides) if isinstance(usable, Derived) else found


def _usable(there: CallProblem, form: str, outputs: Sequence[Tensor]) -> Derived | NoDerived:
    """A derived form, if it gives forward's values with a graph to every output that torch can follow."""
    watch = _Watch()
    watched = guard.call(_graph, there, watch)  # a forward that sets modes of torch ends this one
    made = watched if isinstance(watched, Raised) else watched.value
    if isinstance(made, Raised):
        return NoDerived(watch.hides, made.error.type == TooLargeError.__name__)
    graph, nothing = made.value, NoDerived(watch.hides)
    whole = all(output.requires_grad for output in graph.outputs) and not _foreign_nodes(graph)
    if not whole or not _same_values(there, graph, outputs, wide=form == "widened"):
        return nothing
    back = there.back(graph, [torch.ones_like(o) for o in graph.outputs])
    return nothing if isinstance(back, Raised) else Derived(there, form, watch.hides)


def _graph(there: CallProblem, watch: _Watch) -> Returned[Graph] | Raised:
    with warnings.catch_warnings(), watch:
        warnings.simplefilter("ignore")  # of a tensor with a graph that is read as a number
        return there.graph(there.primals)


def _same_values(there: CallProblem, graph: Graph, outputs: Sequence[Tensor], *, wide: bool) -> bool:
    mine, theirs = there.outputs.flatten(outputs), there.outputs.flatten(graph.outputs)
    known = mine.abs()[mine.isfinite()]
    scale = known.max() if known.numel() else torch.zeros(())
    bar = (SAME_WIDE if wide else SAME) * (mine.abs() + 0.01 * scale)
    lost = ~mine.isfinite() if wide else mine.isnan() & theirs.isnan()  # few digits may overflow alone
    return bool((((mine - theirs).abs() <= bar) | (mine == theirs) | lost).all())


def _foreign_nodes(graph: Graph) -> bool:
    """Whether a backward of somebody's own is in the graph, in Python or compiled."""
    return any(
        isinstance(node, functions.BackwardCFunction) or "CppNode" in type(node).__name__
        for node in islice(nodes_behind(graph.outputs), MOST_NODES)
    )


def _recorded(problem: CallProblem, forward: Callable[..., Any], wide: bool) -> Callable[..., Any]:  # noqa: FBT001
    """The operations that forward runs at a problem's inputs, as a function of all arguments.

    Raises whatever forward raises, and for operations that cannot be recorded.
    """
    arguments = substitute(problem.arguments, copies(problem.primals))
    leaves, structure = _pytree.tree_flatten(arguments)
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def run(*tensors: Tensor) -> Any:  # noqa: ANN401 - what user code returned
        values = dict(zip(places, tensors, strict=True))
        return forward(
            *_pytree.tree_unflatten([values.get(k, leaf) for k, leaf in enumerate(leaves)], structure)
        )

    problem.random_states.replay()
    with torch.no_grad():
        graph = without_cuts(functional_graph(run, [leaves[k].detach().clone() for k in places]))
    _make_copies_differentiable(graph)
    graph = promoted(graph) if wide else graph

    def replayed(*given: Any) -> Any:  # noqa: ANN401
        tensors = [leaf for leaf in _pytree.tree_leaves(list(given)) if isinstance(leaf, Tensor)]
        return graph(*(_wide(t) for t in tensors)) if wide else graph(*tensors)

    return replayed


def _wide(tensor: Tensor) -> Tensor:
    if not _is_continuous(tensor):
        return tensor
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _make_copies_differentiable(graph: GraphModule) -> None:
    """What stands for an in-place copy in a functional graph has no derivative in torch (2.13)."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten.copy.default:
            node.target, node.kwargs = _copied, {}
    graph.recompile()


def _copied(old: Tensor, new: Tensor, *_: Any) -> Tensor:  # noqa: ANN401
    return new.to(old.dtype).expand(old.shape).clone()
