"""What the sentences about a cause are made of."""

from __future__ import annotations

from dataclasses import dataclass

from gradverify.verifier.checks.wording import number
from gradverify.verifier.diagnose.evidence import Pair

NEAR_ONE = 0.01
"""A factor this near to 1 is told with all the digits that are known."""


@dataclass(frozen=True)
class Said:
    """What is wrong, without a capital and a full stop, and what to try, as whole sentences."""

    what: str
    advice: str = ""


def of_gradient(pair: Pair) -> str:
    """Whose gradient a sentence is about."""
    if pair.point.order > 1:
        of = f"`{pair.output_name}` (the gradient of `{pair.output_name[2:]}`)"
        return f"the derivative of {of} by `{pair.name}`"
    # What is true of one output would spoil the gradient through the others.
    through = f" through output `{pair.output_name}`" if len(pair.point.outputs.blocks) > 1 else ""
    return f"the gradient of `{pair.name}`{through}"


def cotangent(pair: Pair) -> str:
    """What comes back: `grad_output`, and of second order what comes back to the gradient."""
    return "grad_output" if pair.point.order == 1 else f"grad_{pair.output_name}"


def times_too_large(c: float) -> str:
    """What a factor of claimed / true means."""
    if abs(c + 1) < 1e-9:
        return "has the wrong sign"
    if abs(c - 1) < NEAR_ONE:
        return f"is {c:.8g} times what it should be"
    if c > 1:
        return f"is {number(c)} times too large"
    if 0 < c < 1:
        return f"is {number(1 / c)} times too small"
    return f"is {number(c)} times what it should be"
