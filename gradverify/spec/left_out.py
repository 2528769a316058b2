"""What an effort leaves out of all that could be swept over a function, for the report to say.

What pairs leave out of options: other ones at the same sizes, and combinations of three and more.

Options are where code branches. A pair of them occurs together in some case, three need not: `causal`, with a
mask and without dropout, say. Each that no case has is judged once, at the sizes of the base case; and where
they are few, so is every combination with listed sizes, of which a stride, a window and a length make three.

So is each value of an option beside the base case: what is kept for a shape, and hangs on an option, is wrong
where two calls differ in nothing else.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from gradverify.model import Case, Effort
from gradverify.spec.cases import bound_case
from gradverify.spec.fields import COMPLEX, FLOATING
from gradverify.spec.function import SpecFunction
from gradverify.spec.inputs import GIVEN, InputSpec, tensors_of
from gradverify.spec.messages import listed
from gradverify.spec.schema import AnnotationEntry, ConcatEntry, ListEntry, TensorEntry
from gradverify.spec.sizes import InfeasibleError
from gradverify.spec.sweep import Factor, Sweep, Values, allowed, factors_of

FEWEST_OPTIONS = 3
"""Of two, pairs have every combination."""

MOST_COMBINED = 16
"""Combinations that are judged; each costs a few evaluations."""


def combined(sweep: Sweep, cases: Sequence[Case], *, inferred: bool = False) -> tuple[Case, ...]:
    """Cases that pairs leave out, those with the sizes of the first one before others; without seeds.

    Sizes that were `inferred` are combined no further.
    """
    if sweep.hook or sweep.rows != "pairwise" or not cases:
        return ()
    factors, base = factors_of(sweep), cases[0]
    known = {case.options for case in cases}
    several = sum(not f.is_size and len(f.levels) > 1 for f in factors) >= FEWEST_OPTIONS
    at_base = {
        case.id: case
        for case in _bound(sweep, factors, dict(base.sizes))
        if _differing(case, base) == 1 or (several and case.options not in known)
    }
    product = math.prod(len(factor.levels) for factor in factors)
    elsewhere = _bound(sweep, factors, {}) if not inferred and product <= MOST_COMBINED + len(cases) else ()
    found = {**at_base, **{case.id: case for case in elsewhere}}
    new = (case for case in found.values() if all(case.id != one.id for one in cases))
    return tuple(itertools.islice(new, MOST_COMBINED))


def _bound(sweep: Sweep, factors: Sequence[Factor], sizes: Mapping[str, int]) -> Iterator[Case]:
    """A case for each combination of levels, of some sizes at one value each."""
    for row in itertools.product(*_levels(factors, sizes)):
        try:
            yield bound_case(sweep, factors, row)
        except InfeasibleError:
            continue


def _differing(case: Case, base: Case) -> int:
    """In how many options two cases differ; one that is left out differs from each that is given."""
    ours, theirs = dict(case.options), dict(base.options)
    return sum(ours.get(name, GIVEN) != theirs.get(name, GIVEN) for name in ours.keys() | theirs.keys())


def _levels(factors: Sequence[Factor], sizes: Mapping[str, int]) -> Iterator[Values]:
    return ((sizes[f.name],) if f.is_size and f.name in sizes else f.levels for f in factors)


MOST_ORDERS = 2
"""Pairs of sizes that are named."""

COMPILED = "torch.compile (--select GV503)"
"""What runs by default only where the module itself compiles."""

THREE_TOGETHER = "more than two changes of a call at once (layouts, frozen inputs, undefined grad_outputs)"
"""Of what is varied in a call, every pair is met."""

SECOND_ORDER = "second derivatives at sizes and combinations beside those of its cases"
"""These are judged in first order."""

OPEN_SIZES = "other sizes, which the spec leaves open"


def left_out(
    whole: SpecFunction, planned: SpecFunction, effort: Effort, *, inferred: bool = False
) -> tuple[str, ...]:
    """Phrases, the most telling first. `whole` has the cases of normal effort, `planned` those that run.

    Of `inferred` inputs no further sizes are invented, but 1.
    """
    return tuple(_phrases(whole, planned, effort, inferred=inferred)) if planned.cases else ()


def _phrases(whole: SpecFunction, planned: SpecFunction, effort: Effort, *, inferred: bool) -> Iterator[str]:
    missing = len(whole.cases) - len(planned.cases)
    sweep = planned.sweep
    if sweep is not None and not inferred:
        yield from _gradients(sweep)
    if missing > 0:
        yield f"{missing} other case{'s' * (missing > 1)}"
    judged = () if sweep is None else combined(sweep, planned.cases, inferred=inferred)
    if sweep is not None and effort is not Effort.THOROUGH and sweep.rows in ("pairwise", "pairwise first"):
        known = max(len(whole.cases), len(planned.cases)) + len(judged) * (effort is Effort.NORMAL)
        product = math.prod(len(factor.levels) for factor in factors_of(sweep))
        beyond = product - known - planned.plan.infeasible
        yield from [f"{beyond} combination{'s' * (beyond > 1)} beyond pairs"] * (beyond > 0)
    if effort is Effort.QUICK:
        yield "extreme and special values"
    if (inferred or effort is not Effort.THOROUGH) and sweep is not None and not sweep.hook:
        yield from _sizes(sweep, effort, inferred=inferred)
    if sweep is not None and sweep.sizes and not inferred and not sweep.hook:
        yield from _orders(sweep, planned.cases)
    if effort is not Effort.QUICK and (judged or (sweep is not None and sweep.automatic)):
        yield SECOND_ORDER
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


def _sizes(sweep: Sweep, effort: Effort, *, inferred: bool) -> Iterator[str]:
    if inferred and effort is not Effort.QUICK:
        if sweep.sizes:
            yield "size 0"
        return
    if sweep.automatic and effort is Effort.QUICK:
        yield OPEN_SIZES
    elif sweep.automatic:
        yield "size 0"
    if any(n not in values for values in sweep.sizes.values() for n in (0, 1)):
        yield "sizes 0 and 1 where the spec does not list them"


def _orders(sweep: Sweep, cases: Sequence[Case]) -> Iterator[str]:
    """Listed sizes of which one is the larger in every case, although the spec forbids no other order.

    A tall matrix is differentiated by another formula than a wide one.
    """
    sizes = [{n: size for n, size in case.sizes if n in sweep.sizes} for case in cases]
    never = [
        f"{a} below {b}"
        for a, b in itertools.permutations(sizes[0], 2)
        if all(one[a] >= one[b] for one in sizes)
        and any(one[a] > one[b] for one in sizes)
        and allowed(sweep, {**dict(cases[0].sizes), a: sizes[0][b], b: sizes[0][a]}) is None
    ]
    if never:
        more = ", ..." if len(never) > MOST_ORDERS else ""
        yield f"another order of sizes ({', '.join(never[:MOST_ORDERS])}{more})"
