"""The text of a suggested backward, and of what forward must save for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gradverify.verifier.suggesting.constants import Constants, Recording
from gradverify.verifier.suggesting.printing import WIDTH, Printer


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


class Double(Enum):
    """Whether a written backward may be differentiated again."""

    ALLOWED = "allowed"
    REFUSED = "refused"


class Form(Enum):
    """Where a backward stands."""

    METHOD = "method"
    """In a Function: a static method."""
    FUNCTION = "function"
    """Beside an operator, which `register_autograd` gives it to."""


def write(
    recording: Recording,
    found: Constants,
    parameters: Sequence[str],
    optional: Sequence[str],
    double: Double = Double.ALLOWED,
    form: Form = Form.METHOD,
) -> Written:
    """Write the backward; gradients of `optional` parameters are asked for before they are computed.

    It refuses a second derivative where it uses an intermediate value that forward saved.
    """
    recorded, cut = recording.recorded, recording.cut
    once = cut.cuts_graph or double is Double.REFUSED
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
    lines = ["@staticmethod"] if form is Form.METHOD else []
    lines += ["@once_differentiable"] if once else []
    lines += [f"def backward(ctx, {', '.join(grads)}):", *(f"    {line}" for line in body)]
    lines += [f"    {line}" for line in _return(returned)]
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
