"""A fault around a call: the gradient is changed on its way to an input, or from an output.

Hooks on views of the arguments do it, so that what the target computes and how often it is called stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from faults import Fault, Scope
from torch import Tensor
from torch.utils import _pytree

CHANGED = 1e-10
"""A gradient that moved by less than this share of its largest entry was not changed: nothing resolves it."""


@dataclass
class Planted:
    """A fault in the gradients of a call, at some positions of its arguments."""

    fault: Fault
    positions: tuple[int, ...] = ()
    changed: bool = False
    """Whether any gradient has been another one because of it."""
    started_wrong: bool = False
    """A grad_output has been another one."""

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The call of a target with the fault in its gradients."""

        def call(*arguments: Any) -> Any:
            pair: dict[int, Tensor] = {}
            watched = [self._watched(value, k, pair) for k, value in enumerate(arguments)]
            result = function(*self._swapped(watched))
            if self.fault.scope is not Scope.GRAD_OUTPUT:
                return result
            return _hooked(result, self._started)

        return call

    def _watched(self, value: Any, position: int, pair: dict[int, Tensor]) -> Any:
        """An argument through whose tensors the gradient comes back with the fault in it.

        `pair` gets the gradients of this call that change places.
        """
        return _hooked(value, lambda gradient: self._seen(gradient, position, pair))

    def _started(self, grad_output: Tensor) -> Tensor:
        """What the gradient starts from, changed."""
        wrong = self.fault.change(grad_output)
        self.started_wrong = self.started_wrong or differs(grad_output, wrong)
        return wrong

    def _seen(self, gradient: Tensor, position: int, pair: dict[int, Tensor]) -> Tensor | None:
        """The changed gradient where the fault is planted at an input that it reaches."""
        fault = self.fault
        if fault.scope is Scope.PAIR:
            pair |= {position: gradient} if position in self.positions else {}
            if len(pair) == 2:
                self.changed = self.changed or differs(*pair.values())
                pair.clear()  # the next backward of this call brings two others
            return None
        if fault.scope is Scope.GRAD_OUTPUT:
            self.changed = self.changed or (self.started_wrong and bool(gradient.detach().any()))
            return None
        chosen = fault.scope is Scope.CALL or position in self.positions
        if not chosen or not gradient.numel() or not fault.fits(tuple(gradient.shape)):
            return None
        wrong = fault.change(gradient)
        changed = gradient.requires_grad if fault.of_second_order else differs(gradient, wrong)
        self.changed = self.changed or changed
        return wrong

    def _swapped(self, arguments: Sequence[Any]) -> list[Any]:
        """Two arguments with their values, each of which sends its gradient to the other one."""
        swapped = list(arguments)
        if self.fault.scope is not Scope.PAIR:
            return swapped
        one, other = self.positions
        if max(one, other) < len(arguments) and _may_swap(arguments[one], arguments[other]):
            first, second = arguments[one], arguments[other]
            swapped[one] = first.detach() + (second - second.detach())
            swapped[other] = second.detach() + (first - first.detach())
        return swapped


def _hooked(value: Any, change: Callable[[Tensor], Tensor | None]) -> Any:
    """Views of the tensors in it, whose gradients are changed before they go on; None leaves one."""

    def one(tensor: Any) -> Any:
        if not (isinstance(tensor, Tensor) and tensor.requires_grad):
            return tensor
        view = tensor.view_as(tensor)
        view.register_hook(change)  # type: ignore[no-untyped-call]
        return view

    return _pytree.tree_map(one, value)


def _may_swap(first: Any, second: Any) -> bool:
    both = isinstance(first, Tensor) and isinstance(second, Tensor)
    return both and first.requires_grad and second.requires_grad and first.shape == second.shape


def differs(right: Tensor, wrong: Tensor) -> bool:
    """Whether a gradient has become another one, beyond what anything resolves."""
    if wrong.shape != right.shape:
        return True
    right = right.detach().nan_to_num()
    difference = (wrong.detach().nan_to_num() - right).abs()
    return bool(difference.numel()) and bool((difference > CHANGED * right.abs().max()).any())
