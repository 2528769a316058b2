"""The text of a suggested backward, what forward must save for it, and both as a Function to be judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gradverify.verifier.collect.forward_itself import run_forward
from gradverify.verifier.collect.operators import Operator
from gradverify.verifier.numerics.calling import returned_tensors
from gradverify.verifier.suggest.constants import Constants, Recording
from gradverify.verifier.suggest.printing import WIDTH, Printer

ONCE = "@once_differentiable"
"""The decorator of a backward that refuses to be differentiated again."""


@dataclass(frozen=True)
class Written:
    """A backward as source text, and what forward must do for it."""

    backward: str
    """The method with its decorators, not indented."""
    saved: tuple[str, ...]
    """Names of the tensors it unpacks, in order: what forward must have saved."""
    extra: tuple[str, ...]
    """Those of them that forward does not save yet."""
    attributes: tuple[tuple[str, str], ...]
    """(attribute, expression) pairs that forward must put on its ctx."""


def write(
    recording: Recording,
    found: Constants,
    parameters: Sequence[str],
    optional: Sequence[str],
    decorators: Sequence[str],
) -> Written:
    """Write the backward; gradients of `optional` parameters are asked for before they are computed.

    It refuses a second derivative where it uses an intermediate value that forward saved.
    """
    recorded, cut = recording.recorded, recording.cut
    printer = Printer(recording, found.texts)
    saved = tuple(name for name, _ in recorded.saved) + cut.extra
    measured = {name for name in saved for text in found.texts.values() if f"{name}." in text}
    body = _unpacking(saved, {*cut.used, *cut.extra, *measured})
    grads = [node.args[0] for node in recorded.grad_outputs]
    if not recorded.materializes and len(grads) == 1:
        body = [f"if {grads[0]} is None:", f"    return {', '.join(['None'] * len(parameters))}", *body]
    body += printer.statements()
    returned = printer.returned(list(parameters))
    for k, name in enumerate(parameters):
        if name in optional and returned[k] != "None":
            returned[k] = _asked_for(k, name, returned[k], body)
    once = [ONCE] if cut.cuts_graph and ONCE not in decorators else []
    head = [*decorators, *once, f"def backward(ctx, {', '.join(grads)}):"]
    lines = [*head, *(f"    {line}" for line in (*body, *_return(returned)))]
    return Written("\n".join(lines), saved, cut.extra, found.extra_attributes)


def _asked_for(position: int, name: str, text: str, body: list[str]) -> str:
    """The gradient of an optional parameter, which autograd refuses where it was left out."""
    condition = f"if ctx.needs_input_grad[{position}] else None"
    assignment = f"{text} = "
    if body and body[-1].startswith(assignment) and text == f"grad_{name}":
        body[-1] = f"{body[-1]} {condition}"
        return text
    return f"{text} {condition}"


def _unpacking(saved: Sequence[str], used: set[str]) -> list[str]:
    if not used:
        return []
    names = [name if name in used else f"_{name.lstrip('_')}" for name in saved]
    return [
        f"({names[0]},) = ctx.saved_tensors" if len(names) == 1 else f"{', '.join(names)} = ctx.saved_tensors"
    ]


def _return(parts: Sequence[str]) -> list[str]:
    together = f"return {', '.join(parts)}"
    if len(together) <= WIDTH or len(parts) == 1:
        return [together]
    return ["return (", *(f"    {part}," for part in parts), ")"]


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
        result, reported = run_forward(function, arguments)
        named = dict(zip(outputs, returned_tensors(result), strict=False))
        named |= dict(zip(parameters, arguments, strict=False))
        ctx.save_for_backward(*reported.saved_tensors, *(named[name] for name in written.extra))
        if reported.dirty_tensors:
            ctx.mark_dirty(*reported.dirty_tensors)
        if reported.non_differentiable:
            ctx.mark_non_differentiable(*reported.non_differentiable)
        ctx.set_materialize_grads(reported.materialize_grads)
        for name, value in reported.attributes.items():
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
