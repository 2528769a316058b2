"""Planting a fault: a backward of the user's wrapped for a while, and whether that changed anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd import Function

from gradverify.verifier.checks.reading import Kinds, wrapped_backward, wrapped_operator
from gradverify.verifier.collect.operators import Operator
from gradverify.verifier.mutation.faults import Fault, Scope

CHANGED = 1e-10
"""A gradient that moved by less than this share of its largest entry was not changed: nothing resolves it."""


@dataclass
class Planted:
    """A fault in a backward, at some positions of its arguments."""

    fault: Fault | None
    """None only watches."""
    positions: tuple[int, ...] = ()
    changed: bool = False
    """Whether any gradient has been another one because of it."""
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By argument position: the shape of the last gradient returned for it."""


def planting(function: type[Function], planted: Planted) -> AbstractContextManager[Any]:
    """Wrap the class's backward while the context lasts."""
    return wrapped_backward(function, partial(_with_fault, planted=planted))


def planting_in_operator(operator: Operator, planted: Planted) -> AbstractContextManager[None]:
    """The same of an operator; there a list is one gradient."""
    return wrapped_operator(operator, partial(_with_fault, planted=planted, several=(tuple,)))


def _with_fault(
    original: Callable[..., Any], *, planted: Planted, several: Kinds = (tuple, list)
) -> Callable[..., Any]:
    """The wrapper. `several` are what a backward returns more than one gradient in: a list may be one."""
    fault = planted.fault

    def values(returned: Any) -> list[Any]:  # noqa: ANN401
        return list(returned) if isinstance(returned, several) else [returned]

    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # noqa: ANN401 - user code's
        if fault is not None and fault.scope is Scope.GRAD_OUTPUT:
            right = values(original(ctx, *grad_outputs))
            wrong = values(original(ctx, *map(_changed_by(fault), grad_outputs)))
        else:
            right = values(original(ctx, *grad_outputs))
            wrong = _wrong(right, planted)
        planted.shapes.update({i: tuple(g.shape) for i, g in _first_tensors(right)})
        planted.changed = planted.changed or _differ(right, wrong, fault)
        return tuple(wrong)

    return backward


def _changed_by(fault: Fault) -> Callable[[Any], Any]:
    return lambda value: fault.change(value) if isinstance(value, Tensor) else value


def _wrong(right: Sequence[Any], planted: Planted) -> list[Any]:
    fault, wrong = planted.fault, list(right)
    if fault is None:
        return wrong
    if fault.scope is Scope.PAIR:
        one, other = planted.positions
        if type(wrong[one]) is type(wrong[other]):
            wrong[one], wrong[other] = wrong[other], wrong[one]
        return wrong
    chosen = range(len(wrong)) if fault.scope is Scope.CALL else planted.positions
    for position in chosen:
        if position < len(wrong):
            wrong[position] = _changed(wrong[position], fault)
    return wrong


def _changed(value: Any, fault: Fault) -> Any:  # noqa: ANN401
    """A gradient with the fault in it; of a list of gradients, each that it fits."""
    if isinstance(value, list):
        return [_changed(item, fault) for item in value]
    return fault.change(value) if _fits(value, fault) else value


def _first_tensors(gradients: Sequence[Any]) -> Iterator[tuple[int, Tensor]]:
    """The gradients by position; the first one of a list of them."""
    for position, value in enumerate(gradients):
        items = value if isinstance(value, list) else [value]
        yield from ((position, item) for item in items[:1] if isinstance(item, Tensor))


def _fits(value: Any, fault: Fault) -> bool:  # noqa: ANN401
    return isinstance(value, Tensor) and value.numel() > 0 and fault.fits(tuple(value.shape))


def _differ(right: Sequence[Any], wrong: Sequence[Any], fault: Fault | None) -> bool:
    if fault is not None and fault.of_second_order:
        return any(g.requires_grad for _, g in _first_tensors(right))
    return any(differs(r, w) for r, w in zip(right, wrong, strict=True))


def differs(right: Any, wrong: Any) -> bool:  # noqa: ANN401
    """Whether a gradient has become another one, beyond what anything resolves."""
    if isinstance(right, list):
        return any(map(differs, right, wrong))
    if not isinstance(right, Tensor) or right is wrong:
        return False
    right = right.detach().nan_to_num()
    if not isinstance(wrong, Tensor):
        return bool(right.any())
    if wrong.shape != right.shape:
        return True
    difference = (wrong.detach().nan_to_num() - right).abs()
    return bool(difference.numel()) and bool((difference > CHANGED * right.abs().max()).any())
