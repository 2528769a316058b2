"""The order of the hypotheses: simple ones first, and the first that holds everywhere is the cause."""

from __future__ import annotations

from collections.abc import Callable

from gradverify.verifier.numerics.diagnosis.branch import branch
from gradverify.verifier.numerics.diagnosis.cause import Cause
from gradverify.verifier.numerics.diagnosis.chain import chain_factor, slice_factor
from gradverify.verifier.numerics.diagnosis.complex_parts import conjugate, imaginary_factor, part_alone
from gradverify.verifier.numerics.diagnosis.constants import other_constant, other_flag
from gradverify.verifier.numerics.diagnosis.cotangent import summed_cotangent
from gradverify.verifier.numerics.diagnosis.edits.search import one_edit
from gradverify.verifier.numerics.diagnosis.evidence import Pairs, wrong_ones
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

LADDER: tuple[Callable[[Pairs], Cause | None], ...] = (
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
    altered_forward,
    one_edit,
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

SECOND_ORDER: tuple[Callable[[Pairs], Cause | None], ...] = (
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


def diagnose(pairs: Pairs) -> Cause | None:
    """The first hypothesis that holds at every entry of every point; None where none does."""
    if not all(pair.usable for pair in pairs):
        return None
    if len(wrong_ones(pairs)) < LEAST_WRONG:
        return one_edit(pairs) if pairs[0].point.order == 1 else None
    ladder = LADDER if pairs[0].point.order == 1 else SECOND_ORDER
    return next((cause for hypothesis in ladder if (cause := hypothesis(pairs)) is not None), None)
