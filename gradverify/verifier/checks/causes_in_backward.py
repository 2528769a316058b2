"""Causes that are one place of backward's source, in the user's words."""

from __future__ import annotations

from collections.abc import Sequence

from gradverify.verifier.checks.saying import Said, of_gradient
from gradverify.verifier.numerics.diagnosis.cause import Cause, InBackward
from gradverify.verifier.numerics.diagnosis.evidence import Pairs


def in_backward(cause: Cause, pairs: Pairs) -> Said:
    """What makes the gradient right where it stands in backward, and what that suggests."""
    gradient = of_gradient(pairs[0])
    advice = _ADVICE.get(cause.name, "") if len(cause.changes) == 1 else "Neither alone makes it right."
    return Said(f"{gradient} becomes right {_all(cause.changes)}", advice)


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


_ADVICE = {
    "chain-factor": "Is a factor of the chain rule missing there, or one too many?",
    "missing-term": "Is a term missing there, one too many, or its sign wrong?",
    "transposed": "Is a transpose missing there, or one too many?",
    "conjugate": "Is a conjugate missing there, or one too many?",
    "permuted": "Do entries go to other places there than where forward took them from?",
    "wrong-reduction-dim": "Is the sum or mean there taken as forward's derivative asks?",
    "duplicates": "Do several contributions to one entry add up there?",
    "branch": "Is the condition there the one of forward?",
    "float32-inside": "A shorter dtype stays in the numbers, also where they are longer again.",
    "wrong-saved": "Was another value saved, or taken from what was saved?",
}
