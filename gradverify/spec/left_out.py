"""What an effort leaves out of all that could be swept over a function, for the report to say."""

from __future__ import annotations

from gradverify.cases.further import Asked, are_few
from gradverify.cases.inputs import (
    COMPLEX,
    FLOATING,
    ConcatSpec,
    InputSpec,
    ListSpec,
    TensorSpec,
)
from gradverify.cases.sweep import PAIRWISE
from gradverify.model import Annotation, Effort, TargetPlan

BEYOND_PAIRS = "combinations of sizes and options beyond pairs"

OTHER_ORDERS = "other orders of sizes than those of its cases"
"""A tall matrix is differentiated by another formula than a wide one."""

COMPILED = "torch.compile (--select GV503)"
"""What runs by default only where the module itself compiles."""

THREE_TOGETHER = "more than two changes of a call at once (layouts, frozen inputs, undefined grad_outputs)"
"""Of what is varied in a call, every pair is met."""

SECOND_ORDER = "second derivatives at sizes and combinations beside those of its cases"
"""These are judged in first order."""

OPEN_SIZES = "other sizes, which the spec leaves open"


def left_out(plan: TargetPlan, asked: Asked) -> list[str]:
    """Phrases, the most telling first, of a plan with the cases of an effort."""
    sweep, inferred = asked.sweep, asked.inferred
    quick, thorough = asked.effort is Effort.QUICK, asked.effort is Effort.THOROUGH
    names = [f"`{item.name}`" for item in sweep.inputs if not inferred and _is_never_differentiated(item)]
    known = len(plan.declared or plan.cases)
    missing = known - len(plan.cases)
    sized = (inferred or not thorough) and not sweep.hook
    without_ends = any({0, 1} - {*values} for _, values in sweep.sizes)
    rows = [
        # backward may return one all the same
        (names, f"the gradient{'s' * (len(names) > 1)} of {', '.join(names)} (requires_grad: false)"),
        (missing, f"{missing} other case{'s' * (missing > 1)}"),
        (not thorough and sweep.rows == PAIRWISE and not are_few(sweep, known), BEYOND_PAIRS),
        (quick, "extreme and special values"),
        (sized and quick and sweep.automatic, OPEN_SIZES),
        (sized and (sweep.automatic or inferred), "size 0"),
        (sized and not inferred and without_ends, "sizes 0 and 1 where the spec does not list them"),
        (len(sweep.sizes) > 1 and not inferred and not sweep.hook, OTHER_ORDERS),
        (not quick and plan.open_sized, SECOND_ORDER),
        (not thorough, "further draws of values"),
        (True, COMPILED),
        (True, THREE_TOGETHER),
    ]
    return [phrase for holds, phrase in rows if holds]


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
