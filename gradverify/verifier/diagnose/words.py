"""What the sentences about a cause are made of."""

from __future__ import annotations

from gradverify.model import Scalar
from gradverify.verifier.checks.wording import number
from gradverify.verifier.diagnose.cause import Cause, InBackward
from gradverify.verifier.diagnose.evidence import Pair, Pairs, sizes_seen

NEAR_ONE = 0.01
"""A factor this near to 1 is reported with all the digits that are known."""

WITH_FIX = "with the fix"
"""How a hint begins that has no more to say than the lines of the fix do."""

Options = tuple[tuple[str, Scalar], ...]
"""(name, value) pairs of a case."""


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
    if c == 0:
        return "is zero"
    if abs(c + 1) < 1e-9:
        return "has the wrong sign"
    if abs(c - 1) < NEAR_ONE:
        return f"is {c:.8g} times what it should be"
    if c > 1:
        return f"is {number(c)} times too large"
    if 0 < c < 1:
        return f"is {number(1 / c)} times too small"
    return f"is {number(c)} times what it should be"


def in_words(cause: Cause, pairs: Pairs, options: Options = ()) -> str:
    """One to four sentences: what holds, at how many points it was checked, what to try, and where.

    `options` are those of all these points, where others were verified besides.
    """
    what, advice = cause.what, cause.advice
    if cause.change is not None and cause.change.patch is not None:
        # The report shows its lines.
        what, advice = (what, "") if what else (f"{WITH_FIX}, {of_gradient(pairs[0])} is right", "")
    elif cause.change is not None:
        becomes_right = f"becomes right {with_change(cause.change)}"
        what, advice = (
            (what, f"It {becomes_right}.") if what else (f"{of_gradient(pairs[0])} {becomes_right}", "")
        )
    start = "Consistent with this: " if cause.is_weak and not what.startswith(WITH_FIX) else ""
    what = start + (what if start else what[0].upper() + what[1:])
    return f"{what} ({_checked(pairs, options if cause.what else ())}). {advice}".strip()


def with_change(change: InBackward) -> str:
    """``with `b` in place of `a` in backward (line 12 of f.py)``."""
    after = f"with `{change.after}` in place of" if change.after else "without"
    place = f" (line {change.line} of {change.file})" if change.line else ""
    return f"{after} `{change.before}` in {f'`{change.helper}`' if change.helper else 'backward'}{place}"


def _checked(pairs: Pairs, options: Options) -> str:
    sizes = sizes_seen(pairs)
    alone = f", all with `{', '.join(f'{k}={v!r}' for k, v in options)}`" if options else ""
    return f"checked at {len(pairs)} points of {'one size' if sizes == 1 else f'{sizes} sizes'}{alone}"
