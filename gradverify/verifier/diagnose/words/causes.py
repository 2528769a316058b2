"""A cause in the user's own names: what is wrong with the gradient, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Callable

from gradverify.model import Scalar
from gradverify.verifier.checks.mismatch import KEEP_THE_DTYPE
from gradverify.verifier.checks.wording import number
from gradverify.verifier.diagnose.cause import Cause, Strength
from gradverify.verifier.diagnose.evidence import Pairs, has_other_sizes
from gradverify.verifier.diagnose.sizes import always_two, sizes_equal_to
from gradverify.verifier.diagnose.words.backward import in_backward, in_forward, with_change
from gradverify.verifier.diagnose.words.part import (
    branch,
    diagonal,
    duplicates,
    missing,
    not_summed,
    reduction,
    region,
)
from gradverify.verifier.diagnose.words.permutation import permuted, transposed
from gradverify.verifier.diagnose.words.saying import Said, of_gradient, times_too_large

Options = tuple[tuple[str, Scalar], ...]
"""(name, value) pairs of a case."""


def in_words(cause: Cause, pairs: Pairs, options: Options = ()) -> str:
    """One to four sentences: what holds, at how many points it was checked, what to try, and where.

    `options` are those of all these points, where others were verified besides.
    """
    is_change = cause.kind == "edit"
    said = _BY_KIND.get(cause.kind, _WORDS.get(cause.name, in_backward))(cause, pairs)
    start = "Consistent with this: " if cause.strength is Strength.WEAK else ""
    what = start + (said.what if start else said.what[0].upper() + said.what[1:])
    # With a change at hand, nothing is to be looked for.
    advice = said.advice
    if cause.change is not None and not is_change:
        advice = f"It becomes right {with_change(cause.change)}."
    return " ".join(filter(None, (f"{what} ({_checked(pairs, () if is_change else options)}).", advice)))


def _checked(pairs: Pairs, options: Options) -> str:
    sizes = len({pair.point.shapes for pair in pairs})
    alone = f", all with `{', '.join(f'{k}={v!r}' for k, v in options)}`" if options else ""
    return f"checked at {len(pairs)} points of {'one size' if sizes == 1 else f'{sizes} sizes'}{alone}"


def _zero(cause: Cause, pairs: Pairs) -> Said:
    del cause
    return Said(
        f"{of_gradient(pairs[0])} is zero at every entry",
        f"Is it None, or zeros, or do the terms that it is made of cancel? If none is intended, say so in "
        f"the spec: `{pairs[0].name}: {{..., requires_grad: false}}`.",
    )


def _ignored_output(cause: Cause, pairs: Pairs) -> Said:
    return Said(
        f"the part of the gradient of `{pairs[0].name}` that comes through output `{cause.other}` is missing",
        f"Backward does not use the grad_output of `{cause.other}` for `{pairs[0].name}`: add its term.",
    )


def _factor(cause: Cause, pairs: Pairs) -> Said:
    c = cause.factor or 0.0
    what = f"{of_gradient(pairs[0])} {times_too_large(c)} at every entry"
    if cause.law:
        other = _other_factor(cause, pairs)
        what += f"{other}: the factor is `{cause.law}`"
        inverse = _inverse_of_quotient(cause.law)
        advice = f"Multiply by `{inverse}`." if inverse else f"Divide by `{cause.law}`."
        if cause.law.endswith(("]", "numel()")) and " " not in cause.law:
            advice += " Is a sum taken where a mean is meant?"
        twos = always_two([pair.point.shapes for pair in pairs]) if cause.law.startswith(("2", "1/2")) else []
        if twos:
            advice += f" At these sizes the 2 may also be `{twos[0]}`."
        return Said(what, advice)
    advice = {
        -1.0: "Turn the sign.",
        2.0: "Is a term counted twice, or a 1/2 dropped?",
        0.5: "Was the 2 of a square dropped?",
    }.get(round(c, 6), f"Divide by {_constant(c)}." if abs(c) > 1 else f"Multiply by {_constant(1 / c)}.")
    point = pairs[0].point
    same = [] if has_other_sizes(pairs) else sizes_equal_to(point.shapes, abs(c))
    same += [name for name, value in point.scalars if value and abs(c) in {abs(value), abs(1 / value)}]
    if same:
        advice += f" Here it may also be {' or '.join(f'`{name}`' for name in same[:2])}."
    return Said(what, advice)


CONSTANTS = (
    ("sqrt(2)", math.sqrt(2)),
    ("sqrt(3)", math.sqrt(3)),
    ("pi", math.pi),
    ("2 * pi", 2 * math.pi),
    ("4 * pi", 4 * math.pi),
    ("sqrt(pi)", math.sqrt(math.pi)),
    ("sqrt(pi) / 2", math.sqrt(math.pi) / 2),
    ("2 / sqrt(pi)", 2 / math.sqrt(math.pi)),
    ("sqrt(2 * pi)", math.sqrt(2 * math.pi)),
    ("sqrt(pi / 2)", math.sqrt(math.pi / 2)),
    ("log(2)", math.log(2)),
    ("1 / log(2)", 1 / math.log(2)),
    ("log(10)", math.log(10)),
    ("180 / pi", 180 / math.pi),
)
"""Numbers of formulas that are known by a name."""

SAME_CONSTANT = 1e-7
"""A fitted factor is such a number to within this share: it has about nine digits."""


def _constant(c: float) -> str:
    """A number, with its name where it has one: `6.283 (2 * pi)`."""
    names = [name for name, value in CONSTANTS if abs(abs(c) - value) <= SAME_CONSTANT * value]
    sign = "-" if c < 0 else ""
    return number(c) + "".join(f" ({sign}{name})" for name in names[:1])


def _inverse_of_quotient(law: str) -> str:
    """What to multiply by instead of dividing by a quotient: `n / 2` for `2 / n`; empty for others."""
    for quotient, written in (("1 / ", "{}"), ("2 / ", "{} / 2"), ("1/2 / ", "2 * {}")):
        if law.startswith(quotient):
            return written.format(law.removeprefix(quotient))
    above, _, below = law.partition(" / ")
    return f"{below} / {above}" if below and " " not in above + below else ""


def _other_factor(cause: Cause, pairs: Pairs) -> str:
    """` (at the other size 5 times)`, where the factor follows the sizes."""
    for pair in pairs:
        entries = pair.known & (pair.true.abs() >= pair.true.abs()[pair.known].max() / 2)
        c = (pair.claimed[entries] / pair.true[entries]).median().item() if entries.any() else None
        if c is not None and cause.factor is not None and abs(c - cause.factor) > 1e-6 * abs(c):
            return f" (at another size it {times_too_large(c)})"
    return ""


def _chain(cause: Cause, pairs: Pairs) -> Said:
    inverse = cause.law.removeprefix("1 / ")
    if inverse != cause.law:
        advice = f"Multiply by `{inverse}`: this factor of the chain rule is missing."
    else:
        advice = "Divide by that: a factor of the chain rule is one too many, or another one is missing."
    return Said(f"{of_gradient(pairs[0])} is `{cause.law}` times what it should be, entry by entry", advice)


def _surrogate(cause: Cause, pairs: Pairs) -> Said:
    del cause
    name = pairs[0].name
    return Said(
        f"forward is a step function of `{name}`, whose derivative is zero, and backward is not zero: this "
        "looks like a deliberate surrogate gradient",
        "If it is one (straight-through, spiking), declare it in the spec: `surrogate: module:function` with "
        'a composite whose gradient is meant, or `surrogate: {reason: "straight-through"}`.',
    )


def _conjugate(cause: Cause, pairs: Pairs) -> Said:
    name = pairs[0].name
    turned = {"": "", "-1": ", with the wrong sign"}.get(cause.law, f", times `{cause.law}`")
    if cause.kind == "gradient":
        advice = f"Return the conjugate of what `{name}` gets now."
        return Said(
            f"{of_gradient(pairs[0])} is conjugated{turned}",
            f"Return minus the conjugate of what `{name}` gets now." if cause.law == "-1" else advice,
        )
    if cause.kind == "grad_output":
        return Said(f"{of_gradient(pairs[0])} is computed with the conjugate of grad_output{turned}")
    return Said(
        f"{of_gradient(pairs[0])} is built with a factor that lacks `.conj()`, or has one too many{turned}",
        "PyTorch wants grad_output * conj(dy/dz): conjugate what was saved, not grad_output.",
    )


def _swapped(cause: Cause, pairs: Pairs) -> Said:
    what = f"the gradient returned for `{pairs[0].name}` is the one of `{cause.other}`"
    if cause.kind == "both":
        return Said(f"{what}, and vice versa", "Exchange the two values in backward's return statement.")
    return Said(what)


def _operand(cause: Cause, pairs: Pairs) -> Said:
    ones = f"Does backward use `{cause.other}` wherever forward does?"
    advice = ones if cause.kind == "all ones" else ""
    return Said(f"{of_gradient(pairs[0])} is what it would be if `{cause.other}` were {cause.kind}", advice)


def _wrong_saved(cause: Cause, pairs: Pairs) -> Said:
    del cause
    return Said(
        f"{of_gradient(pairs[0])} is the right formula with the output `{pairs[0].output_name}` in place of "
        f"`{pairs[0].name}`",
        "Was the output saved instead of the input?",
    )


def _float32(cause: Cause, pairs: Pairs) -> Said:
    del cause
    return Said(f"{of_gradient(pairs[0])} is right to float32's digits alone", KEEP_THE_DTYPE)


_BY_KIND = {"edit": in_backward, "forward": in_forward}
"""How a place in the source is said, whatever its cause."""

_WORDS: dict[str, Callable[[Cause, Pairs], Said]] = {
    "float32-inside": _float32,
    "zero": _zero,
    "ignored-output": _ignored_output,
    "constant-factor": _factor,
    "chain-factor": _chain,
    "looks-surrogate": _surrogate,
    "conjugate": _conjugate,
    "swapped-inputs": _swapped,
    "transposed": transposed,
    "permuted": permuted,
    "not-summed-over-broadcast": not_summed,
    "region": region,
    "branch": branch,
    "diagonal-only": diagonal,
    "missing-term": missing,
    "wrong-reduction-dim": reduction,
    "duplicates": duplicates,
    "operand": _operand,
    "wrong-saved": _wrong_saved,
}
"""How each cause is said."""
