"""The order of the hypotheses: simple ones first, and the first that holds everywhere is the cause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gradverify.verifier.diagnose.edits.forward import other_derivative
from gradverify.verifier.diagnose.edits.search import one_edit
from gradverify.verifier.diagnose.evidence import Cause, Pairs, wrong_ones
from gradverify.verifier.diagnose.hypotheses.branch import branch, chain_factor
from gradverify.verifier.diagnose.hypotheses.factor import (
    conjugate,
    constant_factor,
    float32_inside,
    not_summed,
    region,
    zero,
)
from gradverify.verifier.diagnose.hypotheses.ranks import over_ranks
from gradverify.verifier.diagnose.hypotheses.structure import (
    diagonal_only,
    duplicates,
    looks_surrogate,
    other_product,
    other_reduction_dim,
    reordered,
    swapped,
)

LEAST_WRONG = 2
"""Points with wrong entries without which no hypothesis is tested: one point explains anything."""

Test = Callable[[Pairs], Cause | None]
"""The cause that explains every entry of every point; None where it does not."""

LADDER: tuple[Test, ...] = (
    over_ranks,
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
    chain_factor,
    one_edit,
    other_derivative,
)

SECOND_ORDER: tuple[Test, ...] = (
    constant_factor,
    conjugate,
    not_summed,
    region,
    branch,
    diagonal_only,
    chain_factor,
)
"""Those that can be found of a derivative of backward."""

SAID_BY_A_CHANGE = frozenset(
    (
        *("branch", "permuted", "transposed", "conjugate", "duplicates", "not-summed-over-broadcast"),
        *("region", "in-place"),
    )
)
"""Causes that a change of backward's source tells better than what the numbers are merely consistent with."""

SHORTER = "float32-inside"
"""So little is wrong there that the numbers fit others as well."""

PARTS = frozenset({"ignored-output", "chain-factor"})
"""Causes that a mistake on the way to several gradients may seem to be in one of them, by chance."""


@dataclass(frozen=True)
class Diagnosis:
    """A cause, the hypothesis that named it, and the points at which it holds."""

    cause: Cause
    hypothesis: Test
    pairs: Pairs


def diagnose(pairs: Pairs) -> Diagnosis | None:
    """The first hypothesis that holds at every entry of every point; None where none does.

    With it goes the change of backward's source that makes it right, where one was found, too.
    """
    if not all(pair.usable for pair in pairs):
        return None
    is_first_order = pairs[0].point.order == 1
    if len(wrong_ones(pairs)) < LEAST_WRONG:
        ladder: Sequence[Test] = (one_edit,) if is_first_order else ()
    else:
        ladder = LADDER if is_first_order else SECOND_ORDER
    return next((found for test in ladder if (found := _by(test, pairs)) is not None), None)


def together(causes: Sequence[Cause | None]) -> list[Cause | None]:
    """The causes of several gradients of one call: one mistake has many.

    What is lost on the way to several gradients may leave nothing of one of them, as if an output were
    ignored, and of another one a multiple, which some expression gives by chance. Where one change of
    backward makes all of them right, that is reported.
    """
    known = [cause for cause in causes if cause is not None]
    changes = {cause.change for cause in known}
    change = next(iter(changes), None)
    if len(known) < len(causes) or len({c.name for c in known}) < 2 or len(changes) > 1 or change is None:
        return list(causes)
    reported = Cause(change.cause, is_weak=True, change=change)
    is_all = any(not cause.what for cause in known)
    return [reported if is_all or cause.name in PARTS else cause for cause in known]


def _by(test: Test, pairs: Pairs) -> Diagnosis | None:
    cause = test(pairs)
    if cause is None:
        return None
    if pairs[0].point.order == 1 and cause.change is None and test is not looks_surrogate:
        cause = _with_its_change(cause, pairs)
    return Diagnosis(cause, test, pairs)


def _with_its_change(cause: Cause, pairs: Pairs) -> Cause:
    """The cause with what makes backward right, or that alone where it says more."""
    edited = one_edit(pairs)
    if edited is None or edited.change is None:
        return cause
    is_better = cause.is_weak and edited.name in SAID_BY_A_CHANGE
    return (
        edited if is_better or SHORTER in {edited.name, cause.name} else replace(cause, change=edited.change)
    )
