"""Causes that are one place of backward's or of forward's source, in the user's words."""

from __future__ import annotations

from gradverify.verifier.diagnose.cause import Cause, InBackward
from gradverify.verifier.diagnose.evidence import Pairs
from gradverify.verifier.diagnose.words.saying import Said, of_gradient


def in_backward(cause: Cause, pairs: Pairs) -> Said:
    """What makes the gradient right where it stands in backward."""
    assert cause.change is not None  # noqa: S101
    return Said(f"{of_gradient(pairs[0])} becomes right {with_change(cause.change)}")


def with_change(change: InBackward) -> str:
    """``with `b` in place of `a` in backward (line 12 of f.py)``."""
    function = f"`{change.helper}`" if change.helper else "backward"
    place = f"{function} (line {change.line} of {change.file})" if change.line else function
    return f"{_what(change)} in {place}"


def _what(change: InBackward) -> str:
    if change.is_order:
        return f"with `{change.after}` before `{change.before}`"
    if not change.after:
        return f"without `{change.before}`"
    return f"with `{change.after}` in place of `{change.before}`"


def in_forward(cause: Cause, pairs: Pairs) -> Said:
    """What backward takes for a constant in forward, or differentiates otherwise."""
    gradient = of_gradient(pairs[0])
    if not cause.law:
        return Said(
            f"{gradient} is what it would be if {cause.other} were a constant",
            "Add the term that comes through it.",
        )
    return Said(
        f"{gradient} is what it would be with the derivative of `{cause.law}` in place of that of "
        f"{cause.other}",
        "Is a factor of the chain rule missing there?",
    )
