"""The order of the hypotheses: simple ones first, and the first that holds everywhere is the cause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gradverify.verifier.numerics.diagnosis.branch import branch
from gradverify.verifier.numerics.diagnosis.cause import Cause, Strength
from gradverify.verifier.numerics.diagnosis.chain import chain_factor, slice_factor
from gradverify.verifier.numerics.diagnosis.complex_parts import conjugate, imaginary_factor, part_alone
from gradverify.verifier.numerics.diagnosis.constants import other_constant, other_flag
from gradverify.verifier.numerics.diagnosis.cotangent import summed_cotangent
from gradverify.verifier.numerics.diagnosis.edits.pairs import two_edits
from gradverify.verifier.numerics.diagnosis.edits.search import one_edit, one_edit_of_many
from gradverify.verifier.numerics.diagnosis.evidence import Pair, Pairs, same_everywhere, wrong_ones
from gradverify.verifier.numerics.diagnosis.exchanged import swapped
from gradverify.verifier.numerics.diagnosis.factor import constant_factor, point_factor, scalar_chain, zero
from gradverify.verifier.numerics.diagnosis.orders import anywhere, other_order, sorted_order
from gradverify.verifier.numerics.diagnosis.paths.search import altered_forward
from gradverify.verifier.numerics.diagnosis.region import (
    irregular_region,
    not_summed,
    region,
    region_of_nothing,
)
from gradverify.verifier.numerics.diagnosis.reordered import other_product, reordered
from gradverify.verifier.numerics.diagnosis.replaced import operand, operand_sign, output_for_input
from gradverify.verifier.numerics.diagnosis.shorter import float32_inside
from gradverify.verifier.numerics.diagnosis.steps import looks_surrogate
from gradverify.verifier.numerics.diagnosis.structure import (
    diagonal_only,
    duplicates,
    one_use_counts,
    other_reduction_dim,
)
from gradverify.verifier.numerics.diagnosis.terms import coupling_term

LEAST_WRONG = 2
"""Points with wrong entries without which no hypothesis is tested: one point explains anything."""

Hypothesis = Callable[[Pairs], Cause | None]
"""The cause that explains every entry of every point; None where it does not."""

LADDER: tuple[Hypothesis, ...] = (
    float32_inside,
    looks_surrogate,
    zero,
    constant_factor,
    scalar_chain,
    conjugate,
    imaginary_factor,
    part_alone,
    swapped,
    other_flag,
    reordered,
    other_product,
    summed_cotangent,
    not_summed,
    region,
    branch,
    diagonal_only,
    duplicates,
    other_reduction_dim,
    operand,
    chain_factor,
    output_for_input,
    region_of_nothing,
    sorted_order,
    one_edit_of_many,
    altered_forward,
    one_edit,
    two_edits,
    irregular_region,
    other_constant,
    one_use_counts,
    other_order,
    anywhere,
    operand_sign,
    coupling_term,
    slice_factor,
    point_factor,
)

SECOND_ORDER: tuple[Hypothesis, ...] = (
    constant_factor,
    scalar_chain,
    conjugate,
    not_summed,
    region,
    branch,
    diagonal_only,
    operand,
    chain_factor,
    operand_sign,
    coupling_term,
    slice_factor,
)
"""Those that can be told of a derivative of backward."""


SAID_BY_CHANGES = frozenset(
    {"branch", "permuted", "transposed", "conjugate", "duplicates", "not-summed-over-broadcast", "region"}
)
"""Causes that a change of backward's source tells better than what the numbers are merely consistent with."""

WHOLE_TRANSPOSE = "transposed", "jvp"
"""J g in place of Jᵀ g: what runs from the wrong end has the same numbers."""

TURNED = "permuted"
"""A change that turns tensors round, which is how the transpose of a scan is written; or a loop, which is no
transpose of anything."""

IGNORED_FLAG = "operand", "flag"
"""What makes backward right with the flag makes it wrong without."""

SHORTER = "float32-inside"
"""So little is wrong there that the numbers fit others as well."""

CONSTANT = "constant-factor"
"""A size at one place is another cause than the same number at all of them."""

NO_MISTAKE = frozenset({"looks-surrogate"})
"""Causes after which nothing is to be changed."""


@dataclass(frozen=True)
class Diagnosis:
    """A cause, the hypothesis that named it, and the points at which it holds."""

    cause: Cause
    hypothesis: Hypothesis
    pairs: Pairs


def diagnose(pairs: Pairs) -> Diagnosis | None:
    """The first hypothesis that holds at every entry of every point; None where none does.

    With it goes the change of backward's source that makes it right, where one was found, too.
    """
    if not all(pair.usable for pair in pairs):
        return None
    is_first_order = pairs[0].point.order == 1
    if len(wrong_ones(pairs)) < LEAST_WRONG:
        ladder: Sequence[Hypothesis] = (one_edit,) if is_first_order else ()
    else:
        ladder = LADDER if is_first_order else SECOND_ORDER
    return next((found for hypothesis in ladder if (found := _by(hypothesis, pairs)) is not None), None)


def holds_at(pair: Pair, told: Diagnosis) -> bool:
    """Whether what explains a block elsewhere explains it at another point, too, with the same factor."""
    found = _by(told.hypothesis, [pair, *told.pairs]) if pair.usable and pair.is_wrong else None
    if found is None or found.cause.name != told.cause.name:
        return False
    factors = [cause.factor for cause in (found.cause, told.cause) if cause.factor is not None]
    return told.cause.name != CONSTANT or same_everywhere(factors)


def _by(hypothesis: Hypothesis, pairs: Pairs) -> Diagnosis | None:
    cause = hypothesis(pairs)
    if cause is None:
        return None
    is_whole = cause.changes or cause.name in NO_MISTAKE or (cause.name, cause.kind) == IGNORED_FLAG
    if pairs[0].point.order == 1 and not is_whole:
        cause = _with_its_change(cause, pairs)
    return Diagnosis(cause, hypothesis, pairs)


def _with_its_change(cause: Cause, pairs: Pairs) -> Cause:
    """The cause with what makes backward right, or that alone where it says more."""
    change = one_edit(pairs)
    if change is None:
        return cause
    if (cause.name, cause.kind) == WHOLE_TRANSPOSE:
        turns_tensors = change.name == TURNED and not change.changes[0].is_of_loop
        return replace(cause, changes=change.changes) if turns_tensors else change
    is_better = cause.strength is Strength.WEAK and change.name in SAID_BY_CHANGES
    if is_better or SHORTER in {change.name, cause.name}:
        return change
    if cause.name == "operand" and cause.other == pairs[0].name:
        return change  # with one value everywhere, much comes to the same: differences are nothing
    return replace(cause, changes=change.changes)
