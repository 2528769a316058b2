"""One call of the target with the arguments of a state: forward, then backward, through the guard."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Nested, Point, RaisedError, TensorInput
from gradverify.verifier import guard
from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.held import lengths_of
from gradverify.verifier.collect.inference.shapes import LENGTHS, Argument, State
from gradverify.verifier.engine import vjp
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.stand_ins import MADE, STAND_IN, StandIn, made
from gradverify.verifier.inputs.structures import fits
from gradverify.verifier.inputs.tensors import LAYOUTS, build_tensor

MOST_ELEMENTS = 60_000
"""Numbers in the arguments, or in the outputs, of one attempt: a spec that a person writes has far fewer."""

MOST_JACOBIAN = 250_000
"""Entries of the Jacobian of deduced inputs: verifying more takes minutes."""


KEPT_DRAWS = 64
"""Tensors that are kept as they were drawn, 30 MB at most."""


@dataclass(frozen=True)
class Ran:
    """Forward came back."""

    arguments: tuple[Any, ...]
    outputs: tuple[Tensor, ...]
    """Its floating outputs, detached."""
    finite: bool
    connected: bool
    """Some floating output requires grad."""
    backward: RaisedError | None = None
    """What backward raised."""
    jacobian: int = 0
    """Entries of the Jacobian that would be verified."""
    gradients: Mapping[str, Tensor | None] | None = None
    """By argument, where backward came back."""


@dataclass(frozen=True)
class Caller:
    """How the target is called."""

    call: Callable[..., Any]
    defaults: Mapping[str, Any]
    """Every positional parameter with its default, `...` for none."""
    live: Mapping[str, Any]
    """Callables that a guess may name, by path."""
    variadic: frozenset[str] = frozenset()
    dtype: torch.dtype = torch.float64
    """Of real tensors: another one where forward refuses float64."""


def stand_ins() -> dict[str, Any]:
    """What guesses put in for functions and modules: torch's own, NumPy's where user code has loaded it."""
    numpy = sys.modules.get("numpy")
    arrays = {"numpy.negative": numpy.negative} if numpy is not None else {}
    own = {STAND_IN: StandIn, MADE: made}
    return {"torch.tanh": torch.tanh, "torch.sin": torch.sin, "torch.nn.Tanh": torch.nn.Tanh, **own, **arrays}


def attempt(caller: Caller, state: State, seed: int = 0, draw: int = 0) -> Ran | RaisedError:
    """Call forward and then backward with the arguments of a state."""
    unfit = _unfit(state)
    if unfit:
        return RaisedError("ValueError", unfit)
    leaves: dict[str, list[Tensor]] = {}

    def build() -> list[Any]:
        return [built_argument(a, state, caller, leaves, seed, draw) for a in state.arguments]

    built = guard.call(build)  # constructors of the user's, layouts that no such tensor can have
    if isinstance(built, Raised):
        return built.error
    given = _positional(state.arguments, built.value, caller)
    guard.RandomStates(seed).replay()
    with torch.enable_grad():
        result = guard.call(caller.call, *given)
    if isinstance(result, Raised):
        return result.error
    returned = result.value if isinstance(result.value, tuple | list) else (result.value,)
    outputs = [r for r in returned if isinstance(r, Tensor) and (r.is_floating_point() or r.is_complex())]
    connected = [o for o in outputs if o.requires_grad and o.layout is torch.strided]
    jacobian = sum(o.numel() for o in connected) * _differentiable(leaves)
    plain = guard.call(_detached, outputs)
    values = () if isinstance(plain, Raised) else plain.value
    looked_at = guard.call(lambda: all(bool(o.isfinite().all()) for o in values))
    if isinstance(looked_at, Raised) or not (connected or leaves):  # numbers of 8 bits can do next to nothing
        none = RaisedError("ValueError", "none of the inputs is one that could require grad")
        return looked_at.error if isinstance(looked_at, Raised) else none
    finite = looked_at.value
    if not connected:
        return Ran(tuple(given), values, finite, connected=False)
    backward, gradients = _backward(connected, leaves)
    return Ran(
        tuple(given),
        values,
        finite,
        connected=True,
        backward=backward,
        jacobian=jacobian,
        gradients=gradients,
    )


def works(caller: Caller, state: State) -> bool:
    """Whether forward and backward take it, and something flows back."""
    ran = attempt(caller, state)
    if isinstance(ran, RaisedError) or not ran.finite or not ran.connected or ran.backward is not None:
        return False
    return any(g is not None for g in (ran.gradients or {}).values())


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


def _detached(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(o.detach().to_dense() if o.layout is not torch.strided else o.detach() for o in outputs)


def _differentiable(leaves: Mapping[str, Sequence[Tensor]]) -> int:
    return sum(leaf.numel() for several in leaves.values() for leaf in several)


def _backward(
    outputs: Sequence[Tensor], leaves: Mapping[str, Sequence[Tensor]]
) -> tuple[RaisedError | None, Mapping[str, Tensor | None] | None]:
    flat = [(name, leaf) for name, several in leaves.items() for leaf in several]
    generator = torch.Generator().manual_seed(5)
    drawn = (torch.complex128 if o.is_complex() else torch.float64 for o in outputs)
    weights = [
        torch.randn(o.shape, generator=generator, dtype=d).to(o.dtype)
        for o, d in zip(outputs, drawn, strict=True)
    ]

    result = guard.call(vjp, outputs, [leaf for _, leaf in flat], weights) if flat else None
    if result is None:
        return None, {}
    if isinstance(result, Raised):
        return result.error, None
    return None, {name: g for (name, _), g in zip(flat, result.value, strict=True)}


def built_argument(
    argument: Argument, state: State, caller: Caller, leaves: dict[str, list[Tensor]], seed: int, draw: int
) -> Any:  # noqa: ANN401 - an argument of user code
    """The live argument; differentiable tensors are noted as leaves and handed on as copies."""
    guess = argument.guess
    match guess.kind:
        case Kind.LITERAL:
            return guess.choices[0]
        case Kind.SIZE:
            return state.shape(argument)[0]
        case Kind.CALLABLE | Kind.OBJECT:
            found = caller.live[guess.path]
            return found(*guess.init) if guess.made else found
        case Kind.OMITTED:
            return [] if argument.name in caller.variadic else caller.defaults[argument.name]
        case Kind.LIST:
            parts = argument.parts or (argument,) * argument.items
            own = [replace(p, name=argument.name) for p in parts]
            named = [tensor_input(p, state, f"{argument.name}[{k}]") for k, p in enumerate(parts)]
            pairs = zip(named, own, strict=True)
            return [_tensor(t, p, caller.dtype, leaves, seed, draw) for t, p in pairs]
        case _:
            return _tensor(tensor_input(argument, state), argument, caller.dtype, leaves, seed, draw)


def tensor_input(argument: Argument, state: State, name: str = "") -> TensorInput:
    """A tensor of a state as the verifier knows it."""
    kind = argument.guess.kind
    plain = {Kind.INDEX: "int64", Kind.BOOL: "bool"}.get(kind, "float64")
    shape, bound = state.shape(argument), argument.bound
    below = bound.value(state.values) if bound is not None else 0
    made = TensorInput(
        name or argument.name,
        shape,
        dtype=argument.dtype or plain,
        domain=argument.domain,
        range=None if bound is None else (0.0, float(below)),
        value=argument.value,
        layout=argument.layout,
        structure=argument.structure,
        requires_grad=None if argument.requires_grad else False,
    )
    if argument.structure != LENGTHS:
        return made
    return replace(made, structure="", range=None, value=lengths_of(below, *shape))


def _tensor(
    spec: TensorInput,
    argument: Argument,
    dtype: torch.dtype,
    leaves: dict[str, list[Tensor]],
    seed: int,
    draw: int,
) -> Tensor:
    value = _drawn(spec, seed, draw).clone()
    value = value.to(dtype) if value.dtype is torch.float64 else value
    if (value.is_floating_point() or value.is_complex()) and argument.requires_grad:
        leaf = value.requires_grad_()
        leaves.setdefault(argument.name, []).append(leaf)
        return _in_layout(leaf.clone(), spec)
    return _in_layout(value, spec)


@lru_cache(maxsize=KEPT_DRAWS)
def _drawn(spec: TensorInput, seed: int, draw: int) -> Tensor:
    """A search tries a shape again and again, beside others: to draw it takes longer than most forwards."""
    return build_tensor(spec, seed, Point.TYPICAL, draw, "cpu")


def _in_layout(value: Tensor, spec: TensorInput) -> Tensor:
    convert = LAYOUTS.get(spec.layout)
    return value if convert is None else convert(value)


def _positional(arguments: Sequence[Argument], built: Sequence[Any], caller: Caller) -> list[Any]:
    """Arguments as `apply` takes them: lists splatted under `*args`."""
    call: list[Any] = []
    for argument, value in zip(arguments, built, strict=True):
        if argument.name in caller.variadic and isinstance(value, list):
            call += value
        else:
            call.append(value)
    return call
