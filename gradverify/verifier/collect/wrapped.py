"""Another function in the place of a target's own backward, for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.autograd import Function

from gradverify.verifier.collect.discover import backward_name
from gradverify.verifier.collect.operators import Operator

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""From a backward to what is in its place."""


@contextmanager
def wrapped_backward(function: type[Function], wrap: Wrap) -> Iterator[Any]:
    """Put a wrapper in place of the class's backward while the context lasts; gives what is there."""
    name = backward_name(function)
    own = vars(function).get(name)
    wrapper = staticmethod(wrap(getattr(function, name)))
    setattr(function, name, wrapper)
    try:
        yield wrapper
    finally:
        if own is None:
            delattr(function, name)
        else:
            setattr(function, name, own)


@contextmanager
def wrapped_operator(operator: Operator, wrap: Wrap) -> Iterator[None]:
    """The same of the backward that an operator's definition holds; torch looks it up at each call.

    Raises `ValueError` for an operator whose backward is no Python function.
    """
    definition, original = operator.definition, operator.backward
    if definition is None or original is None:
        raise ValueError(f"the backward of {operator.name} cannot be replaced")
    definition._backward_fn = wrap(original)  # noqa: SLF001
    try:
        yield
    finally:
        definition._backward_fn = original  # noqa: SLF001
