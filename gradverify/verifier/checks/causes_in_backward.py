"""Causes that are one place of backward's source, in the user's words."""

from __future__ import annotations

from gradverify.verifier.checks.saying import Said, of_gradient
from gradverify.verifier.numerics.diagnosis.cause import InBackward
from gradverify.verifier.numerics.diagnosis.evidence import Pairs


def in_backward(name: str, pairs: Pairs, edited: InBackward) -> Said:
    """What makes the gradient right where it stands in backward, and what that suggests."""
    gradient = of_gradient(pairs[0])
    line = f"line {edited.line} of {edited.file}" if edited.line else "backward"
    if edited.is_order:
        what = f"with `{edited.after}` before `{edited.before}`"
    elif not edited.after:
        what = f"without `{edited.before}`"
    else:
        what = f"with `{edited.after}` in place of `{edited.before}`"
    return Said(f"{gradient} becomes right {what} in backward ({line})", _ADVICE.get(name, ""))


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
