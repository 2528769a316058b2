"""How many entries backward answers for, before the engine sums a gradient to the shape of its input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.autograd import Function

from gradverify.verifier.collect.discover import backward_name
from gradverify.verifier.collect.inference.shapes import State
from gradverify.verifier.collect.inference.trial import Caller, Ran, attempt


def answers_for_more(caller: Caller, state: State) -> bool:
    """Whether backward returns a gradient with more numbers than its input has.

    A compiled kernel reads past the end of what is too short, and backward gives each of its rows a gradient.
    """
    function = getattr(caller.call, "__self__", None)
    if not isinstance(function, type) or not issubclass(function, Function):
        return False
    with _returned(function) as several:
        ran = attempt(caller, state)
    given = ran.arguments if isinstance(ran, Ran) else ()
    return any(
        isinstance(g, Tensor) and isinstance(of, Tensor) and g.numel() > of.numel()
        for returned in several
        for g, of in zip(returned, given, strict=False)
    )


@contextmanager
def _returned(function: type[Function]) -> Iterator[list[tuple[Any, ...]]]:
    """What the class's own backward returns while the context lasts."""
    name = backward_name(function)
    original, own = getattr(function, name), vars(function).get(name)
    several: list[tuple[Any, ...]] = []

    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # noqa: ANN401
        returned = original(ctx, *grad_outputs)
        several.append(tuple(returned) if isinstance(returned, tuple | list) else (returned,))
        return returned

    setattr(function, name, staticmethod(backward))
    try:
        yield several
    finally:
        if own is None:
            delattr(function, name)
        else:
            setattr(function, name, own)
