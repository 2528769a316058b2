"""A cause in the user's own names: what is wrong with the gradient, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradverify.verifier.checks.wording import number
from gradverify.verifier.numerics.diagnosis.cause import Cause, Strength
from gradverify.verifier.numerics.diagnosis.evidence import Pair, Pairs, has_other_sizes
from gradverify.verifier.numerics.diagnosis.sizes import sizes_equal_to

NARROW = 0.5
"""A threshold is guessed only between values no further apart than this: inputs are mostly within ±2."""


@dataclass(frozen=True)
class _Said:
    """What is wrong, without a capital and a full stop, and what to try, as whole sentences."""

    what: str
    advice: str = ""


def in_words(cause: Cause, pairs: Pairs) -> str:
    """One to three sentences: what holds, at how many points it was checked, what to try."""
    said = _WORDS[cause.name](cause, pairs)
    start = "Consistent with this: " if cause.strength is Strength.WEAK else ""
    what = start + (said.what if start else said.what[0].upper() + said.what[1:])
    return f"{what} ({_checked(pairs)}). {said.advice}".strip()


def _checked(pairs: Pairs) -> str:
    sizes = len({pair.point.shapes for pair in pairs})
    return f"checked at {len(pairs)} points of {'one size' if sizes == 1 else f'{sizes} sizes'}"


def _gradient(pair: Pair) -> str:
    return f"the gradient of `{pair.name}`"


def _zero(cause: Cause, pairs: Pairs) -> _Said:
    del cause
    return _Said(
        f"{_gradient(pairs[0])} is zero at every entry",
        f"Return the gradient of `{pairs[0].name}`. If none is intended, say so in the spec: "
        f"`{pairs[0].name}: {{..., requires_grad: false}}`.",
    )


def _ignored_output(cause: Cause, pairs: Pairs) -> _Said:
    return _Said(
        f"the part of {_gradient(pairs[0])} that comes through output `{cause.other}` is missing",
        f"Backward does not use the grad_output of `{cause.other}` for `{pairs[0].name}`: add its term.",
    )


def _factor(cause: Cause, pairs: Pairs) -> _Said:
    c = cause.factor or 0.0
    what = f"{_gradient(pairs[0])} {_times(c)} at every entry"
    if cause.law:
        other = _other_factor(cause, pairs)
        what += f"{other}: the factor is `{cause.law}`"
        inverse = cause.law.removeprefix("1 / ")
        advice = f"Multiply by `{inverse}`." if inverse != cause.law else f"Divide by `{cause.law}`."
        if cause.law.endswith(("]", "numel()")) and " " not in cause.law:
            advice += " Is a sum taken where a mean is meant?"
        return _Said(what, advice)
    advice = {
        -1.0: "Turn the sign.",
        2.0: "Is a term counted twice, or a 1/2 dropped?",
        0.5: "Was the 2 of a square dropped?",
    }.get(round(c, 6), f"Divide by {number(c)}." if abs(c) > 1 else f"Multiply by {number(1 / c)}.")
    same = [] if has_other_sizes(pairs) else sizes_equal_to(pairs[0].point.shapes, abs(c))
    if same:
        advice += f" At this size it may also be {' or '.join(f'`{name}`' for name in same[:2])}."
    return _Said(what, advice)


def _times(c: float) -> str:
    if abs(c + 1) < 1e-9:
        return "has the wrong sign"
    if c > 1:
        return f"is {number(c)} times too large"
    if 0 < c < 1:
        return f"is {number(1 / c)} times too small"
    return f"is {number(c)} times what it should be"


def _other_factor(cause: Cause, pairs: Pairs) -> str:
    """` (at the other size 5 times)`, where the factor follows the sizes."""
    for pair in pairs:
        entries = pair.known & (pair.true.abs() >= pair.true.abs()[pair.known].max() / 2)
        c = (pair.claimed[entries] / pair.true[entries]).median().item() if entries.any() else None
        if c is not None and cause.factor is not None and abs(c - cause.factor) > 1e-6 * abs(c):
            return f" (at another size it {_times(c)})"
    return ""


def _chain(cause: Cause, pairs: Pairs) -> _Said:
    if cause.kind in {"slices", "points"}:
        return _unknown_factors(cause, pairs)
    where = " at every entry" if cause.kind == "scalar" else ", entry by entry"
    inverse = cause.law.removeprefix("1 / ")
    if inverse != cause.law:
        advice = f"Multiply by `{inverse}`: this factor of the chain rule is missing."
    else:
        advice = "Divide by that: a factor of the chain rule is one too many, or another one is missing."
    return _Said(f"{_gradient(pairs[0])} is `{cause.law}` times what it should be{where}", advice)


def _unknown_factors(cause: Cause, pairs: Pairs) -> _Said:
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
    return _Said(
        f"{_gradient(pairs[0])} is off {where}",
        "A factor that depends on the data is missing or one too many: a norm, a count, a derivative of what "
        "comes before.",
    )


def _surrogate(cause: Cause, pairs: Pairs) -> _Said:
    del cause
    name = pairs[0].name
    return _Said(
        f"forward is a step function of `{name}`, whose derivative is zero, and backward is not zero: this "
        "looks like a deliberate surrogate gradient",
        "If it is one (straight-through, spiking), declare it in the spec: `surrogate: module:function` with "
        'a composite whose gradient is meant, or `surrogate: {reason: "straight-through"}`.',
    )


def _conjugate(cause: Cause, pairs: Pairs) -> _Said:
    name = pairs[0].name
    if cause.kind == "gradient":
        return _Said(
            f"{_gradient(pairs[0])} is conjugated", f"Return the conjugate of what `{name}` gets now."
        )
    if cause.kind == "grad_output":
        return _Said(f"{_gradient(pairs[0])} is computed with the conjugate of grad_output")
    return _Said(
        f"{_gradient(pairs[0])} is built with a factor that lacks `.conj()`, or has one too many",
        "PyTorch wants grad_output * conj(dy/dz): conjugate what was saved, not grad_output.",
    )


def _swapped(cause: Cause, pairs: Pairs) -> _Said:
    what = f"the gradient returned for `{pairs[0].name}` is the one of `{cause.other}`"
    if cause.kind == "both":
        return _Said(f"{what}, and vice versa", "Exchange the two values in backward's return statement.")
    return _Said(what)


def _whose(cause: Cause, pairs: Pairs) -> str:
    return _gradient(pairs[0]) if cause.side == "input" else "grad_output"


def _dims(cause: Cause) -> str:
    if cause.dim is None:
        return ""
    return f" {cause.dim}" if cause.other_dim is None else f"s {cause.dim} and {cause.other_dim}"


def _transposed(cause: Cause, pairs: Pairs) -> _Said:
    if cause.kind == "jvp":
        return _Said(
            f"{_gradient(pairs[0])} is J g where Jᵀ g is needed", "Transpose the linear map in backward."
        )
    how = (
        "with its dimensions reversed"
        if cause.kind == "reversed"
        else f"with dimension{_dims(cause)} exchanged"
    )
    if cause.side == "input":
        what = f"{_gradient(pairs[0])} has the right numbers in wrong places: it is right {how} and reshaped"
    else:
        what = f"{_gradient(pairs[0])} is right for a grad_output {how} and reshaped"
    return _Said(what, "A reshape or view stands where a transpose is meant, or one of them is missing.")


def _permuted(cause: Cause, pairs: Pairs) -> _Said:
    along = f"{cause.kind} along dimension{_dims(cause)}"
    if cause.side == "input":
        return _Said(f"{_gradient(pairs[0])} has the right numbers in the wrong places: it is {along}")
    return _Said(f"{_gradient(pairs[0])} is right for a grad_output that is {along}")


def _summed(cause: Cause, pairs: Pairs) -> _Said:
    how = f"grad_output.{cause.kind}({'' if cause.dim is None else cause.dim})"
    return _Said(
        f"backward computes {_gradient(pairs[0])} with `{how}` in place of grad_output",
        "Multiply with grad_output itself, entry by entry.",
    )


def _not_summed(cause: Cause, pairs: Pairs) -> _Said:
    name, dim = pairs[0].name, cause.dim
    return _Said(
        f"`{name}` takes part in every slice of `{pairs[0].output_name}` along dimension {dim}, but its "
        f"gradient comes from the {cause.kind} slice only",
        f"Sum over dimension {dim} of grad_output instead of indexing it.",
    )


def _region(cause: Cause, pairs: Pairs) -> _Said:
    name = pairs[0].name if cause.side == "input" else pairs[0].output_name
    inside = "" if cause.factor is None else f", where it {_inside(cause.factor)}"
    return _Said(
        f"{_gradient(pairs[0])} is wrong only at {_place(cause, name)}{inside}, and right everywhere else",
        "Look at the bounds of the loop, slice or mask that backward uses there.",
    )


def _place(cause: Cause, name: str) -> str:
    if cause.dim is None:
        return f"the {cause.kind} of `{name}`"
    along = f"along dimension {cause.dim} of `{name}`"
    if cause.kind.startswith("index"):
        return f"{cause.kind} {along}"
    if cause.kind.startswith("remainder"):
        return f"the {cause.kind} {along}"
    words = {
        "first two": "the first two slices",
        "last two": "the last two slices",
        "odd": "the odd indices",
        "even": "the even indices",
        "ends": "both ends",
        "inner": "all but the first and the last slice",
        "first": "the first slice",
        "last": "the last slice",
    }
    return f"{words.get(cause.kind, cause.kind + ' slice')} {along}"


def _inside(factor: float) -> str:
    return "is zero" if factor == 0 else _times(factor)


def _branch(cause: Cause, pairs: Pairs) -> _Said:
    low, high = (number(v or 0.0) for v in (cause.low, cause.high))
    inside = "" if cause.factor is None else f", where it {_inside(cause.factor)}"
    condition = cause.condition
    if " - " in condition and condition.endswith(" c") and "|" not in condition:
        condition, threshold = condition.replace(" c", " 0"), ""
    elif condition.endswith(" c"):
        threshold = f", c between {low} and {high}{_likely_threshold(cause, pairs[0])}"
    else:
        threshold = f", a just below {low} and b just above {high}"
    return _Said(
        f"{_gradient(pairs[0])} is wrong only where `{condition}`{threshold}{inside}; {cause.right_entries} "
        "other entries are right",
        "Backward takes another branch there than forward does, or has none.",
    )


def _likely_threshold(cause: Cause, pair: Pair) -> str:
    """` (0?)` where a threshold that people write lies between the values seen."""
    if cause.low is None or cause.high is None or cause.high - cause.low > NARROW:
        return ""
    likely = {0.0, 1.0, -1.0} | {sign * value for _, value in pair.point.scalars for sign in (1, -1)}
    inside = [n for n in sorted(likely) if cause.low <= n <= cause.high]
    return f" ({number(inside[0])}?)" if len(inside) == 1 else ""


def _diagonal(cause: Cause, pairs: Pairs) -> _Said:
    return _Said(
        f"{_gradient(pairs[0])} is right on the diagonal along dimension {cause.dim} and zero off it: the "
        f"entries of `{pairs[0].name}` interact along it, and backward drops that",
        "Is a sum over that dimension missing, as `(grad_output * y).sum(...)` in softmax?",
    )


def _missing(cause: Cause, pairs: Pairs) -> _Said:
    if cause.kind == "diagonal":
        return _Said(
            f"{_gradient(pairs[0])} is right off the diagonal along dimension {cause.dim} and zero on it: "
            "the term of each entry by itself is missing"
        )
    if cause.kind == "offset":
        named = (
            "the same at every entry" if cause.law == "1" else f"a multiple of `{cause.law}` at every entry"
        )
        return _Said(
            f"{_gradient(pairs[0])} lacks a term that is {named.replace(' and ', '` and `')}, or has it with "
            "another coefficient"
        )
    of_dim = f" along dimension {cause.dim}" if cause.dim is not None else ""
    if cause.law == "1":
        named = "one number for each group of entries that interact"
    else:
        named = f"made of `{cause.law.replace(' and ', '` and `')}`"
    return _Said(
        f"{_gradient(pairs[0])} lacks a term that couples entries{of_dim}, {named}, "
        "or has it with another coefficient",
        f"It has the form {_form(cause)}.",
    )


def _form(cause: Cause) -> str:
    """The missing term as it may be written."""
    if " and " in cause.law:
        return "of two sums, as in a normalisation"
    before, inside = (
        (f"{cause.law} * ", "grad_output * ...") if cause.law != "1" else ("", "grad_output * ...")
    )
    if cause.side == "output":
        before, inside = "... * ", "grad_output" if cause.law == "1" else f"grad_output * {cause.law}"
    return f"`{before}({inside}).sum(...)`"


def _operand(cause: Cause, pairs: Pairs) -> _Said:
    advice = f"Multiply by `{cause.other}`." if cause.kind == "all ones" else ""
    return _Said(f"{_gradient(pairs[0])} is what it would be if `{cause.other}` were {cause.kind}", advice)


def _wrong_saved(cause: Cause, pairs: Pairs) -> _Said:
    del cause
    return _Said(
        f"{_gradient(pairs[0])} is the right formula with the output `{pairs[0].output_name}` in place of "
        f"`{pairs[0].name}`",
        "Was the output saved instead of the input?",
    )


def _reduction(cause: Cause, pairs: Pairs) -> _Said:
    if cause.kind == "mixed":
        return _Said(
            f"backward lets entries of `{pairs[0].name}` interact along dimension {cause.dim}, which forward "
            "keeps apart",
            "Look for a sum or mean over that dimension, or over all of them, in backward.",
        )
    return _Said(
        f"backward couples the entries of `{pairs[0].name}` along another dimension than forward does",
        "Look for a wrong `dim` in a sum or mean in backward.",
    )


def _duplicates(cause: Cause, pairs: Pairs) -> _Said:
    return _Said(
        f"where an entry of `{pairs[0].name}` is used several times, only the {cause.kind} use counts",
        "Add the uses up: index_add_ or scatter_add_, not assignment by index.",
    )


_WORDS: dict[str, Callable[[Cause, Pairs], _Said]] = {
    "zero": _zero,
    "ignored-output": _ignored_output,
    "constant-factor": _factor,
    "chain-factor": _chain,
    "looks-surrogate": _surrogate,
    "conjugate": _conjugate,
    "swapped-inputs": _swapped,
    "transposed": _transposed,
    "permuted": _permuted,
    "grad-output-summed": _summed,
    "not-summed-over-broadcast": _not_summed,
    "region": _region,
    "branch": _branch,
    "diagonal-only": _diagonal,
    "missing-term": _missing,
    "wrong-reduction-dim": _reduction,
    "duplicates": _duplicates,
    "operand": _operand,
    "wrong-saved": _wrong_saved,
}
"""How each cause is said."""
