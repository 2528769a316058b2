"""A suggested backward as a Function that can be judged: the author's forward, saving what it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gradverify.verifier.collect.forward_itself import run_forward
from gradverify.verifier.collect.operators import Operator
from gradverify.verifier.numerics.calling import returned_tensors
from gradverify.verifier.suggesting.writing import Written


def candidate(
    function: type[Function] | Operator, written: Written, parameters: Sequence[str], outputs: Sequence[str]
) -> type[Function]:
    """The author's forward with the written backward. `outputs` are forward's names of its outputs.

    The text is executed as a reader would paste it, beside `torch` and `once_differentiable` alone.
    """
    namespace: dict[str, Any] = {"torch": torch, "once_differentiable": once_differentiable}
    exec(written.backward.removeprefix("@staticmethod\n"), namespace)  # noqa: S102 - written by us a moment ago
    own: Callable[..., Any] = namespace["backward"]
    is_operator = isinstance(function, Operator)

    def forward(ctx: Any, *arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        result, told = run_forward(function, arguments)
        named = dict(zip(outputs, returned_tensors(result), strict=False))
        named |= dict(zip(parameters, arguments, strict=False))
        ctx.save_for_backward(*told.saved_tensors, *(named[name] for name in written.extra))
        if told.dirty_tensors:
            ctx.mark_dirty(*told.dirty_tensors)
        if told.non_differentiable:
            ctx.mark_non_differentiable(*told.non_differentiable)
        ctx.set_materialize_grads(told.materialize_grads)
        for name, value in told.attributes.items():
            setattr(ctx, name, value)
        for name, expression in written.attributes:
            setattr(ctx, name, eval(expression, {}, named))  # noqa: S307 - a parameter or its shape
        return result

    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # noqa: ANN401 - what was written
        returned = own(ctx, *grad_outputs)
        if not is_operator:
            return returned
        # An operator's backward answers for what is passed by position; what was left out has its default.
        gradients = returned if isinstance(returned, tuple) else (returned,)
        count = len(ctx.needs_input_grad)
        return (*gradients, *[None] * count)[:count]

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    name = function.name if isinstance(function, Operator) else function.__name__
    return type(name.rpartition("::")[2], (Function,), methods)
