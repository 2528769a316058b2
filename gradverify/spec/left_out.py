"""What an effort leaves out of all that could be swept over a function, for the report to say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from gradverify.cases.further import Asked, combined
from gradverify.cases.inputs import (
    COMPLEX,
    FLOATING,
    ConcatSpec,
    InputSpec,
    ListSpec,
    TensorSpec,
)
from gradverify.cases.messages import listed
from gradverify.cases.sweep import PAIRWISE, Sweep, broken, every_row, factors_of
from gradverify.model import Annotation, Case, Effort, TargetPlan

MOST_ORDERS = 2
"""Pairs of sizes that are named."""

COMPILED = "torch.compile (--select GV503)"
"""What runs by default only where the module itself compiles."""

THREE_TOGETHER = "more than two changes of a call at once (layouts, frozen inputs, undefined grad_outputs)"
"""Of what is varied in a call, every pair is met."""

SECOND_ORDER = "second derivatives at sizes and combinations beside those of its cases"
"""These are judged in first order."""

OPEN_SIZES = "other sizes, which the spec leaves open"


def left_out(plan: TargetPlan, asked: Asked) -> Iterator[str]:
    """Yield phrases, the most telling first, of a plan with the cases of an effort."""
    sweep, effort, inferred = asked.sweep, asked.effort, asked.inferred
    quick, thorough = effort is Effort.QUICK, effort is Effort.THOROUGH
    undemanded = [item.name for item in sweep.inputs if not inferred and _is_never_differentiated(item)]
    if undemanded:  # backward may return one all the same
        yield f"the gradient{'s' * (len(undemanded) > 1)} of {listed(undemanded)} (requires_grad: false)"
    known = len(plan.declared or plan.cases)
    missing = known - len(plan.cases)
    if missing > 0:
        yield f"{missing} other case{'s' * (missing > 1)}"
    judged = 0 if quick else len(combined(sweep, plan.cases, inferred=inferred))
    if not thorough and sweep.rows == PAIRWISE:
        beyond = every_row(factors_of(sweep)) - known - judged - plan.infeasible
        yield from [f"{beyond} combination{'s' * (beyond > 1)} beyond pairs"] * (beyond > 0)
    if quick:
        yield "extreme and special values"
    if (inferred or not thorough) and not sweep.hook:
        yield from _sizes(sweep, effort, inferred=inferred)
    if sweep.sizes and not inferred and not sweep.hook:
        yield from _orders(sweep, plan.cases)
    if not quick and (judged or sweep.automatic):
        yield SECOND_ORDER
    if not thorough:
        yield "further draws of values"
    yield COMPILED
    yield THREE_TOGETHER


def _is_never_differentiated(item: InputSpec) -> bool:
    """Whether an input could be differentiated and is not, because its entry says so."""
    match item:
        case TensorSpec(requires_grad=wanted, mutated=mutated, dtype=dtype):
            return wanted is False and not mutated and dtype in FLOATING + COMPLEX
        case ListSpec(items=items):
            return all(map(_is_never_differentiated, items))
        case ConcatSpec(requires_grad=wanted) | Annotation(requires_grad=wanted):
            return wanted is False
        case _:
            return False


def _sizes(sweep: Sweep, effort: Effort, *, inferred: bool) -> Iterator[str]:
    if inferred and effort is not Effort.QUICK:
        if sweep.sizes:
            yield "size 0"
        return
    if sweep.automatic and effort is Effort.QUICK:
        yield OPEN_SIZES
    elif sweep.automatic:
        yield "size 0"
    if any(n not in values for _, values in sweep.sizes for n in (0, 1)):
        yield "sizes 0 and 1 where the spec does not list them"


def _orders(sweep: Sweep, cases: Sequence[Case]) -> Iterator[str]:
    """Listed sizes of which one is the larger in every case, although the spec forbids no other order.

    A tall matrix is differentiated by another formula than a wide one.
    """
    names = [name for name, _ in sweep.sizes]
    sizes = [{n: size for n, size in case.sizes if n in names} for case in cases]
    never = [
        f"{a} below {b}"
        for a, b in itertools.permutations(names, 2)
        if all(one[a] >= one[b] for one in sizes)
        and any(one[a] > one[b] for one in sizes)
        and broken(sweep, {**dict(cases[0].sizes), a: sizes[0][b], b: sizes[0][a]}) is None
    ]
    if never:
        more = ", ..." if len(never) > MOST_ORDERS else ""
        yield f"another order of sizes ({', '.join(never[:MOST_ORDERS])}{more})"
