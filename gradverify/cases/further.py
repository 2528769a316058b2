"""Cases beside the listed ones: all that a run verifies of a sweep, made alike on both sides of the border.

Sizes that a spec leaves open: a bug may show at one size only, and a symbolic shape names none.
`{x: [n, d]}` without `sizes:` says that any sizes are valid, and its case has but one of each. Others follow
here: one more of each, all alike (a transposition that is guessed from shapes needs non-square ones), and
each alone at 1 (`squeeze`, a sum over what looks broadcast). Where `sizes:` lists what is valid, nothing is
left open: each is tried alone at the next number after those, 0 and 1 in a thorough run, and what is wrong
there is a warning. Sizes that were inferred are tried at 1 alone.

Options are where code branches. A pair of them occurs together in some case, three need not: `causal`, with a
mask and without dropout, say. Each that no case has is judged once, at the sizes of the base case; and where
they are few, so is every combination with listed sizes, of which a stride, a window and a length make three.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradverify.cases.beside import with_values_beside
from gradverify.cases.inputs import COMPLEX, FLOATING, InputSpec, TensorSpec, ValueSpec
from gradverify.cases.past import past_constants
from gradverify.cases.selecting import matches
from gradverify.cases.sizes import Expression
from gradverify.cases.sweep import (
    PAIRWISE,
    PAIRWISE_FIRST,
    Sweep,
    build_cases,
    case_at,
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

ALL_ALIKE = 3
"""What every open size is in a square case: odd, and no multiple of anything usual."""

MOST_OPEN = 8
"""Cases at open sizes: the two with others, and six sizes at 1; each costs a few evaluations."""

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
    together = () if quick else _combined(sweep, cases, inferred=asked.inferred)
    unlisted = [case for base in bases for case in _unlisted(asked, base)]
    past, untried = past_constants(sweep, whole.cases, None if quick or asked.selected else asked.constants)
    plan = replace(
        plan,
        asked=asked,
        cases=with_values_beside(_ready(asked, cases), asked.thresholds),
        infeasible=listed.infeasible,
        declared=_ready(asked, whole.cases) if quick else (),
        spares=_ready(asked, _spares(sweep, whole.cases)) if asked.spares else (),
        open_sized=_ready(asked, (*open_sized, *itertools.islice(together, MOST_COMBINED))),
        degenerate=_ready(asked, unlisted),
        beyond=tuple(replace(one, case=_ready(asked, [one.case])[0]) for one in past),
        not_beyond=untried,
    )
    plan = plan if asked.on_cpu else _off_cpu(plan, asked.inferred)
    return _fitting(_selected(plan, asked), asked.memory)


def _ready(asked: Asked, cases: Iterable[Case]) -> tuple[Case, ...]:
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


def _unlisted(asked: Asked, base: Case) -> Iterator[Case]:
    """Cases with one size that is not listed: inferred ones at 1, others at 0 and 1 where a run is thorough.

    And at the next number after those that are listed, if all of these are odd, or even.
    """
    sweep, thorough = asked.sweep, asked.effort is Effort.THOROUGH
    ends = (1,) if asked.inferred else (0, 1) if thorough else ()
    for name in () if sweep.hook else sweep.dimensions(base):
        listed = dict(sweep.sizes).get(name, ())
        known = listed or (1,) * (name in dict(sweep.automatic) and not asked.inferred)
        is_mixed = asked.inferred or len({n % 2 for n in listed}) != 1
        others = ends if is_mixed else (*ends, max(listed) + 1)
        yield from _at(sweep, base, ({name: n} for n in others if n not in known))


def _at(sweep: Sweep, base: Case, others: Iterator[dict[str, int]]) -> Iterator[Case]:
    return (case for other in others if (case := resized(sweep, base, other)) is not None)


def are_few(sweep: Sweep, cases: int) -> bool:
    """Whether every combination of sizes and options is judged, beside so many cases."""
    return every_row(factors_of(sweep)) <= MOST_COMBINED + cases


def _combined(sweep: Sweep, cases: Sequence[Case], *, inferred: bool) -> Iterator[Case]:
    """Cases that pairs leave out; where they are many, or sizes `inferred`, at the sizes of the base case."""
    if sweep.hook or sweep.rows != PAIRWISE:
        return
    factors, listed = factors_of(sweep), {case.id for case in cases}
    fixed = {} if are_few(sweep, len(cases)) and not inferred else dict(cases[0].sizes)
    for row in itertools.product(*((fixed[f.name],) if f.name in fixed else f.levels for f in factors)):
        case = case_at(sweep, *named(factors, row))
        if isinstance(case, Case) and case.id not in listed:
            yield case


def _spares(sweep: Sweep, cases: Sequence[Case]) -> Iterator[Case]:
    """Cases with other sizes that the spec allows, some for each combination of options; without seeds.

    They are run only to find out why a failing target is wrong: a law of the sizes needs two.
    """
    first: dict[object, Case] = {}
    for case in cases:
        if all(n > 0 for _, n in case.sizes):
            first.setdefault(case.options, case)
    sweep = with_lengths_named(sweep)
    for case in first.values():
        sizes = {**dict(sweep.automatic), **sweep.dimensions(case)}
        found = {one.id: one for one in _at(sweep, case, _other_sizes(sizes))}
        yield from [*found.values()][:MOST_SPARES]


def with_lengths_named(sweep: Sweep) -> Sweep:
    """The sweep with an open size for each written length; as it is where something may follow from one."""
    if sweep.sizes or sweep.hook or sweep.init or not all(map(_follows_no_length, sweep.inputs)):
        return sweep
    shapes = [item.shape for item in sweep.inputs if isinstance(item, TensorSpec)]
    lengths = {n: f"size_{n}" for shape in shapes for n in shape if isinstance(n, int)}
    inputs = [
        replace(i, shape=tuple(Expression(lengths[n]) if n in lengths else n for n in i.shape))
        if isinstance(i, TensorSpec)
        else i
        for i in sweep.inputs
    ]
    written = ((name, n) for n, name in lengths.items())
    return replace(sweep, inputs=tuple(inputs), automatic=(*sweep.automatic, *written))


def _follows_no_length(item: InputSpec) -> bool:
    if isinstance(item, TensorSpec):
        return item.value is None and item.dtype in FLOATING + COMPLEX
    return isinstance(item, ValueSpec) and type(item.value) not in {int, tuple}


def _other_sizes(sizes: Sizes) -> Iterator[dict[str, int]]:
    """Other values, pairwise different and at least three, the likeliest to be valid first.

    Odd where they were even: at lengths of one parity alone, strided windows and halves allow readings that
    are wrong at the others.
    """
    for least, doubled in _PLANS:
        other = {name: n for name, n in sizes.items() if n < least}
        for name, n in sizes.items():
            if name not in other:
                odd = itertools.count(SMALLEST + (SMALLEST + n + 1) % 2, 2)
                other[name] = 2 * n if doubled else next(k for k in odd if k not in other.values())
        if other != sizes:
            yield other
