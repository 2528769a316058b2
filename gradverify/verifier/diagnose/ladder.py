"""The order of the hypotheses: simple ones first, and the first that holds everywhere is the cause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gradverify.verifier.diagnose.cause import Cause, Strength
from gradverify.verifier.diagnose.edits.forward import other_derivative
from gradverify.verifier.diagnose.edits.search import one_edit
from gradverify.verifier.diagnose.evidence import Pair, Pairs, same_everywhere, wrong_ones
from gradverify.verifier.diagnose.hypotheses.branch import branch
from gradverify.verifier.diagnose.hypotheses.chain import chain_factor
from gradverify.verifier.diagnose.hypotheses.conjugate import conjugate
from gradverify.verifier.diagnose.hypotheses.coupling import coupling_term
from gradverify.verifier.diagnose.hypotheses.factor import constant_factor, zero
from gradverify.verifier.diagnose.hypotheses.float32 import float32_inside
from gradverify.verifier.diagnose.hypotheses.operand import operand, output_for_input
from gradverify.verifier.diagnose.hypotheses.region import not_summed, region
from gradverify.verifier.diagnose.hypotheses.reordered import other_product, reordered
from gradverify.verifier.diagnose.hypotheses.structure import (
    diagonal_only,
    duplicates,
    other_reduction_dim,
)
from gradverify.verifier.diagnose.hypotheses.surrogate import looks_surrogate
from gradverify.verifier.diagnose.hypotheses.swapped import swapped

LEAST_WRONG = 2
"""Points with wrong entries without which no hypothesis is tested: one point explains anything."""

Hypothesis = Callable[[Pairs], Cause | None]
"""The cause that explains every entry of every point; None where it does not."""

LADDER: tuple[Hypothesis, ...] = (
    float32_inside,
    looks_surrogate,
    zero,
    constant_factor,
    conjugate,
    swapped,
    reordered,
    other_product,
    not_summed,
    region,
    branch,
    diagonal_only,
    duplicates,
    other_reduction_dim,
    operand,
    chain_factor,
    output_for_input,
    one_edit,
    other_derivative,
    coupling_term,
)

SECOND_ORDER: tuple[Hypothesis, ...] = (
    constant_factor,
    conjugate,
    not_summed,
    region,
    branch,
    diagonal_only,
    operand,
    chain_factor,
    coupling_term,
)
"""Those that can be told of a derivative of backward."""

SAID_BY_A_CHANGE = frozenset(
    {"branch", "permuted", "transposed", "conjugate", "duplicates", "not-summed-over-broadcast", "region"}
)
"""Causes that a change of backward's source tells better than what the numbers are merely consistent with."""

WHOLE_TRANSPOSE = "transposed", "jvp"
"""J g in place of Jᵀ g: what runs from the wrong end has the same numbers."""

TURNED = "permuted"
"""A change that turns tensors round, which is how the transpose of a scan is written; or a loop, which is no
transpose of anything."""

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


def together(causes: Sequence[Cause | None]) -> list[Cause | None]:
    """The causes of several gradients of one call: one mistake has many.

    What is lost on the way to several gradients may leave nothing of one of them, as if an output were
    ignored, and of another one a multiple, which some expression gives by chance. Where one change of
    backward makes all of them right, that is told.
    """
    known = [cause for cause in causes if cause is not None]
    changes = {cause.change for cause in known}
    change = next(iter(changes), None)
    if len(known) < len(causes) or len({c.name for c in known}) < 2 or len(changes) > 1 or change is None:
        return list(causes)
    told = Cause(change.cause, Strength.WEAK, kind="edit", change=change)
    is_all = any(cause.kind == "edit" for cause in known)
    return [told if is_all or _may_be_a_part(cause) else cause for cause in known]


def _may_be_a_part(cause: Cause) -> bool:
    by_data = cause.name == "chain-factor" and cause.strength is Strength.WEAK
    return cause.name == "ignored-output" or by_data


def _by(hypothesis: Hypothesis, pairs: Pairs) -> Diagnosis | None:
    cause = hypothesis(pairs)
    if cause is None:
        return None
    if pairs[0].point.order == 1 and cause.change is None and cause.name not in NO_MISTAKE:
        cause = _with_its_change(cause, pairs)
    return Diagnosis(cause, hypothesis, pairs)


def _with_its_change(cause: Cause, pairs: Pairs) -> Cause:
    """The cause with what makes backward right, or that alone where it says more."""
    edited = one_edit(pairs)
    if edited is None or edited.change is None:
        return cause
    if (cause.name, cause.kind) == WHOLE_TRANSPOSE:
        turns_tensors = edited.name == TURNED and not edited.change.is_of_loop
        return replace(cause, change=edited.change) if turns_tensors else edited
    is_better = cause.strength is Strength.WEAK and edited.name in SAID_BY_A_CHANGE
    if is_better or SHORTER in {edited.name, cause.name}:
        return edited
    if cause.name == "operand" and cause.other == pairs[0].name:
        return edited  # with one value everywhere, much comes to the same: differences are nothing
    return replace(cause, change=edited.change)
