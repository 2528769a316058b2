"""Points at which nothing can be judged, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gradverify.model import CasePoint, Finding, RaisedError
from gradverify.rules import rule
from gradverify.verifier.inputs.arguments import Argument, shown_inputs
from gradverify.verifier.lacking import lacking


@dataclass(frozen=True)
class NoSample:
    """Nothing can be judged at this point: why, or that the target declares no gradient."""

    findings: tuple[Finding, ...] = ()
    no_gradient: bool = False
    raised: RaisedError | None = None


def not_built(error: RaisedError, where: CasePoint) -> NoSample:
    """The function that builds the inputs raised."""
    finding = Finding(
        "GV001",
        rule("GV001").severity,
        f"the inputs could not be built: {error.type}: {error.message}",
        hint="Mend the function that builds them: `arguments:` is called as f(generator, device, dtype, "
        "**sizes), `make:` as f(generator, device, dtype, shape).",
        case=where,
        raised=error,
    )
    return NoSample((finding,), raised=error)


def forward_raised(
    arguments: tuple[Argument, ...], error: RaisedError, where: CasePoint, *, inferred: bool
) -> NoSample:
    """Forward raised, on inputs that a spec declares valid or on `inferred` ones."""
    devices = [a.value.device.type for a in arguments if isinstance(a.value, Tensor)]
    missing = lacking(error, devices[0] if devices else "cpu")
    if missing:
        code, message = "GV001", f"forward raised {error.type}: {first_line(error.message)}"
        hint = missing
    elif inferred:
        code, message = "GV001", f"forward raised {error.type} on inferred inputs"
        hint = "Write a spec that gives this Function valid inputs."
    else:
        code, message = "GV002", f"forward raised {error.type}: {first_line(error.message)}"
        hint = "If these inputs are not valid, narrow `shape`, `range` or `domain` in the spec."
        if any(isinstance(a.value, Tensor) and not a.value.numel() for a in arguments):
            code = "GV412"
            message = f"forward raised {error.type} for an empty input: {first_line(error.message)}"
            hint = "An empty batch is an ordinary input. If size 0 is not valid, leave it out of the spec."
    finding = Finding(
        code,
        rule(code).severity,
        message,
        hint=hint,
        case=where,
        raised=error,
        shown_inputs=shown_inputs(arguments),
    )
    return NoSample((finding,), raised=error)


def all_constant(where: CasePoint) -> NoSample:
    """Nothing was asked of backward: that is no statement of the author's that there is no gradient."""
    finding = Finding(
        "GV001",
        rule("GV001").severity,
        "none of the inputs requires grad, so backward is never called",
        hint="Leave out `requires_grad: false` or `mutated: true` on an input that is differentiated, or "
        "write `skip:` with the reason.",
        case=where,
    )
    return NoSample((finding,))


def nothing_chosen(outputs: Sequence[int], returned: int, where: CasePoint) -> NoSample:
    """`outputs:` of the spec names none that is differentiable."""
    chosen = ", ".join(map(str, outputs))
    finding = Finding(
        "GV001",
        rule("GV001").severity,
        f"none of the chosen outputs ({chosen}) is differentiable: forward returned {returned} in all",
        hint="`outputs:` counts positions from 0, as forward returned them.",
        case=where,
    )
    return NoSample((finding,))


def unsupported(kind: str, where: CasePoint) -> NoSample:
    """Forward returns a tensor with rules of its own, which nothing here knows, or one of 8 bits."""
    if kind.startswith("torch."):
        finding = Finding(
            "GV001",
            rule("GV001").severity,
            f"forward returns {kind}: numbers of 8 bits are not supported",
            hint="Name a function in `target:` that returns what is computed from them in more digits.",
            case=where,
        )
        return NoSample((finding,))
    finding = Finding(
        "GV001",
        rule("GV001").severity,
        f"forward returns `{kind}`, a subclass of Tensor with operations of its own: that is not supported",
        hint="Name a function in `target:` that returns plain tensors: `y.as_subclass(torch.Tensor)`.",
        case=where,
    )
    return NoSample((finding,))


def returns_nothing(name: str, where: CasePoint) -> NoSample:
    """Forward returns no tensor at all."""
    finding = Finding(
        "GV001",
        rule("GV001").severity,
        f"`{name}` returns no tensor: there is nothing to differentiate",
        hint="Name a function in `target:` that returns the tensors to be verified.",
        case=where,
    )
    return NoSample((finding,))


def first_line(text: str) -> str:
    """The first line of a message, shortened."""
    line = text.strip().splitlines()[0] if text.strip() else "(no message)"
    return line if len(line) <= 160 else line[:157] + "..."
