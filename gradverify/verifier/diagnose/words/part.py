"""Causes that hold in a part of a gradient, or in how its entries interact, in the user's own names."""

from __future__ import annotations

from gradverify.verifier.checks.wording import number
from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.evidence import Pair, Pairs
from gradverify.verifier.diagnose.words.saying import Said, cotangent, of_gradient, times_too_large

NARROW = 0.5
"""A threshold is guessed only between values no further apart than this: inputs are mostly within ±2."""


def not_summed(cause: Cause, pairs: Pairs) -> Said:
    """One slice stands for the sum over a dimension."""
    name, dim = pairs[0].name, cause.dim
    return Said(
        f"`{name}` takes part in every slice of `{pairs[0].output_name}` along dimension {dim}, but its "
        f"gradient comes from the {cause.kind} slice only",
        f"Sum over dimension {dim} of {cotangent(pairs[0])} instead of indexing it.",
    )


def region(cause: Cause, pairs: Pairs) -> Said:
    """Wrong in a part of a tensor."""
    name = pairs[0].name if cause.side == "input" else pairs[0].output_name
    inside = "" if cause.factor is None else f", where it {_inside(cause.factor)}"
    return Said(
        f"{of_gradient(pairs[0])} is wrong only at {_place(cause, name)}{inside}, and right everywhere else",
        _BOUNDS
        if cause.factor == 0
        else "Look at what backward multiplies by there, and at the bounds of a loop, slice or mask.",
    )


_BOUNDS = "Look at the bounds of the loop, slice or mask that backward uses there."


def _place(cause: Cause, name: str) -> str:
    if cause.dim is None:
        return f"the {cause.kind} of `{name}`"
    along = f"along dimension {cause.dim} of `{name}`"
    if cause.kind.startswith("from"):
        return f"the slices {cause.kind} {along}"
    if cause.kind.startswith("remainder"):
        return f"the {cause.kind} {along}"
    words = {
        "odd": "the odd indices",
        "even": "the even indices",
        "all but the first": "the slices behind the first one",
        "all but the last": "the slices before the last one",
    }
    return f"{words.get(cause.kind, f'the {cause.kind} slice')} {along}"


def _inside(factor: float) -> str:
    return "is zero" if factor == 0 else times_too_large(factor)


def branch(cause: Cause, pairs: Pairs) -> Said:
    """Wrong where a condition on the data holds."""
    low, high = (number(v or 0.0) for v in (cause.low, cause.high))
    inside = "" if cause.factor is None else f", where it {_inside(cause.factor)}"
    condition = cause.condition
    if " - " in condition and condition.endswith(" c") and "|" not in condition:
        condition, threshold = condition.replace(" c", " 0"), ""
    elif condition.endswith(" c"):
        threshold = f", c between {low} and {high}{_likely_threshold(cause, pairs[0])}"
    else:
        threshold = f", a just below {low} and b just above {high}"
    return Said(
        f"{of_gradient(pairs[0])} is wrong only where `{condition}`{threshold}{inside}; "
        f"{cause.right_entries} other entries are right",
        "Backward takes another branch there than forward does, or has none.",
    )


def _likely_threshold(cause: Cause, pair: Pair) -> str:
    """` (0?)` where a threshold that people write lies between the values seen."""
    if cause.low is None or cause.high is None or cause.high - cause.low > NARROW:
        return ""
    likely = {0.0, 1.0, -1.0} | {sign * value for _, value in pair.point.scalars for sign in (1, -1)}
    inside = [n for n in sorted(likely) if cause.low <= n <= cause.high]
    return f" ({number(inside[0])}?)" if len(inside) == 1 else ""


def diagonal(cause: Cause, pairs: Pairs) -> Said:
    """The entries of a dimension do not interact in backward."""
    softmax = f"Is a sum over that dimension missing, as `({cotangent(pairs[0])} * y).sum(...)` in softmax?"
    scan = "Is what comes back from the other steps left out: a state that is carried, a sum that goes on?"
    return Said(
        f"{of_gradient(pairs[0])} is right on the diagonal along dimension {cause.dim} and zero off it: the "
        f"entries of `{pairs[0].name}` interact along it, and backward drops that",
        scan if cause.kind == "sequence" else softmax,
    )


def missing(cause: Cause, pairs: Pairs) -> Said:
    """A term is missing, or has another coefficient."""
    if cause.side == "input" and cause.factor == 0:
        return Said(
            f"{of_gradient(pairs[0])} is zero at {_place(cause, pairs[0].name)}, where what comes through "
            "another output is right, and right everywhere else",
            "Is something that depends on these entries taken for a constant?",
        )
    if cause.kind == "diagonal":
        return Said(
            f"{of_gradient(pairs[0])} is right off the diagonal along dimension {cause.dim} and zero on it: "
            "the term of each entry by itself is missing"
        )
    if cause.kind == "offset":
        each = f"for each entry of `{pairs[0].output_name}`"
        named = "the same at" if cause.law == "1" else f"a multiple of `{cause.law}` at"
        return Said(
            f"{of_gradient(pairs[0])} lacks a term that is, {each}, {named.replace(' and ', '` and `')} all "
            f"entries of `{pairs[0].name}` that it depends on, or has it with another coefficient"
        )
    of_dim = f" along dimension {cause.dim}" if cause.dim is not None else ""
    if cause.law == "1":
        named = "one number for each group of entries that interact"
    else:
        named = f"made of `{cause.law.replace(' and ', '` and `')}`"
    return Said(
        f"{of_gradient(pairs[0])} lacks a term that couples entries{of_dim}, {named}, "
        "or has it with another coefficient",
        f"It has the form {_form(cause, cotangent(pairs[0]))}.",
    )


def _form(cause: Cause, g: str) -> str:
    """The missing term as it may be written; `g` is what comes back."""
    if " and " in cause.law:
        return "of two sums, as in a normalisation"
    before, inside = (f"{cause.law} * ", f"{g} * ...") if cause.law != "1" else ("", f"{g} * ...")
    if cause.side == "output":
        before, inside = "... * ", g if cause.law == "1" else f"{g} * {cause.law}"
    return f"`{before}({inside}).sum(...)`"


def reduction(cause: Cause, pairs: Pairs) -> Said:
    """Entries interact along a dimension that forward keeps apart."""
    if cause.kind == "mixed":
        return Said(
            f"backward lets entries of `{pairs[0].name}` interact along dimension {cause.dim}, which forward "
            "keeps apart",
            "Look for a sum or mean over that dimension, or over all of them, in backward.",
        )
    return Said(
        f"backward couples the entries of `{pairs[0].name}` along another dimension than forward does",
        "Look for a wrong `dim` in a sum or mean in backward.",
    )


def duplicates(cause: Cause, pairs: Pairs) -> Said:
    """Of several uses of one entry, one counts."""
    return Said(
        f"where an entry of `{pairs[0].name}` is used several times, only the {cause.kind} use counts",
        "Uses must be added up: is a term missing, or does an assignment by index stand where index_add_ or "
        "scatter_add_ is needed?",
    )
