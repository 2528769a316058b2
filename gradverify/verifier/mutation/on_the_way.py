"""A fault around a call: the gradient is changed on its way to an input, or from an output.

It is for a target without a backward that could be replaced: a callable, a module, a compiled operator.
Hooks on views of the arguments do it, so that what the target computes and how often it is called stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree

from gradverify.verifier.mutation.faults import Fault, Scope
from gradverify.verifier.mutation.planting import Planted, differs


def around(planted: Planted) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What turns a target's call into one with the fault; positions are those of its arguments."""

    def faulty(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
            pair: dict[int, Tensor] = {}
            watched = [_watched(value, k, planted, pair) for k, value in enumerate(arguments)]
            return _from_outputs(function(*_swapped(watched, planted)), planted)

        return call

    return faulty


def _watched(value: Any, position: int, planted: Planted, pair: dict[int, Tensor]) -> Any:  # noqa: ANN401
    """An argument through whose tensors the gradient comes back with the fault in it.

    `pair` gets the gradients of this call that change places.
    """

    def one(tensor: Any) -> Any:  # noqa: ANN401
        if not (isinstance(tensor, Tensor) and tensor.requires_grad):
            return tensor
        return _hooked(tensor, lambda gradient: _seen(gradient, position, planted, pair))

    return _pytree.tree_map(one, value)


def _seen(gradient: Tensor, position: int, planted: Planted, pair: dict[int, Tensor]) -> Tensor | None:
    """Note a gradient that reaches an input; the changed one where the fault is planted there."""
    fault = planted.fault
    planted.shapes[position] = tuple(gradient.shape)
    if fault is None:
        return None
    if fault.scope is Scope.PAIR:
        pair |= {position: gradient} if position in planted.positions else {}
        if len(pair) == 2:
            planted.changed = planted.changed or differs(*pair.values())
            pair.clear()  # the next backward of this call brings two others
        return None
    if fault.scope is Scope.GRAD_OUTPUT:
        planted.changed = planted.changed or differs(gradient, None)
        return None
    if fault.scope is Scope.GRADIENT and position not in planted.positions:
        return None
    if not gradient.numel() or not fault.fits(tuple(gradient.shape)):
        return None
    wrong = fault.change(gradient)
    changed = gradient.requires_grad if fault.of_second_order else differs(gradient, wrong)
    planted.changed = planted.changed or changed
    return wrong


def _hooked(tensor: Tensor, change: Callable[[Tensor], Tensor | None]) -> Tensor:
    """A view of a tensor, whose gradient is changed before it goes on; None leaves it."""
    view = tensor.view_as(tensor)
    view.register_hook(change)  # type: ignore[no-untyped-call]
    return view


def _swapped(arguments: Sequence[Any], planted: Planted) -> list[Any]:
    """Two arguments with their values, each of which sends its gradient to the other one."""
    swapped = list(arguments)
    if planted.fault is None or planted.fault.scope is not Scope.PAIR:
        return swapped
    one, other = planted.positions
    if max(one, other) < len(arguments) and _may_swap(arguments[one], arguments[other]):
        first, second = arguments[one], arguments[other]
        swapped[one] = first.detach() + (second - second.detach())
        swapped[other] = second.detach() + (first - first.detach())
    return swapped


def _may_swap(first: Any, second: Any) -> bool:  # noqa: ANN401
    both = isinstance(first, Tensor) and isinstance(second, Tensor)
    return both and first.requires_grad and second.requires_grad and first.shape == second.shape


def _from_outputs(result: Any, planted: Planted) -> Any:  # noqa: ANN401
    """What the target returns, with a fault in what its gradient starts from."""
    fault = planted.fault
    if fault is None or fault.scope is not Scope.GRAD_OUTPUT:
        return result

    def one(value: Any) -> Any:  # noqa: ANN401
        if not (isinstance(value, Tensor) and value.requires_grad):
            return value
        return _hooked(value, fault.change)

    return _pytree.tree_map(one, result)


def is_plantable(fault: Fault) -> bool:
    """Whether a fault can be planted on the way: what only a backward returns cannot."""
    return not fault.of_backward
