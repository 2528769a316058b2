"""Noting what is passed to a Function or an operator while other user code runs, and making a state of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradverify.model import Nested, Parameter
from gradverify.verifier.collect.discover import uses_setup_context
from gradverify.verifier.collect.inference.candidates import Guess, Kind, swept
from gradverify.verifier.collect.inference.shapes import Argument, Dim, State
from gradverify.verifier.collect.operators import Operator, operator_of

Call = tuple[Any, ...]
"""The arguments of one call, by position."""

MOST_CALLS = 2
"""Calls of one run that are looked at: further ones are mostly of the same kind."""

CHEAPEST = -1.0
"""What a state costs that really occurred: it is tried before every guess."""


class UnusableError(Exception):
    """An argument that no state can hold."""


def calls_noted(value: Any, run: Callable[[], Any]) -> list[Call]:  # noqa: ANN401
    """The first calls of a Function class or operator while `run` runs, whatever becomes of it."""
    noted: list[Call] = []
    operator = operator_of(value)
    noting: AbstractContextManager[Any]
    noting = _noting_forward(value, noted) if operator is None else _NotingDispatch(operator, noted)
    with noting, torch.enable_grad():
        run()
    return noted[:MOST_CALLS]


@contextmanager
def _noting_forward(function: Any, noted: list[Call]) -> Iterator[None]:  # noqa: ANN401
    """Wrap forward, and not `apply`: whoever holds `apply` under another name calls forward all the same."""
    original, own = function.forward, vars(function).get("forward")
    first = 0 if uses_setup_context(function) else 1

    def forward(*arguments: Any) -> Any:  # noqa: ANN401
        noted.append(arguments[first:])
        return original(*arguments)

    function.forward = staticmethod(forward)
    try:
        yield
    finally:
        if own is None:
            del function.forward
        else:
            function.forward = own


class _NotingDispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator below autograd; what is passed by name alone is not noted."""

    def __init__(self, operator: Operator, noted: list[Call]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operator, self._noted = operator, noted

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if func is self._operator.overload:
            self._noted.append(args)
        return func(*args, **(kwargs or {}))


def state_of(
    call: Call, parameters: Sequence[Parameter], defaults: frozenset[Any], *, invented: bool
) -> State | None:
    """The call as a state: equal sizes are one symbol. None where some argument cannot be said.

    `defaults` are plain values of the source; `invented` says that others may follow from made-up ones.
    """
    sizes = list(dict.fromkeys(s for t in _tensors(call) for s in t.shape if s > 1))
    symbols = {size: Dim(number) for number, size in enumerate(sizes)}
    try:
        arguments = tuple(
            _argument(p, given, symbols, defaults, invented=invented)
            for p, given in _by_parameter(call, parameters)
        )
    except UnusableError:
        return None
    return State(arguments, tuple((d.symbol, s) for s, d in symbols.items()), cost=CHEAPEST)


_MISSING = object()


def _by_parameter(call: Call, parameters: Sequence[Parameter]) -> Iterator[tuple[Parameter, Any]]:
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


def _argument(
    parameter: Parameter,
    value: Any,  # noqa: ANN401
    symbols: dict[int, Dim],
    defaults: frozenset[Any],
    *,
    invented: bool,
) -> Argument:
    name = parameter.name
    if value is _MISSING:
        return Argument(name, Guess(Kind.OMITTED, 0.0))
    if isinstance(value, Tensor):
        return _tensor(name, value, symbols)
    if isinstance(value, list | tuple) and value and all(isinstance(v, Tensor) for v in value):
        first = _tensor(name, value[0], symbols)
        if any(v.shape != value[0].shape for v in value) or first.guess.kind is not Kind.FLOAT:
            raise UnusableError
        return replace(first, guess=Guess(Kind.LIST, 0.0), items=len(value))
    is_plain = value is None or isinstance(value, bool | int | float | str)
    if type(value) is int and value in symbols and value not in defaults:
        return Argument(name, Guess(Kind.SIZE, 0.0, found=False), dims=(symbols[value],))
    if is_plain:
        found = not invented or value is None or value in defaults or isinstance(value, bool)
        return Argument(name, Guess(Kind.LITERAL, 0.0, swept(value, name), found=found))
    sizes = _tuple(value)
    certain = not invented or all(type(v) is int and v in symbols for v in value)  # the shape of a tensor
    return Argument(name, Guess(Kind.LITERAL, 0.0, (sizes,), found=certain))


def _tuple(value: Any) -> Nested:  # noqa: ANN401
    if isinstance(value, list | tuple) and all(isinstance(v, bool | int | float | str) for v in value):
        return tuple(value)
    raise UnusableError


def _tensor(name: str, value: Tensor, symbols: dict[int, Dim]) -> Argument:
    if value.layout is not torch.strided or value.is_complex():
        raise UnusableError
    dims = tuple(symbols[s] if s > 1 else Dim(plus=s) for s in value.shape)
    if value.is_floating_point():
        return Argument(name, Guess(Kind.FLOAT, 0.0), dims)
    if value.dtype is torch.bool:
        return Argument(name, Guess(Kind.BOOL, 0.0, found=False), dims)
    highest = int(value.max()) if value.numel() else 0
    above = [s for s in symbols if s > highest]
    bound = symbols[min(above)] if above else Dim(plus=highest + 1)
    dtype = str(value.dtype).removeprefix("torch.")
    kept = "" if dtype == "int64" else dtype
    return Argument(name, Guess(Kind.INDEX, 0.0, found=False), dims, bound=bound, dtype=kept)
