"""Cases beside the listed ones: all that a run verifies of a sweep, made alike on both sides of the border.

Sizes that a spec leaves open: a bug may show at one size only, and a symbolic shape names none.
`{x: [n, d]}` without `sizes:` says that any sizes are valid, and its case has but one of each. Others follow
here: one more of each, all alike (a transposition that is guessed from shapes needs non-square ones), and
each alone at 1 (`squeeze`, a sum over what looks broadcast). Where `sizes:` lists what is valid, nothing is
left open: 0 and 1 are tried in a thorough run, and what is wrong there is a warning. Sizes that were inferred
are tried at 1 alone.

Options are where code branches. A pair of them occurs together in some case, three need not: `causal`, with a
mask and without dropout, say. Each that no case has is judged once, at the sizes of the base case; and where
they are few, so is every combination with listed sizes, of which a stride, a window and a length make three.
So is each value of an option beside the base case: what is kept for a shape, and hangs on an option, is wrong
where two calls differ in nothing else.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradverify.cases.beside import with_values_beside
from gradverify.cases.inputs import GIVEN
from gradverify.cases.past import past_constants
from gradverify.cases.selecting import matches
from gradverify.cases.sweep import (
    OTHER_SIZES,
    PAIRWISE,
    PAIRWISE_FIRST,
    Sweep,
    build_cases,
    case_at,
    case_id,
    every_row,
    factors_of,
    in_call_order,
    named,
    resized,
    with_each_option,
)
from gradverify.model import (
    Case,
    Effort,
    Input,
    ListInput,
    LiteralInput,
    Parameter,
    SizeConstant,
    TargetPlan,
    TensorInput,
    tensors_of,
)

MOST_SPARES = 3
"""Spare cases of one combination of options: forward may refuse the first."""

SMALLEST = 3
"""Other sizes start here: at 1 and 2 a flip, a shift and a transposition are the same."""

REACH = 5
"""A size is odd where it was even as long as it need not grow by more than this: Jacobians grow with it."""

ALL_ALIKE = 3
"""What every open size is in a square case: odd, and no multiple of anything usual."""

MOST_OPEN = 8
"""Cases at open sizes: the two with others, and six sizes at 1; each costs a few evaluations."""

FEWEST_OPTIONS = 3
"""Of two, pairs have every combination."""

MOST_COMBINED = 16
"""Combinations that are judged; each costs a few evaluations."""

COPIES = 8
"""Of the tensors of a call that verification holds at once, at least: arguments, the copies that calls get,
outputs, gradients, directions. Some 40 were measured for an elementwise Function."""

LISTED = "the spec lists the sizes"
"""Why nothing is tried past a constant on a GPU."""

_PLANS = ((2, False), (SMALLEST, False), (0, False), (2, True))
"""Below what sizes stay as they are (paddings, strides), and whether the others are doubled: that keeps what
divides what."""

_LISTS = ("cases", "spares", "open_sized", "degenerate")
"""The cases of a plan but for those past constants."""

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Asked:
    """A sweep and what a run asks of it: whatever the cases of a target follow from."""

    sweep: Sweep
    name: str
    """Of the target, as the seeds of its cases have it."""
    seed: int = 0
    order: tuple[Parameter, ...] = ()
    """Live parameters, in the order of a call."""
    effort: Effort = Effort.NORMAL
    inferred: bool = False
    thresholds: tuple[float, ...] | None = None
    """Numbers that the source compares values with; None where no values beside them are asked for."""
    constants: tuple[SizeConstant, ...] | None = None
    """Numbers that it compares sizes with; None where no case past them is asked for."""
    selected: str = ""
    """A filter such as `b=3,mode=sum`; empty for all."""
    case: str = ""
    """The id of the only listed case that is asked for; empty for all."""
    on_cpu: bool = True
    """At sizes that are not listed a kernel may leave its tensors: elsewhere that spoils every later call."""
    spares: bool = True
    memory: int = 0
    """Bytes that a case may take; 0 for any number."""


def without_cases(plan: TargetPlan) -> TargetPlan:
    """The plan as it crosses the border: where its cases follow from a sweep, without them."""
    if plan.asked is None:
        return plan
    return replace(
        plan, cases=(), declared=(), spares=(), open_sized=(), degenerate=(), beyond=(), not_beyond=()
    )


def with_cases(plan: TargetPlan, asked: Asked) -> TargetPlan:
    """The plan with all the cases of a sweep that has a base case."""
    sweep, whole = asked.sweep, build_cases(asked.sweep)
    listed, quick = whole, asked.effort is Effort.QUICK
    if asked.effort is Effort.THOROUGH and sweep.rows == PAIRWISE:
        listed = build_cases(replace(sweep, rows=PAIRWISE_FIRST))
    cases = listed.cases[:1] if quick else listed.cases
    bases = () if quick else with_each_option(cases)
    open_sized = [] if asked.inferred else [case for base in bases for case in _open_sized(sweep, base)]
    together = () if quick else combined(sweep, cases, inferred=asked.inferred)
    at_ends = bases if asked.inferred or asked.effort is Effort.THOROUGH else ()
    past, untried = past_constants(sweep, whole.cases, None if quick or asked.selected else asked.constants)
    plan = replace(
        plan,
        asked=asked,
        cases=with_values_beside(_ready(asked, cases), asked.thresholds),
        infeasible=listed.infeasible,
        declared=_ready(asked, whole.cases) if quick else (),
        spares=_ready(asked, spare_cases(sweep, whole.cases)) if asked.spares else (),
        open_sized=_ready(asked, (*open_sized, *together)),
        degenerate=_ready(asked, [c for base in at_ends for c in _at_ends(sweep, base, asked.inferred)]),
        beyond=tuple(replace(one, case=_ready(asked, [one.case])[0]) for one in past),
        not_beyond=untried,
    )
    plan = plan if asked.on_cpu else _off_cpu(plan, asked.inferred)
    return _fitting(_selected(plan, asked), asked.memory)


def _ready(asked: Asked, cases: Sequence[Case]) -> tuple[Case, ...]:
    return tuple(in_call_order(case, asked.seed, asked.name, asked.order) for case in cases)


def _off_cpu(plan: TargetPlan, inferred: bool) -> TargetPlan:  # noqa: FBT001 - how its inputs came about
    """Without the sizes that nobody listed: a kernel that leaves its tensors there may lose the device."""
    if inferred:
        return replace(plan, spares=(), degenerate=())
    untried = (f"{b.constant}: {LISTED}" for b in plan.beyond if b.declared and b.is_reported)
    return replace(
        plan,
        open_sized=(),
        degenerate=(),
        beyond=tuple(b for b in plan.beyond if not b.declared),
        not_beyond=tuple(dict.fromkeys((*plan.not_beyond, *untried))),
    )


def _selected(plan: TargetPlan, asked: Asked) -> TargetPlan:
    """What a filter selects; for sizes that are not listed, the base case goes before them."""

    def kept(cases: tuple[Case, ...]) -> tuple[Case, ...]:
        return tuple(case for case in cases if matches(case.id, asked.selected))

    if asked.case:
        cases = tuple(case for case in plan.cases if case.id == asked.case)
        # Sizes beyond those of the cases go with the base case alone.
        alone = plan if cases == plan.cases[:1] else replace(plan, open_sized=(), degenerate=())
        return replace(alone, cases=cases)
    if not asked.selected:
        return plan
    plan, listed = replace(plan, declared=plan.cases), kept(plan.cases)
    if asked.inferred:
        return replace(plan, cases=listed)
    if listed:
        return replace(plan, cases=listed, open_sized=(), degenerate=())
    return replace(
        plan, cases=plan.cases[:1], open_sized=kept(plan.open_sized), degenerate=kept(plan.degenerate)
    )


def tensor_bytes(tensor: TensorInput) -> int:
    """What a tensor takes."""
    bits = re.search(r"\d+$", tensor.dtype)  # a bool takes a byte
    return math.prod(tensor.shape) * (int(bits[0]) // 8 if bits else 1)


def bytes_of(case: Case) -> int:
    """What the tensors of one call take."""
    return sum(tensor_bytes(t) for one in case.inputs for t in tensors_of(one))


def _fitting(plan: TargetPlan, memory: int) -> TargetPlan:
    """Without the cases whose tensors cannot fit into so many bytes."""

    def fits(case: Case) -> bool:
        return not memory or COPIES * bytes_of(case) <= memory

    fitting: dict[str, Any] = {name: tuple(filter(fits, getattr(plan, name))) for name in _LISTS}
    return replace(plan, beyond=tuple(one for one in plan.beyond if fits(one.case)), **fitting)


def _open_sized(sweep: Sweep, base: Case) -> Iterator[Case]:
    """Cases at other sizes of those that the spec leaves open."""
    if sweep.automatic and not sweep.hook:
        yield from itertools.islice(_at(sweep, base, _open(dict(sweep.automatic))), MOST_OPEN)


def _open(automatic: Sizes) -> Iterator[dict[str, int]]:
    # Each of the first ones is even where its successor is odd: both halves and tails occur.
    yield {name: n + 1 for name, n in automatic.items()}
    if len(automatic) > 1:
        yield dict.fromkeys(automatic, ALL_ALIKE)
    for name in automatic:
        yield {**automatic, name: 1}


def _at_ends(sweep: Sweep, base: Case, inferred: bool) -> Iterator[Case]:  # noqa: FBT001 - as above
    """Cases with one size at 0 or 1 that is not listed; inferred sizes are tried at 1 alone."""
    known = {**{name: (1,) for name, _ in sweep.automatic if not inferred}, **dict(sweep.sizes)}
    names = [] if sweep.hook else sweep.dimensions(base)
    ends = itertools.product(names, (1,) if inferred else (0, 1))
    yield from _at(sweep, base, ({name: n} for name, n in ends if n not in known.get(name, ())))


def _at(sweep: Sweep, base: Case, others: Iterator[dict[str, int]]) -> Iterator[Case]:
    for case in (resized(sweep, base, other) for other in others):
        if case is not None:
            yield replace(case, id=case_id(case.sizes, case.options))


def combined(sweep: Sweep, cases: Sequence[Case], *, inferred: bool) -> tuple[Case, ...]:
    """Cases that pairs leave out, those with the sizes of the first one before others; without seeds.

    Sizes that were `inferred` are combined no further.
    """
    if sweep.hook or sweep.rows != PAIRWISE or not cases:
        return ()
    factors, base = factors_of(sweep), cases[0]
    known = {case.options for case in cases}
    several = sum(not f.is_size and len(f.levels) > 1 for f in factors) >= FEWEST_OPTIONS
    found = [
        case
        for case in _every(sweep, dict(base.sizes))
        if _differing(case, base) == 1 or (several and case.options not in known)
    ]
    if not inferred and every_row(factors) <= MOST_COMBINED + len(cases):
        found += _every(sweep, {})
    listed = {case.id for case in cases}
    new = {case.id: case for case in found if case.id not in listed}
    return tuple(itertools.islice(new.values(), MOST_COMBINED))


def _every(sweep: Sweep, sizes: Sizes) -> Iterator[Case]:
    """A case for each combination of levels, of some sizes at one value each, whatever `where` says."""
    sweep, factors = replace(sweep, where=()), factors_of(sweep)
    levels = [(sizes[f.name],) if f.is_size and f.name in sizes else f.levels for f in factors]
    for row in itertools.product(*levels):
        case = case_at(sweep, *named(factors, row))
        if isinstance(case, Case):
            yield case


def _differing(case: Case, base: Case) -> int:
    """In how many options two cases differ; one that is left out differs from each that is given."""
    ours, theirs = dict(case.options), dict(base.options)
    return sum(ours.get(name, GIVEN) != theirs.get(name, GIVEN) for name in ours.keys() | theirs.keys())


def spare_cases(sweep: Sweep, cases: Sequence[Case]) -> tuple[Case, ...]:
    """Cases with other sizes that the spec allows, some for each combination of options; without seeds.

    They are run only to find out why a failing target is wrong: a law of the sizes needs two.
    """
    first: dict[object, Case] = {}
    for case in cases:
        if all(n > 0 for _, n in case.sizes):
            first.setdefault(case.options, case)
    return tuple(spare for case in first.values() for spare in _spares(sweep, case))


def _spares(sweep: Sweep, case: Case) -> Iterator[Case]:
    if not case.sizes:
        yield from at_other_dimensions(case)
        return
    found = (resized(sweep, case, other) for other in _other_sizes(sweep.dimensions(case)))
    yield from [*{one.id: one for one in found if one is not None}.values()][:MOST_SPARES]


def at_other_dimensions(case: Case) -> tuple[Case, ...]:
    """The same for a case without named sizes: dimensions that are equal stay equal.

    Empty where something else may follow from a dimension: an integer, an index, a structure with a bound.
    """
    found: list[Case] = []
    for other in _other_sizes(dimensions_of(case)):
        spare = with_dimensions(case, other)
        if all(spare.inputs != known.inputs for known in found):
            found.append(spare)
    return tuple(found[:MOST_SPARES])


def _other_sizes(sizes: Sizes) -> Iterator[dict[str, int]]:
    """Other values, pairwise different and at least three, the likeliest to be valid first."""
    for least, doubled in _PLANS:
        other = {name: n for name, n in sizes.items() if n < least}
        for name in sizes:
            if name not in other:
                chosen = [(sizes[known], m) for known, m in other.items()]
                other[name] = 2 * sizes[name] if doubled else _unused(sizes[name], chosen)
        if other != sizes:
            yield other


def _unused(n: int, chosen: Sequence[tuple[int, int]]) -> int:
    """A small size that nothing else has, odd where it was even, and not as far from the others as it was.

    `chosen` are sizes with those in their places. At lengths of one parity alone, strided windows and halves
    allow readings that are wrong at the others; where m - n stays 1, m - 1 may be n.
    """
    first = SMALLEST + (SMALLEST + n + 1) % 2
    neighbours = {other + n - was for was, other in chosen if abs(n - was) == 1}
    taken = {n, *neighbours, *(other for _, other in chosen)}
    # One after the other: a size may be a billion.
    near, all_others = range(first, n + REACH, 2), range(SMALLEST, n + REACH + 4 * len(chosen) + 4)
    return next(k for k in itertools.chain(near, all_others) if k not in taken)


def dimensions_of(case: Case) -> dict[str, int]:
    """The dimensions of a case's tensors by their length; empty where they cannot be changed alone."""
    if case.hook or case.annotations or case.init is not None or not all(map(_follows_no_size, case.inputs)):
        return {}
    return {str(n): n for an_input in case.inputs for tensor in tensors_of(an_input) for n in tensor.shape}


def with_dimensions(case: Case, other: Sizes) -> Case:
    """The case with other lengths in the place of those that `dimensions_of` names."""

    def reshaped(an_input: Input) -> Input:
        match an_input:
            case TensorInput(shape=shape):
                return replace(an_input, shape=tuple(other[str(n)] for n in shape))
            case ListInput(items=items):
                return replace(an_input, items=tuple(map(reshaped, items)))  # type: ignore[arg-type]
            case _:
                return an_input

    return replace(case, id=OTHER_SIZES, inputs=tuple(map(reshaped, case.inputs)))


def _follows_no_size(an_input: Input) -> bool:
    match an_input:
        case TensorInput():
            plain = an_input.dtype.startswith(("float", "complex")) and not an_input.structure
            return plain and not an_input.constant_at and not an_input.make and an_input.value is None
        case ListInput(items=items):
            return all(map(_follows_no_size, items))
        case LiteralInput(value=value):
            return isinstance(value, bool | float | str | None)
        case _:
            return False
