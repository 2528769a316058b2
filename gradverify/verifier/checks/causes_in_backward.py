"""Causes that are one place of backward's source, in the user's words."""

from __future__ import annotations

from collections.abc import Sequence

from gradverify.verifier.checks.saying import Said, of_gradient
from gradverify.verifier.numerics.diagnosis.cause import Cause, InBackward
from gradverify.verifier.numerics.diagnosis.evidence import Pairs


def in_backward(cause: Cause, pairs: Pairs) -> Said:
    """What makes the gradient right where it stands in backward."""
    alone = "Neither alone makes it right." if len(cause.changes) > 1 else ""
    return Said(f"{of_gradient(pairs[0])} becomes right {_all(cause.changes)}", alone)


def made_right(changes: Sequence[InBackward]) -> str:
    """The same as a sentence behind another cause; empty without a change."""
    return f"It becomes right {_all(changes)}." if changes else ""


def _all(changes: Sequence[InBackward]) -> str:
    return ", and ".join(f"{_what(change)} in {_place(change)}" for change in changes)


def _place(change: InBackward) -> str:
    function = f"`{change.helper}`" if change.helper else "backward"
    return f"{function} (line {change.line} of {change.file})" if change.line else function


def _what(change: InBackward) -> str:
    if change.is_order:
        return f"with `{change.after}` before `{change.before}`"
    if not change.after:
        return f"without `{change.before}`"
    return f"with `{change.after}` in place of `{change.before}`"
