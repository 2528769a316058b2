"""One call of the target with the arguments of a state: forward, then backward, through the guard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from gradverify.model import Nested, Point, RaisedError, TensorInput
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.engine import vjp
from gradverify.verifier.infer.state import LENGTHS, Argument, Kind, State, lengths_of
from gradverify.verifier.inputs.structures import fits
from gradverify.verifier.inputs.tensors import build_tensor
from gradverify.verifier.targets.discover import wrapped_backward

MOST_ELEMENTS = 60_000
"""Numbers in the arguments of one attempt: a spec that a person writes has far fewer."""

MOST_JACOBIAN = 250_000
"""Entries of the Jacobian of deduced inputs: verifying more takes minutes."""

KEPT_DRAWS = 64
"""Tensors that are kept as they were drawn, 30 MB at most."""

SEED = 5
"""Of the grad_outputs."""


@dataclass(frozen=True)
class Ran:
    """Forward came back."""

    arguments: tuple[Any, ...]
    outputs: tuple[Tensor, ...]
    """Its floating outputs, detached, on the CPU."""
    finite: bool
    connected: bool
    """Some floating output requires grad."""
    backward: RaisedError | None = None
    """What backward raised."""
    jacobian: int = 0
    """Entries of the Jacobian that would be verified."""
    gradients: Mapping[str, Tensor | None] | None = None
    """By argument, where backward came back; on the CPU."""
    summed: frozenset[str] = frozenset()
    """Arguments whose gradient came back in another shape, and was summed by the engine."""

    @property
    def is_whole(self) -> bool:
        """Whether forward and backward accepted the inputs, and something flowed back."""
        flowed = any(g is not None for g in (self.gradients or {}).values())
        return self.finite and self.connected and self.backward is None and flowed

    @property
    def fails_in_backward(self) -> bool:
        """Whether forward gives numbers, and backward raises what its author does not say."""
        return self.finite and self.backward is not None and not self.backward.deliberate

    def has_outputs_of(self, other: Ran | RaisedError) -> bool:
        """Whether the outputs are those of another call, number by number."""
        if not isinstance(other, Ran) or len(other.outputs) != len(self.outputs):
            return False
        pairs = zip(self.outputs, other.outputs, strict=True)
        return all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


@dataclass(frozen=True)
class Caller:
    """How the target is called."""

    call: Callable[..., Any]
    defaults: Mapping[str, Any]
    """Every positional parameter with its default, `...` for none."""
    live: Mapping[str, Any]
    """Callables and objects that a guess may name, by path."""
    variadic: frozenset[str] = frozenset()
    dtype: torch.dtype = torch.float64
    """Of real tensors: another one where forward refuses float64."""
    function: type[Function] | None = None
    """The class whose backward it is; None for what is no Function."""
    device: str = "cpu"
    unchecked: bool = False
    """Kernels take whatever lies in memory beside a tensor: that they accept sizes does not tell much."""


def attempt(caller: Caller, state: State, seed: int = 0, draw: int = 0) -> Ran | RaisedError:
    """Call forward and then backward with the arguments of a state."""
    made, unfit = _Arguments(caller, state, seed, draw, {}), _unfit(state)
    built = (
        guard.call(made.build) if not unfit else Raised(RaisedError("ValueError", unfit))
    )  # constructors of the user's, structures that no such tensor can have
    if isinstance(built, Raised):
        return built.error
    guard.RandomStates(seed).replay()
    with torch.enable_grad():
        result = guard.call(caller.call, *built.value)
    if isinstance(result, Raised):
        return result.error
    returned = result.value if isinstance(result.value, tuple | list) else (result.value,)
    outputs = [r for r in returned if isinstance(r, Tensor) and (r.is_floating_point() or r.is_complex())]
    plain = guard.call(_detached, outputs)
    if isinstance(plain, Raised):
        return plain.error
    connected = [o for o in outputs if o.requires_grad and o.layout is torch.strided]
    forwards = Ran(built.value, *plain.value, connected=bool(connected))
    if not connected and not made.leaves:
        return RaisedError("ValueError", "none of the inputs is one that could require grad")
    if not connected:
        return forwards
    with _noting(caller.function) as shapes:
        backward, gradients = _backward(connected, made.leaves)
    wrt = sum(leaf.numel() for several in made.leaves.values() for leaf in several)
    jacobian = sum(o.numel() for o in connected) * wrt
    ran = replace(forwards, backward=backward, jacobian=jacobian, gradients=gradients)
    given = zip(state.arguments, built.value, shapes, strict=False)
    summed = (a.name for a, v, s in given if s is not None and isinstance(v, Tensor) and s != v.shape)
    return replace(ran, summed=frozenset(() if caller.variadic else summed))


@contextmanager
def _noting(function: type[Function] | None) -> Iterator[list[torch.Size | None]]:
    """The shapes of what the class's backward returns, by position, once it was called."""
    shapes: list[torch.Size | None] = []

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(ctx: Any, *grad_outputs: Any) -> Any:  # noqa: ANN401 - whatever the author's takes
            returned = original(ctx, *grad_outputs)
            several = returned if isinstance(returned, tuple | list) else (returned,)
            shapes[:] = [r.shape if isinstance(r, Tensor) else None for r in several]
            return returned

        return backward

    with nullcontext() if function is None else wrapped_backward(function, wrap):
        yield shapes


def works(caller: Caller, state: State) -> bool:
    """Whether forward and backward take it, and something flows back."""
    ran = attempt(caller, state)
    return isinstance(ran, Ran) and ran.is_whole


def _unfit(state: State) -> str:
    """Why no such arguments can be made; empty where they can."""
    arguments = state.arguments
    if state.elements() > MOST_ELEMENTS or any(s < 0 for a in arguments for s in state.shape(a)):
        return "the inputs would be too large"
    if any(a.value is not None and state.shape(a) != _shape(a.value) for a in arguments):
        return "what a tensor holds has another shape"
    if any(a.structure == LENGTHS and not _adds_up(a, state) for a in arguments):
        return "there are no different lengths that add up to so few"
    if not all(fits(a.structure, state.shape(a)) for a in arguments if a.structure):
        return "no matrix of such a shape has the structure"
    return ""


def _adds_up(argument: Argument, state: State) -> bool:
    """Whether lengths can differ: as many ones as there are places would say nothing."""
    if len(argument.dims) != 1 or argument.bound is None:
        return False
    (parts,), total = state.shape(argument), argument.bound.value(state.values)
    return 2 * total >= parts * (parts + 1)


def _shape(value: Nested) -> tuple[int, ...]:
    return (len(value), *_shape(value[0])) if isinstance(value, tuple) and value else ()


def _detached(outputs: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], bool]:
    """The values, and whether all are finite. Raises where a dtype can do next to nothing."""
    dense = (o.detach().to_dense() if o.layout is not torch.strided else o.detach() for o in outputs)
    values = tuple(o.cpu() for o in dense)
    return values, all(bool(v.isfinite().all()) for v in values)


def _backward(
    outputs: Sequence[Tensor], leaves: Mapping[str, Sequence[Tensor]]
) -> tuple[RaisedError | None, Mapping[str, Tensor | None] | None]:
    flat = [(name, leaf) for name, several in leaves.items() for leaf in several]
    if not flat:
        return None, {}
    generator = torch.Generator().manual_seed(SEED)
    drawn = (torch.complex128 if o.is_complex() else torch.float64 for o in outputs)
    pairs = zip(outputs, drawn, strict=True)
    weights = [torch.randn(o.shape, generator=generator, dtype=d).to(o.device, o.dtype) for o, d in pairs]
    result = guard.call(vjp, outputs, [leaf for _, leaf in flat], weights)
    if isinstance(result, Raised):
        return result.error, None
    gradients = (None if g is None else g.cpu() for g in result.value)
    return None, {name: g for (name, _), g in zip(flat, gradients, strict=True)}


@dataclass(frozen=True)
class _Arguments:
    """The live arguments of a call; differentiable tensors are noted as leaves and handed on as copies."""

    caller: Caller
    state: State
    seed: int
    draw: int
    leaves: dict[str, list[Tensor]]

    def build(self) -> tuple[Any, ...]:
        """As `apply` takes them: lists splatted under `*args`. Raises what a constructor raises.

        What is left out at the end is not given, since torch counts the gradients of what is.
        """
        call: list[Any] = []
        built: dict[str, Any] = {}
        given = [k for k, a in enumerate(self.state.arguments, start=1) if a.guess.kind is not Kind.OMITTED]
        for argument in self.state.arguments[: max(given, default=0)]:
            owner = built.get(argument.guess.path) if argument.guess.kind is Kind.PARAMETERS else None
            value = self._built(argument) if owner is None else self._parameters(argument.name, owner)
            built[argument.name] = value
            call += value if argument.name in self.caller.variadic and isinstance(value, list) else [value]
        return tuple(call)

    def _parameters(self, name: str, module: Any) -> list[Tensor]:  # noqa: ANN401 - an argument of user code
        """Those of a module that is passed, which are leaves. Raises where it is none."""
        self.leaves[name] = [p for p in module.parameters() if p.requires_grad]
        return list(module.parameters())

    def _built(self, argument: Argument) -> Any:  # noqa: ANN401 - an argument of user code
        guess = argument.guess
        match guess.kind:
            case Kind.LITERAL:
                return guess.choices[0]
            case Kind.SIZE:
                return self.state.shape(argument)[0]
            case Kind.CALLABLE | Kind.OBJECT:
                found = self.caller.live[guess.path]
                built = found(*guess.init) if guess.made else found
                return (
                    built.to(self.caller.device, self.caller.dtype) if isinstance(built, nn.Module) else built
                )
            case Kind.OMITTED:
                variadic = argument.name in self.caller.variadic
                return [] if variadic else self.caller.defaults[argument.name]
            case Kind.PARAMETERS:
                raise ValueError(f"`{argument.guess.path}` comes after its parameters")
            case Kind.LIST:
                names = (f"{argument.name}[{k}]" for k in range(argument.items))
                return [self._tensor(tensor_input(argument, self.state, n), argument) for n in names]
            case _:
                return self._tensor(tensor_input(argument, self.state), argument)

    def _tensor(self, spec: TensorInput, argument: Argument) -> Tensor:
        value = _drawn(spec, self.seed, self.draw).to(self.caller.device, copy=True)
        value = value.to(self.caller.dtype) if value.dtype is torch.float64 else value
        if (value.is_floating_point() or value.is_complex()) and argument.requires_grad:
            leaf = value.requires_grad_()
            self.leaves.setdefault(argument.name, []).append(leaf)
            return leaf.clone()
        return value


def tensor_input(argument: Argument, state: State, name: str = "") -> TensorInput:
    """A tensor of a state as the verifier knows it."""
    plain = {Kind.INDEX: "int64", Kind.BOOL: "bool"}.get(argument.guess.kind, "float64")
    shape, bound = state.shape(argument), argument.bound
    below = bound.value(state.values) if bound is not None else 0
    lengths = argument.structure == LENGTHS
    return TensorInput(
        name or argument.name,
        shape,
        dtype=argument.dtype or plain,
        domain=argument.domain,
        range=argument.span if bound is None or lengths else (0.0, float(below)),
        value=lengths_of(below, *shape) if lengths else argument.value,
        structure="" if lengths else argument.structure,
        requires_grad=None if argument.requires_grad else False,
    )


@lru_cache(maxsize=KEPT_DRAWS)
def _drawn(spec: TensorInput, seed: int, draw: int) -> Tensor:
    """A search tries a shape again and again, beside others: to draw it takes longer than most forwards."""
    return build_tensor(spec, seed, Point.TYPICAL, draw, "cpu")
