"""What an effort leaves out of all that could be swept over a function, for the report to say."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradverify.model import Effort
from gradverify.spec.combined import combined
from gradverify.spec.fields import COMPLEX, FLOATING
from gradverify.spec.function import SpecFunction
from gradverify.spec.inputs import InputSpec, tensors_of
from gradverify.spec.messages import listed
from gradverify.spec.schema import AnnotationEntry, ConcatEntry, ListEntry, TensorEntry
from gradverify.spec.sweep import Sweep, factors_of

COMPILED = "torch.compile (--select GV503)"
"""What runs by default only where the module itself compiles."""

THREE_TOGETHER = "more than two changes of a call at once (layouts, frozen inputs, undefined grad_outputs)"
"""Of what is varied in a call, every pair is met."""

OPEN_SIZES = "other sizes, which the spec leaves open"


def left_out(
    whole: SpecFunction, planned: SpecFunction, effort: Effort, *, inferred: bool = False
) -> tuple[str, ...]:
    """Phrases, the most telling first. `whole` has the cases of normal effort, `planned` those that run.

    Of `inferred` inputs no further sizes are invented.
    """
    return tuple(_phrases(whole, planned, effort, inferred=inferred)) if planned.cases else ()


def _phrases(whole: SpecFunction, planned: SpecFunction, effort: Effort, *, inferred: bool) -> Iterator[str]:
    missing = len(whole.cases) - len(planned.cases)
    sweep = planned.sweep
    if sweep is not None and not inferred:
        yield from _gradients(sweep)
    if missing > 0:
        yield f"{missing} other case{'s' * (missing > 1)}"
    if sweep is not None and sweep.rows in ("pairwise", "pairwise first"):
        product = math.prod(len(factor.levels) for factor in factors_of(sweep))
        beyond = product - max(len(whole.cases), len(planned.cases)) - planned.plan.infeasible
        if effort is Effort.NORMAL and not inferred:
            beyond -= len(combined(sweep, planned.cases))
        if beyond > 0 and effort is not Effort.THOROUGH:
            yield f"{beyond} combination{'s' * (beyond > 1)} beyond pairs"
    if effort is Effort.QUICK:
        yield "extreme and special values"
    if (inferred or effort is not Effort.THOROUGH) and sweep is not None and not sweep.hook:
        yield from _sizes(sweep, effort)
    if effort is not Effort.THOROUGH:
        yield "further draws of values"
    yield COMPILED
    yield THREE_TOGETHER


def _gradients(sweep: Sweep) -> Iterator[str]:
    """Gradients that a spec says are not asked for: backward may return one all the same."""
    names = [item.name for item in sweep.inputs if _is_never_differentiated(item)]
    if names:
        yield f"the gradient{'s' * (len(names) > 1)} of {listed(names)} (requires_grad: false)"


def _is_never_differentiated(item: InputSpec) -> bool:
    """Whether an input could be differentiated and is not, because its entry says so."""
    match item.entry:
        case TensorEntry() as entry:
            return entry.requires_grad is False and not entry.mutated and entry.dtype in FLOATING + COMPLEX
        case ListEntry():
            items = tensors_of(item)
            return bool(items) and all(_is_never_differentiated(one) for one in items)
        case ConcatEntry(requires_grad=False) | AnnotationEntry(requires_grad=False):
            return True
        case _:
            return False


def _sizes(sweep: Sweep, effort: Effort) -> Iterator[str]:
    if sweep.automatic and effort is Effort.QUICK:
        yield OPEN_SIZES
    elif sweep.automatic:
        yield "size 0"
    if any(n not in values for values in sweep.sizes.values() for n in (0, 1)):
        yield "sizes 0 and 1 where the spec does not list them"
