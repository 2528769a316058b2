"""Noting what is passed to a Function or an operator while other user code runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from gradverify.verifier.collect.discover import uses_setup_context
from gradverify.verifier.collect.operators import Operator, operator_of
from gradverify.verifier.dispatching import Dispatched

Call = tuple[Any, ...]
"""The arguments of one call, by position."""

MOST_CALLS = 2
"""Calls of one run that are looked at: further ones are mostly of the same kind."""


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


class _NotingDispatch(Dispatched):  # type: ignore[no-untyped-call]
    """Sees every operator below autograd; what is passed by name alone is not noted."""

    def __init__(self, operator: Operator, noted: list[Call]) -> None:
        super().__init__()
        self._operator, self._noted = operator, noted

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Note what the operator is given, and run it."""
        if func is self._operator.overload:
            self._noted.append(args)
        return func(*args, **given)
