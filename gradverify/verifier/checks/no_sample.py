"""Points at which nothing can be judged, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradverify.model import CasePoint, Finding, RaisedError
from gradverify.rules import rule
from gradverify.verifier.inputs.arguments import Argument, shown_inputs
from gradverify.verifier.lacking import lacking, needs_the_cpu

NOT_BUILT = (
    "the inputs could not be built: {said}",
    "Correct what builds them: `arguments:` is f(generator, device, dtype, **sizes), `make:` f(..., shape).",
)
ALL_CONSTANT = (
    "none of the inputs requires grad, so backward is never called",
    "Leave out `requires_grad: false` or `mutated: true` on a differentiated input, or write `skip:`.",
)
NOTHING_CHOSEN = (
    "none of the chosen outputs ({said}) is differentiable",
    "`outputs:` counts positions from 0, as forward returned them.",
)
EIGHT_BITS = (
    "forward returns {said}: numbers of 8 bits are not supported",
    "Name a function in `target:` that returns what is computed from them in more digits.",
)
SUBCLASS = (
    "forward returns `{said}`, a subclass of Tensor with operations of its own: that is not supported",
    "Name a function in `target:` that returns plain tensors: `y.as_subclass(torch.Tensor)`.",
)
RETURNS_NOTHING = (
    "`{said}` returns no tensor: there is nothing to differentiate",
    "Name a function in `target:` that returns the tensors to be verified.",
)
"""Message and hint of GV001."""


@dataclass(frozen=True)
class NoSample:
    """Nothing can be judged at this point: why, or that the target declares no gradient."""

    findings: tuple[Finding, ...] = ()
    no_gradient: bool = False
    raised: RaisedError | None = None


def unusable(reason: tuple[str, str], where: CasePoint, said: str = "") -> NoSample:
    """GV001 for one of the reasons above."""
    return NoSample((_finding("GV001", reason[0].format(said=said), reason[1], where),))


def not_built(error: RaisedError, where: CasePoint) -> NoSample:
    """The function that builds the inputs raised."""
    message = NOT_BUILT[0].format(said=f"{error.type}: {error.message}")
    return NoSample((_finding("GV001", message, NOT_BUILT[1], where, raised=error),), raised=error)


def forward_raised(
    arguments: tuple[Argument, ...], error: RaisedError, where: CasePoint, *, inferred: bool
) -> NoSample:
    """Forward raised, on inputs that a spec declares valid or on `inferred` ones."""
    tensors: Sequence[Tensor] = [a.value for a in arguments if isinstance(a.value, Tensor)]
    device = tensors[0].device.type if tensors else "cpu"
    missing = lacking(error, device) or needs_the_cpu(error, device)
    after = f" (after {first_line(error.after)})" if error.after else ""
    code, message = "GV001", f"forward raised {error.type}: {first_line(error.message)}{after}"
    if missing:
        hint = missing
    elif inferred:
        message = f"on inferred inputs {message}"
        hint = "Write a spec that gives this Function valid inputs."
    elif not all(t.numel() for t in tensors):
        code, message = "GV412", message.replace(":", " for an empty input:", 1)
        hint = "An empty batch is an ordinary input. If size 0 is not valid, leave it out of the spec."
    else:
        code = "GV002"
        hint = "If these inputs are not valid, narrow `shape`, `range` or `domain` in the spec."
    found = _finding(code, message, hint, where, raised=error, shown_inputs=shown_inputs(arguments))
    return NoSample((found,), raised=error)


def _finding(code: str, message: str, hint: str, where: CasePoint, **fields: Any) -> Finding:  # noqa: ANN401
    return Finding(code, rule(code).severity, message, hint=hint, case=where, **fields)


def first_line(text: str) -> str:
    """The first line of a message, shortened."""
    line = text.strip().splitlines()[0] if text.strip() else "(no message)"
    return line if len(line) <= 160 else line[:157] + "..."
