"""A call that was noted, as a state: equal sizes are one symbol, what was computed keeps its form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Nested, Parameter
from gradverify.verifier.collect.inference.candidates import Guess, Kind, swept
from gradverify.verifier.collect.inference.forms import MOST_VALUES, form_of, values_of
from gradverify.verifier.collect.inference.objects import Names
from gradverify.verifier.collect.inference.running import Observed
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State

CHEAPEST = -1.0
"""What a state costs that really occurred: it is tried before every guess."""


class UnusableError(Exception):
    """An argument that no state can hold."""


@dataclass(frozen=True)
class _Call:
    """A noted call while a state is made of it."""

    observed: Observed
    symbols: dict[int, Dim]
    """By size."""
    names: Names
    by_value: bool
    """Integers and truths that were computed belong together: they stay what they were."""
    keeps_graph: bool
    """Some tensor of it requires grad: those that do not are constants of the author's."""

    def is_given(self, value: Tensor) -> bool:
        """Whether its entries are those of a tensor that was made up."""
        return any(_same_entries(value, given) for given in _strided(self.observed.given))


def state_of(observed: Observed, parameters: Sequence[Parameter], names: Names) -> State | None:
    """The call as a state; None where some argument cannot be said."""
    tensors = list(_tensors(observed.call))
    if len(_strided(tensors)) < len(tensors):
        return None
    given = _strided(observed.given)
    graph = any(t.requires_grad for t in tensors)
    computed = [
        t
        for t in tensors
        if _is_discrete(t, constant=graph and not t.requires_grad)
        and t.numel() <= MOST_VALUES
        and not any(_same_entries(t, g) for g in given)
    ]
    sizes = list(dict.fromkeys(s for t in tensors for s in t.shape if s > 1))
    kept = computed if len(computed) > 1 else [t for t in computed if not form_of(t, sizes)]
    held = _sizes_held(kept)
    symbols = {size: Dim(number) for number, size in enumerate(s for s in sizes if s not in held)}
    symbols |= {size: Dim(plus=size) for size in held}
    call = _Call(observed, symbols, names, bool(kept), graph)
    try:
        arguments = tuple(_argument(p, v, call) for p, v in _by_parameter(observed.call, parameters))
    except UnusableError:
        return None
    drawn = tuple((d.symbol, s) for s, d in symbols.items() if d.symbol >= 0)
    return State(arguments, drawn, cost=CHEAPEST)


def _sizes_held(kept: Sequence[Tensor]) -> set[int]:
    """Sizes that cannot change while these tensors stay what they are: their own, what they count up to."""
    held = {s for t in kept for s in t.shape}
    for values in (t for t in kept if t.dtype is not torch.bool and t.numel()):
        flat = values.flatten().tolist()
        held |= {max(flat) + 1, sum(flat)} | ({flat[-1]} if flat == sorted(flat) else set())
    return {s for s in held if s > 1}


def _same_entries(one: Tensor, other: Tensor) -> bool:
    if one.numel() != other.numel() or one.dtype != other.dtype:
        return False
    first, second = (t.detach().flatten() for t in (one, other))
    return torch.equal(first, second) or torch.equal(first.sort().values, second.sort().values)


def _is_discrete(value: Tensor, *, constant: bool) -> bool:
    """Whether it holds integers or truths; a `constant` may hold them as real numbers."""
    if not value.is_floating_point():
        return not value.is_complex()
    return constant and value.numel() > 1 and bool(((value == 0) | (value == 1)).all())


_MISSING = object()


def _by_parameter(call: Sequence[Any], parameters: Sequence[Parameter]) -> Iterator[tuple[Parameter, Any]]:
    for place, parameter in enumerate(parameters):
        if parameter.variadic:
            yield parameter, list(call[place:])
            return
        given = call[place] if place < len(call) else _MISSING
        if given is _MISSING and not parameter.has_default:
            raise UnusableError
        yield parameter, given
    if len(call) > len(parameters):
        raise UnusableError


def _tensors(call: Sequence[Any]) -> Iterator[Tensor]:
    for value in call:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _strided(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Without the sparse ones, whose entries cannot be compared one by one."""
    return [t for t in tensors if t.layout is torch.strided]


def _argument(parameter: Parameter, value: Any, call: _Call) -> Argument:  # noqa: ANN401
    name = parameter.name
    if isinstance(value, Tensor):
        return _tensor(name, value, call)
    if isinstance(value, list | tuple) and value and all(isinstance(v, Tensor) for v in value):
        return _list(name, value, call)
    return Argument(name, Guess(Kind.OMITTED, 0.0)) if value is _MISSING else _plain(name, value, call)


def _plain(name: str, value: Any, call: _Call) -> Argument:  # noqa: ANN401
    observed = call.observed
    if type(value) is int and value in call.symbols and value not in observed.defaults:
        return _size(name, value, call)
    if value is None or isinstance(value, bool | int | float | str):
        plain = value is None or isinstance(value, bool)
        found = not observed.invented or plain or value in observed.defaults
        return Argument(name, Guess(Kind.LITERAL, 0.0, swept(value, name), found=found))
    entries = _tuple(value)
    if entries is not None:
        of_shape = all(type(v) is int and v in call.symbols for v in entries)
        guess = Guess(Kind.LITERAL, 0.0, (entries,), found=not observed.invented or of_shape)
        return Argument(name, guess)
    return _object(name, value, call)


def _size(name: str, value: int, call: _Call) -> Argument:
    dim = call.symbols[value]
    if dim.symbol < 0:
        return Argument(name, Guess(Kind.LITERAL, 0.0, (value,), found=False))
    return Argument(name, Guess(Kind.SIZE, 0.0, found=False), dims=(dim,))


def _tuple(value: Any) -> tuple[Nested, ...] | None:  # noqa: ANN401
    plain = type(value) in {list, tuple, torch.Size}
    if plain and all(isinstance(v, bool | int | float | str) for v in value):
        return tuple(value)
    return None


def _object(name: str, value: Any, call: _Call) -> Argument:  # noqa: ANN401
    found = call.names.guess_of(value)
    if found is None:
        raise UnusableError
    return Argument(name, found)


def _list(name: str, values: Sequence[Tensor], call: _Call) -> Argument:
    parts = tuple(_tensor(f"{name}[{k}]", v, call) for k, v in enumerate(values))
    first, guess = parts[0], Guess(Kind.LIST, 0.0)
    alike = all(replace(p, name=first.name) == first for p in parts)
    if alike and first.guess.kind is Kind.FLOAT and first.value is None:
        return replace(first, name=name, guess=guess, items=len(values))
    return Argument(name, guess, parts=parts)


def _tensor(name: str, value: Tensor, call: _Call) -> Argument:
    if value.is_complex():
        raise UnusableError
    dims = tuple(call.symbols[s] if s > 1 else Dim(plus=s) for s in value.shape)
    plain = call.is_given(value)
    if value.is_floating_point():
        # A buffer to be filled is empty, and one that requires grad cannot be resized.
        made = Argument(name, Guess(Kind.FLOAT, 0.0), dims, requires_grad=value.numel() > 0)
        constant = call.keeps_graph and not value.requires_grad
        kept = call.by_value and not plain and value.numel() <= MOST_VALUES
        if kept and _is_discrete(value, constant=constant):
            return _as_it_was(made, value)
        return made if plain else _real(made, value, call)
    dtype = "" if value.dtype is torch.int64 else str(value.dtype).removeprefix("torch.")
    kind = Kind.BOOL if value.dtype is torch.bool else Kind.INDEX
    made = Argument(name, Guess(kind, 0.0, found=False), dims, dtype="" if kind is Kind.BOOL else dtype)
    if call.by_value and not plain and value.numel() <= MOST_VALUES:
        return _as_it_was(made, value)
    form = "" if plain or kind is Kind.BOOL else form_of(value, tuple(call.symbols))
    if form:
        return _formed(made, form, value, call)
    if kind is Kind.BOOL:
        return made
    highest = int(value.max()) if value.numel() else 0
    above = [s for s in call.symbols if s > highest]
    return replace(made, bound=call.symbols[min(above)] if above else Dim(plus=highest + 1))


def _formed(made: Argument, form: str, value: Tensor, call: _Call) -> Argument:
    """Integers of a form: the bound is the size that they run up to."""
    guess = replace(made.guess, structure=form)
    bound = call.symbols[int(value.max()) + (form == "permutation")]
    segments = call.symbols.get(len(value) - 1)
    dims = made.dims
    if form == "offsets":
        dims = (replace(segments, plus=segments.plus + 1),) if segments is not None else made.dims
    return replace(made, guess=guess, structure=form, bound=bound, dims=dims)


def _as_it_was(made: Argument, value: Tensor) -> Argument:
    return replace(made, value=values_of(value))


def _real(made: Argument, value: Tensor, call: _Call) -> Argument:
    """Computed values in the domain that they were in; parameters begin at ones, and go anywhere."""
    trained = value.is_leaf and value.requires_grad
    form = "" if trained or not call.keeps_graph else form_of(value, ())
    if form == "simplex" and value.requires_grad:
        form = "unit"  # on the simplex only a part of its gradient would be looked at
    if form in {"positive", "unit"}:
        return replace(made, domain=form)
    return replace(made, structure=form) if form else made
