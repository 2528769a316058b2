"""A cause in the user's own names: what is wrong with the gradient, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Callable

from gradverify.verifier.checks.causes_in_backward import in_backward, made_right
from gradverify.verifier.checks.causes_in_forward import in_forward
from gradverify.verifier.checks.causes_in_order import permuted, transposed
from gradverify.verifier.checks.causes_in_part import (
    branch,
    diagonal,
    duplicates,
    missing,
    not_summed,
    reduction,
    region,
)
from gradverify.verifier.checks.mismatch import KEEP_THE_DTYPE
from gradverify.verifier.checks.saying import Said, of_gradient, times_too_large
from gradverify.verifier.checks.wording import number
from gradverify.verifier.numerics.diagnosis.cause import Cause, Strength
from gradverify.verifier.numerics.diagnosis.evidence import Pairs, has_other_sizes
from gradverify.verifier.numerics.diagnosis.sizes import always_two, sizes_equal_to


def in_words(cause: Cause, pairs: Pairs) -> str:
    """One to four sentences: what holds, at how many points it was checked, what to try, and where."""
    where = cause.where
    is_change = cause.kind == "edit"
    if is_change:
        said = in_backward(cause, pairs)
    else:
        said = _WORDS[cause.name](cause, pairs) if where is None else in_forward(cause, pairs, where)
    start = "Consistent with this: " if cause.strength is Strength.WEAK else ""
    what = start + (said.what if start else said.what[0].upper() + said.what[1:])
    # With a change at hand, nothing is to be looked for.
    advice = said.advice if is_change or not cause.changes else made_right(cause.changes)
    return " ".join(filter(None, (f"{what} ({_checked(pairs)}).", advice)))


def _checked(pairs: Pairs) -> str:
    sizes = len({pair.point.shapes for pair in pairs})
    return f"checked at {len(pairs)} points of {'one size' if sizes == 1 else f'{sizes} sizes'}"


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
    if cause.kind == "imaginary" and cause.side == "output":
        return Said(
            f"{of_gradient(pairs[0])} is what it would be for a grad_output times `{cause.law}`",
            "Is `.imag` taken where `.real` is meant, or is a factor `1j` forgotten or one too many?",
        )
    if cause.kind == "imaginary":
        what = f"{of_gradient(pairs[0])} is `{cause.law}` times what it should be at every entry"
        return Said(what, f"Multiply by `{'-1j' if cause.law == '1j' else '1j'}`.")
    c = cause.factor or 0.0
    what = f"{of_gradient(pairs[0])} {times_too_large(c)} at every entry"
    if cause.kind == "options":
        if not cause.law:
            return Said(f"{what} here, and not by that factor at other options", "")
        other = _other_factor(cause, pairs)
        return Said(
            f"{what}{other}: the factor is `{cause.law}` at these options, and another one at others", ""
        )
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
    same = [] if has_other_sizes(pairs) else sizes_equal_to(pairs[0].point.shapes, abs(c))
    if same:
        advice += f" At this size it may also be {' or '.join(f'`{name}`' for name in same[:2])}."
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
    if cause.kind in {"slices", "points"}:
        return _unknown_factors(cause, pairs)
    where = " at every entry" if cause.kind == "scalar" else ", entry by entry"
    inverse = cause.law.removeprefix("1 / ")
    if inverse != cause.law:
        advice = f"Multiply by `{inverse}`: this factor of the chain rule is missing."
    else:
        advice = "Divide by that: a factor of the chain rule is one too many, or another one is missing."
    return Said(f"{of_gradient(pairs[0])} is `{cause.law}` times what it should be{where}", advice)


def _unknown_factors(cause: Cause, pairs: Pairs) -> Said:
    if cause.kind == "points":
        where = f"by one number at all its entries, another at every draw ({cause.law})"
    else:
        name = pairs[0].name if cause.side == "input" else pairs[0].output_name
        each = (
            f"each entry of `{name}`"
            if cause.dim is None
            else f"each slice of `{name}` along dimension {cause.dim}"
        )
        where = f"by one factor for {each} ({cause.law})"
    return Said(
        f"{of_gradient(pairs[0])} is off {where}",
        "A factor is missing or one too many there (a norm, a count, a derivative of what comes before), or "
        "backward computes one from other values than forward has.",
    )


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


def _summed(cause: Cause, pairs: Pairs) -> Said:
    how = f"grad_output.{cause.kind}({'' if cause.dim is None else cause.dim})"
    return Said(
        f"backward computes {of_gradient(pairs[0])} with `{how}` in place of grad_output",
        "Multiply with grad_output itself, entry by entry.",
    )


def _operand(cause: Cause, pairs: Pairs) -> Said:
    if cause.kind in {"replaced", "exchanged", "flipped", "flag"}:
        return _other_constant(cause, pairs)
    ones = f"Does backward use `{cause.other}` wherever forward does?"
    advice = ones if cause.kind == "all ones" else ""
    return Said(f"{of_gradient(pairs[0])} is what it would be if `{cause.other}` were {cause.kind}", advice)


def _other_constant(cause: Cause, pairs: Pairs) -> Said:
    one, other = f"`{cause.other}`", f"`{cause.law}`"
    if cause.kind == "flag":
        return Said(
            f"{of_gradient(pairs[0])} is what it would be with `{cause.other}={cause.law}`",
            f"Does backward look at {one}?",
        )
    if cause.kind == "flipped":
        return Said(
            f"{of_gradient(pairs[0])} is what it would be with {one} flipped along dimension {cause.law}",
            f"Look at which entries or rows of {one} backward takes, and in which order.",
        )
    instead = f"{other} in place of {one}" if cause.kind == "replaced" else f"{one} and {other} exchanged"
    return Said(
        f"{of_gradient(pairs[0])} is what it would be with {instead}",
        "Look at the order in which they are saved and unpacked, and at which of them backward uses.",
    )


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
    "grad-output-summed": _summed,
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
