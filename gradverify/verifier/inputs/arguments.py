"""The arguments of one call at one point of a case.

Arguments that only a rank has: another value on each, or an object that each looks up for itself.

What stands for a function or a module of any arguments where it is not known what is passed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradverify.model import (
    Case,
    ConcatInput,
    Input,
    ListInput,
    LiteralInput,
    ObjectInput,
    Point,
    ShownInput,
    TensorInput,
    tensors_of,
)
from gradverify.model.case import (
    EQUAL_INPUTS,
    ZERO_ROWS,
    allows_zero,
    is_declared,
    is_floating,
    may_be_equal,
)
from gradverify.verifier.guard import Raised, RandomStates, Returned, call, unmoved
from gradverify.verifier.inputs.tensors import (
    build_tensor,
    held_of,
    is_differentiable,
    step_of,
    stream,
    with_equal_values,
)


@dataclass(frozen=True)
class OfRanks:
    """A number or a tuple that each rank has another of."""

    values: tuple[Any, ...]

    def __repr__(self) -> str:
        """As reports show it."""
        return f"{', '.join(map(repr, self.values))} on the ranks"


@dataclass(frozen=True)
class OnEachRank:
    """An object that every rank looks up for itself: a function, a module, the group."""

    path: str
    init: tuple[Any, ...] | None = None

    def __repr__(self) -> str:
        """As reports show it."""
        return f"{self.path}, on each rank"

    def __call__(self, *init: Any) -> OnEachRank:  # noqa: ANN401
        """The same, called with arguments on each rank."""
        return OnEachRank(self.path, init)


STAND_IN = "gradverify.verifier.inputs.arguments.StandIn"
"""What a spec calls the class by."""

BLOCK = "gradverify.verifier.inputs.arguments.Block"
"""What a spec calls a module with parameters by."""

OWN_OBJECTS = frozenset({STAND_IN, BLOCK})
"""Names that mean nothing to a user."""


class StandIn(nn.Module):
    """A smooth function of whatever it gets, without parameters.

    It keeps the shape of the largest tensor; with `returns` it gives so many different ones in a tuple.
    """

    def __init__(self, returns: int = 0) -> None:
        super().__init__()
        self._returns = returns

    def forward(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        """The hyperbolic tangent of the largest tensor, plus a part of every other of its shape."""
        tensors = list(_floats([*given, *named.values()]))
        if not tensors:
            return 0.75
        first = max(range(len(tensors)), key=lambda k: tensors[k].numel())
        value = tensors[first].tanh()
        for place, other in enumerate(tensors):
            if place != first and other.shape == value.shape:
                value = value + (other * (0.5 + place)).sin() / 4
        return tuple(value * (1 + 0.5 * k) for k in range(self._returns)) if self._returns else value


class Block(StandIn):
    """The same with two parameters, of one number each: a factor within, and a shift."""

    def __init__(self, returns: int = 0) -> None:
        super().__init__(returns)
        self.weight = nn.Parameter(torch.tensor(1.25, dtype=torch.float64))
        self.bias = nn.Parameter(torch.tensor(0.375, dtype=torch.float64))

    def forward(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        """The value of `StandIn` for tensors that are each multiplied by the factor and shifted."""
        moved = [g * self.weight + self.bias if _is_float(g) else g for g in given]
        return super().forward(*moved, **named)


def _is_float(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, Tensor) and value.is_floating_point()


def _floats(values: Any) -> Iterator[Tensor]:  # noqa: ANN401
    for value in values:
        if _is_float(value):
            yield value
        elif isinstance(value, list | tuple | dict):
            yield from _floats(value.values() if isinstance(value, dict) else value)


SHOWN_ELEMENTS = 16
"""Tensors up to this many elements are printed in full."""


@dataclass(frozen=True)
class Argument:
    """One argument of a call, or one item of a list argument."""

    name: str
    value: Any
    differentiable: bool = False
    step: Callable[[Tensor], Tensor] | None = None
    """Differentiable; takes a moved value back onto its structure, or into its layout."""
    held: Tensor | None = None
    """bool, the value's shape: entries that numerical steps leave alone."""
    in_list: str = ""
    """Name of the list argument that this is an item of; items of one list are together."""
    holds: tuple[tuple[str, Tensor], ...] = ()
    """Tensors inside of an object that are arguments, too, by the names of these."""

    def moved(self, value: Tensor) -> Any:  # noqa: ANN401 - a tensor of any layout
        """What the target is called with for another value."""
        return value if self.step is None else self.step(value)

    def without_held(self, value: Tensor) -> Tensor:
        """Another value, with the held entries as they were."""
        return value if self.held is None else torch.where(self.held, self.value, value)


def _tied(arguments: Sequence[Argument], values: Sequence[Any]) -> list[Any]:
    """The values of a call, with objects that hold some of them as copies that hold the ones of this call.

    Each call gets its own, so that calls may overlap. Where no graph is built, what an object holds requires
    grad all the same, as parameters of a module do: forward may differentiate by them.
    """
    held = {name for a in arguments for name, _ in a.holds}
    if not held:
        return list(values)
    own = [
        v.view_as(v).requires_grad_() if a.name in held and not torch.is_grad_enabled() else v
        for a, v in zip(arguments, values, strict=True)
    ]
    given = {a.name: value for a, value in zip(arguments, own, strict=True)}
    memo = {id(t): given[name] for a in arguments for name, t in a.holds}
    pairs = zip(arguments, own, strict=True)
    return [copy.deepcopy(value, memo) if a.holds else value for a, value in pairs]


class _Met(dict[int, Any]):
    """What stands for itself while an object is copied, noting what of it is met."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__({id(t): t for t in tensors.values()})
        self._names = {id(t): name for name, t in tensors.items()}
        self._tensors = tensors
        self.met: dict[str, Tensor] = {}

    def get(self, key: int, default: Any = None) -> Any:  # noqa: ANN401 - as of a dictionary
        name = self._names.get(key)
        if name is not None:
            self.met[name] = self._tensors[name]
        return super().get(key, default)


def with_ties(arguments: Sequence[Argument], tensors: Mapping[str, Tensor]) -> tuple[Argument, ...]:
    """The arguments of which objects know the tensors inside of them that are arguments, too.

    `tensors` are those of the call as they were built, by name. Raises what copying such an object does.
    """
    return tuple(a if isinstance(a.value, Tensor) else _with_ties(a, tensors) for a in arguments)


def _with_ties(argument: Argument, tensors: Mapping[str, Tensor]) -> Argument:
    met = _Met(tensors)
    copied = call(copy.deepcopy, argument.value, met)
    if isinstance(copied, Raised) and met.met:
        said = f"`{argument.name}` holds `{next(iter(met.met))}`, and cannot be copied for each call"
        raise TypeError(f"{said}: {copied.error.message}")
    return replace(argument, holds=tuple(met.met.items()))


def paths_of(case: Case) -> tuple[str, ...]:
    """Paths of the live objects that a case's inputs name: `object:` and `make:`."""
    objects = [i.path for i in case.inputs if isinstance(i, ObjectInput)]
    return tuple(objects + [t.make for i in case.inputs for t in tensors_of(i) if t.make])


def build_arguments(
    case: Case, point: Point, draw: int, device: str, live: Mapping[str, Any] | None = None
) -> tuple[Argument, ...]:
    """Draw every input of a case without a hook.

    `live` holds the objects behind `object:` and `make:` by their path. Raises whatever these raise.
    """
    halved = _beside_rows(case, point, draw)
    wheres = (((Point.TYPICAL, 0) if i.name in halved else (point, draw)) for i in case.inputs)
    pairs = zip(case.inputs, wheres, strict=True)
    built = [a for i, where in pairs for a in _built(i, case, *where, device, live or {})]
    built = [replace(a, value=_zero_by_halves(a.value)) if a.name in halved else a for a in built]
    if (point, draw) == (Point.SPECIAL, EQUAL_INPUTS):
        drawn = [t for i in case.inputs for t in tensors_of(i)]
        equal = with_equal_values(may_be_equal(drawn), {a.name: a.value for a in built}, case.seed)
        built = [replace(a, value=equal.get(a.name, a.value)) for a in built]
    given = {i.name: i.parameters for i in case.inputs if isinstance(i, ObjectInput) and i.parameters}
    for place, argument in enumerate(built):
        if argument.name in given:
            own = _parameters(argument, given[argument.name])
            built[place] = _with_ties(argument, {a.name: a.value for a in own})
            built += [replace(a, value=a.value.detach()) for a in own]
    return tuple(built)


def _beside_rows(case: Case, point: Point, draw: int) -> set[str]:
    """Vectors beside tensors of which rows are made zero: a gain that is zero as a whole would hide them.

    Every second entry of them is zero, which meets those rows in ties.
    """
    if point is not Point.SPECIAL or is_declared(point, draw) or draw == EQUAL_INPUTS:
        return set()
    given = [i for i in case.inputs if isinstance(i, TensorInput) and is_floating(i)]
    deepest = max((len(i.shape) for i in given), default=0)
    lower = {i.name for i in given if len(i.shape) < deepest and not i.special and allows_zero(i)}
    return lower if (draw - 1) % 2 == ZERO_ROWS else set()


def _zero_by_halves(value: Tensor) -> Tensor:
    if not value.dim() or value.layout is not torch.strided:
        return value
    made = value.clone()
    made[..., ::2] = 0
    return made


def _parameters(module: Argument, name: str) -> list[Argument]:
    """What a `*args` parameter of this name gets of a module: its parameters, differentiated as it says."""
    if not isinstance(module.value, nn.Module):
        raise TypeError(f"`{module.name}` is no nn.Module, and has no parameters for `*{name}`")
    each = enumerate(module.value.parameters())
    return [Argument(f"{name}[{k}]", p, p.requires_grad) for k, p in each]


def _built(
    i: Input, case: Case, point: Point, draw: int, device: str, live: Mapping[str, Any]
) -> Iterator[Argument]:
    match i:
        case TensorInput():
            yield _tensor(i, build_tensor(i, case.seed, point, draw, device, live))
        case LiteralInput():
            yield Argument(i.name, OfRanks(i.by_rank) if i.by_rank else i.value)
        case ObjectInput():
            found = live[i.path]
            seed = stream(case.seed, i.name)
            yield Argument(i.name, found if i.init is None else _made(found, i.init, seed, device))
        case ConcatInput():
            yield _concatenated(i, [build_tensor(p, case.seed, point, draw, device, live) for p in i.parts])
        case ListInput():
            items = [_tensor(t, build_tensor(t, case.seed, point, draw, device, live)) for t in i.items]
            if i.splatted:
                yield from items
            elif not items:
                yield Argument(i.name, [])
            else:
                yield from (replace(a, in_list=i.name) for a in items)


def _made(build: Callable[..., Any], init: Sequence[Any], seed: int, device: str) -> Any:  # noqa: ANN401
    """An object of the spec's own; a module in the dtype of everything else."""
    built = seeded(seed, build, *init)
    return built.to(device, torch.float64) if isinstance(built, nn.Module) else built


def seeded(seed: int, build: Callable[..., Any], *given: Any, **named: Any) -> Any:  # noqa: ANN401
    """What user code builds, from random numbers that are the same each time; others go on as before."""
    with unmoved():
        RandomStates(seed).replay()
        return build(*given, **named)


def _tensor(spec: TensorInput, value: Tensor) -> Argument:
    differentiable = is_differentiable(spec, value)
    if not differentiable and spec.layout:
        converted = step_of(spec, value)
        return Argument(spec.name, converted(value) if converted is not None else value)
    return Argument(
        spec.name,
        value,
        differentiable,
        step_of(spec, value) if differentiable else None,
        held_of(spec.constant_at, value) if differentiable else None,
    )


def _concatenated(spec: ConcatInput, parts: list[Tensor]) -> Argument:
    """One tensor of several parts along the last dimension; a step brings each back to its structure."""
    widths = [p.shape[-1] for p in parts]
    steps = [step_of(s, p) for s, p in zip(spec.parts, parts, strict=True)]

    def step(x: Tensor) -> Tensor:
        pieces = torch.split(x, widths, dim=-1)
        return torch.cat([p if s is None else s(p) for s, p in zip(steps, pieces, strict=True)], dim=-1)

    differentiable = any(is_differentiable(p) for p in spec.parts)
    return Argument(spec.name, torch.cat(parts, dim=-1), differentiable, step if any(steps) else None)


def arguments_of_call(arguments: Sequence[Argument], values: Sequence[Any]) -> list[Any]:
    """Positional arguments: one value for each `Argument`, items of one list argument joined into it.

    Dictionaries, lists and sets are fresh ones for each call, as a caller makes them: forward may take what
    it needs out of them. Objects hold the tensors of this call.
    """
    call: list[Any] = []
    open_list = ""
    for argument, value in zip(arguments, _tied(arguments, values), strict=True):
        if not argument.in_list:
            call.append(_own(value))
        elif argument.in_list == open_list:
            call[-1].append(value)
        else:
            call.append([value])
        open_list = argument.in_list
    return call


def _own(value: Any) -> Any:  # noqa: ANN401 - any argument
    kind = type(value)
    if kind is dict:
        return {key: _own(one) for key, one in value.items()}
    if kind in (list, tuple, set):
        return kind(map(_own, value))
    return value


def shown_inputs(arguments: Sequence[Argument]) -> tuple[ShownInput, ...]:
    """Arguments as a person reads them: small ones in full, large ones by dtype and shape."""
    return tuple(ShownInput(a.name, show_value(a.value)) for a in arguments)


def show_value(value: Any) -> str:  # noqa: ANN401
    """One argument as text, in one line: an object by what its author lets it say of itself."""
    if not isinstance(value, Tensor):
        said = call(_said_of_itself, value)
        text = said.value if isinstance(said, Returned) else f"<{type(value).__name__}>"
        return text if isinstance(value, str) else " ".join(text.split())
    if value.numel() <= SHOWN_ELEMENTS and value.layout is torch.strided:
        return _short(value.detach().cpu().tolist())
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _said_of_itself(value: Any) -> str:  # noqa: ANN401
    return str(getattr(value, "__qualname__", None) or repr(value))


def _short(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, list):
        return "[" + ", ".join(_short(v) for v in value) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
