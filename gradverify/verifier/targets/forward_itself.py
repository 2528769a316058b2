"""An author's own forward as a plain callable, with a stand-in for the `ctx` that autograd would give it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from torch import Tensor
from torch.autograd import Function

from gradverify.verifier.targets.discover import uses_setup_context
from gradverify.verifier.targets.operators import Operator, defaults_of_schema, parameters_of_schema


class StandInContext:
    """Takes what forward tells its `ctx`, and keeps whatever attributes it sets."""

    def __init__(self, needs_input_grad: Sequence[bool]) -> None:
        """`needs_input_grad` holds one bool for each argument of forward."""
        self.needs_input_grad = tuple(needs_input_grad)
        self.saved_tensors: tuple[Tensor | None, ...] = ()
        self.to_save: tuple[Tensor | None, ...] = ()
        self.saved_for_forward: tuple[Tensor | None, ...] = ()
        self.dirty_tensors: tuple[Tensor, ...] = ()
        self.non_differentiable: tuple[Tensor, ...] = ()
        self.materialize_grads = True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep the tensors; a later call replaces an earlier one's, as autograd's does."""
        self.saved_tensors = self.to_save = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep the tensors for `jvp`."""
        self.saved_for_forward = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Note the inputs that forward has overwritten."""
        self.dirty_tensors = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Note the outputs that have no gradient."""
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:  # noqa: FBT001 - autograd's own signature
        """Note whether undefined grad_outputs become zeros."""
        self.materialize_grads = value

    @property
    def attributes(self) -> dict[str, Any]:
        """What forward itself has put on its ctx."""
        return {name: value for name, value in vars(self).items() if name not in _OWN}


_OWN = frozenset(vars(StandInContext(())))


def run_forward(function: type[Function] | Operator, arguments: Sequence[Any]) -> tuple[Any, StandInContext]:
    """Call forward (and `setup_context`) without autograd's wrapping: its result, and its ctx.

    The arguments of an operator are by position, those that it takes by name alone behind the others.
    """
    if isinstance(function, Operator):
        return _run_operator(function, arguments)
    context = StandInContext(_needs_grad(arguments))
    forward: Callable[..., Any] = function.forward
    if not uses_setup_context(function):
        return forward(context, *arguments), context
    result = forward(*arguments)
    setup: Callable[..., Any] = function.setup_context
    setup(context, tuple(arguments), result)
    return result, context


def _needs_grad(arguments: Sequence[Any]) -> list[bool]:
    return [isinstance(a, Tensor) and a.requires_grad for a in arguments]


def _run_operator(operator: Operator, arguments: Sequence[Any]) -> tuple[Any, StandInContext]:
    """The decorated function and `setup_context`, with the defaults that torch fills in.

    Where the operator has no definition in Python, the operator itself, and a ctx that nothing is put on.
    """
    by_name = [p.name for p in parameters_of_schema(operator) if p.keyword_only]
    by_position = [p.name for p in parameters_of_schema(operator) if not p.keyword_only]
    values = dict(zip((*by_position, *by_name), arguments, strict=False))
    filled = {**defaults_of_schema(operator), **values}
    inputs, named = tuple(filled[n] for n in by_position), {n: filled[n] for n in by_name}
    context = StandInContext(_needs_grad(inputs))
    result = (operator.implementation or operator.overload)(*inputs, **named)
    if operator.setup_context is not None:
        keywords = {"keyword_only_inputs": named} if named else {}
        operator.setup_context(ctx=context, inputs=inputs, output=result, **keywords)
    return result, context


def plain_forward(function: type[Function]) -> Callable[..., Any]:
    """Forward alone as a callable of its arguments: what it computes can be differentiated by torch."""

    def forward(*arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        return run_forward(function, arguments)[0]

    return forward


def run_watched(
    function: type[Function] | Operator, arguments: Sequence[Any]
) -> tuple[Any, StandInContext, dict[str, Any]]:
    """The same, with the names that forward gave its values, as they are where it returns.

    Those of `setup_context`, which saves them, go before those of forward.
    """
    forward = function.implementation if isinstance(function, Operator) else function.forward
    codes = [getattr(inspect.unwrap(f), "__code__", None) for f in (function.setup_context, forward) if f]
    frames: dict[object, dict[str, Any]] = {}

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code in codes:
            frames[frame.f_code] = dict(frame.f_locals)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        result, context = run_forward(function, arguments)
    finally:
        sys.setprofile(before)
    names = {"output": result} if isinstance(function, Operator) and isinstance(result, Tensor) else {}
    for code in codes:
        names |= {name: value for name, value in frames.get(code, {}).items() if name not in names}
    return result, context, names
