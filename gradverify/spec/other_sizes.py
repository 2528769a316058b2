"""Cases at other sizes, run only to find out why a failing target is wrong: a law of the sizes needs two.

Sizes that a spec leaves open: a bug may show at one size only, and a symbolic shape names none.

`{x: [n, d]}` without `sizes:` says that any sizes are valid, and its case has but one of each. Others follow
here: one more of each, all alike (a transposition that is guessed from shapes needs non-square ones), and
each alone at 1 (`squeeze`, a sum over what looks broadcast). Where `sizes:` lists what is valid, nothing is
left open: 0 and 1 are tried in a thorough run, and what is wrong there is a warning. Sizes that were inferred
are tried at 1 alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice

from gradverify.model import Case, Input, ListInput, LiteralInput, Scalar, TensorInput
from gradverify.spec.cases import bound_case, case_id
from gradverify.spec.inputs import GIVEN
from gradverify.spec.sizes import InfeasibleError
from gradverify.spec.sweep import Factor, Sweep, allowed, factors_of

MOST_SPARES = 3
"""Spare cases of one combination of options: forward may refuse the first."""

SMALLEST = 3
"""Other sizes start here: at 1 and 2 a flip, a shift and a transposition are the same."""

REACH = 5
"""A size is odd where it was even as long as it need not grow by more than this: Jacobians grow with it."""

SPARE_ID = "other sizes"
"""The id of a spare of a case without named sizes."""

_Keep = Callable[[int], bool]

_PLANS: tuple[tuple[_Keep, bool], ...] = (
    (lambda n: n < 2, False),
    (lambda n: n < SMALLEST, False),
    (lambda _: False, False),
    (lambda n: n < 2, True),
)
"""Which sizes stay as they are (paddings, strides), and whether the others are doubled: that keeps what
divides what."""


def spare_cases(sweep: Sweep, cases: Sequence[Case]) -> tuple[Case, ...]:
    """Cases with other sizes that the spec allows, some for each combination of options; without seeds."""
    factors = factors_of(sweep)
    first: dict[object, Case] = {}
    for case in cases:
        if all(n > 0 for _, n in case.sizes):
            first.setdefault(case.options, case)
    return tuple(spare for case in first.values() for spare in _spares(sweep, factors, case))


def resized(case: Case) -> tuple[Case, ...]:
    """The same for a case without named sizes: dimensions that are equal stay equal.

    Empty where something else may follow from a dimension: an integer, an index, a structure with a bound.
    """
    found: list[Case] = []
    for other in _other_sizes(dimensions_of(case)):
        spare = with_dimensions(case, other)
        if all(spare.inputs != known.inputs for known in found):
            found.append(spare)
    return tuple(found[:MOST_SPARES])


def dimensions_of(case: Case) -> dict[str, int]:
    """The dimensions of a case's tensors by their length; empty where they cannot be changed alone."""
    if case.hook or case.annotations or case.init is not None:
        return {}
    if not all(_follows_no_size(an_input) for an_input in case.inputs):
        return {}
    return {str(n): n for an_input in case.inputs for shape in _shapes(an_input) for n in shape}


def with_dimensions(case: Case, other: Mapping[str, int]) -> Case:
    """The case with other lengths in the place of those that `dimensions_of` names."""
    return replace(case, id=SPARE_ID, inputs=tuple(_with_shapes(an_input, other) for an_input in case.inputs))


def _spares(sweep: Sweep, factors: Sequence[Factor], case: Case) -> Iterator[Case]:
    if not case.sizes:
        yield from resized(case)
        return
    ids: set[str] = set()
    ranks = {name: n for name, n in case.sizes if name in sweep.of_ranks}
    for others in _other_sizes({name: n for name, n in case.sizes if name not in ranks}):
        sizes = {**ranks, **others}
        if len(ids) < MOST_SPARES and allowed(sweep, sizes) is None:
            spare = case_at(sweep, factors, case, sizes)
            if spare is not None and spare.id not in ids:
                ids.add(spare.id)
                yield spare


def case_at(sweep: Sweep, factors: Sequence[Factor], case: Case, sizes: Mapping[str, int]) -> Case | None:
    """A case with the same options at other sizes, without its seed; None where it has no valid inputs."""
    options = dict(case.options)
    row: tuple[Scalar, ...] = tuple(
        sizes[f.name] if f.is_size else options.get(f.name, GIVEN if f.is_optional else f.levels[0])
        for f in factors
    )
    automatic = {name: sizes[name] for name in sweep.automatic}
    try:
        spare = bound_case(replace(sweep, automatic=automatic), factors, row)
    except InfeasibleError:
        return None
    if automatic:
        named = ",".join(f"{name}={n}" for name, n in sizes.items())
        spare = replace(spare, id=f"{SPARE_ID}: {named}")
    return spare


def _other_sizes(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Other values, pairwise different and at least three, the likeliest to be valid first."""
    for stays, doubled in _PLANS:
        other = {name: n for name, n in sizes.items() if stays(n)}
        for name, n in sizes.items():
            if name not in other:
                chosen = [(sizes[known], m) for known, m in other.items()]
                other[name] = 2 * n if doubled else _unused(n, chosen)
        if any(other[name] != n for name, n in sizes.items()):
            yield {name: other[name] for name in sizes}


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
    return next(k for k in chain(near, all_others) if k not in taken)


def _shapes(an_input: Input) -> tuple[tuple[int, ...], ...]:
    match an_input:
        case TensorInput():
            return (an_input.shape,)
        case ListInput():
            return tuple(item.shape for item in an_input.items)
        case _:
            return ()


def _follows_no_size(an_input: Input) -> bool:
    match an_input:
        case TensorInput():
            plain = an_input.dtype.startswith(("float", "complex")) and not an_input.structure
            return plain and not an_input.constant_at and not an_input.make and an_input.value is None
        case ListInput():
            return all(_follows_no_size(item) for item in an_input.items)
        case LiteralInput(value=value):
            return isinstance(value, bool | float | str | None)
        case _:
            return False


def _with_shapes(an_input: Input, other: Mapping[str, int]) -> Input:
    match an_input:
        case TensorInput():
            return _reshaped(an_input, other)
        case ListInput():
            return replace(an_input, items=tuple(_reshaped(item, other) for item in an_input.items))
        case _:
            return an_input


def _reshaped(tensor: TensorInput, other: Mapping[str, int]) -> TensorInput:
    return replace(tensor, shape=tuple(other[str(n)] for n in tensor.shape))


ALL_ALIKE = 3
"""What every open size is in a square case: odd, and no multiple of anything usual."""

MOST_WITH_OPTIONS = 4
"""Combinations of options that are tried at further sizes."""

MOST_OPEN = 8
"""Cases at open sizes: the two with others, and six sizes at 1; each costs a few evaluations."""

Sizes = Mapping[str, int]


def with_each_option(cases: Sequence[Case]) -> tuple[Case, ...]:
    """The first case, and others so that every value of an option occurs: code branches by them.

    What is tried at further sizes is tried with each of these.
    """
    found: list[Case] = [*cases[:1]]
    while len(found) < MOST_WITH_OPTIONS:
        seen = {option for case in found for option in case.options}
        best = max(cases, key=lambda case: len({*case.options} - seen), default=None)
        if best is None or {*best.options} <= seen:
            break
        found.append(best)
    return tuple(found)


def open_sized(sweep: Sweep, base: Case) -> tuple[Case, ...]:
    """A case at other sizes of those that the spec leaves open; without seeds."""
    if sweep.hook or not sweep.automatic:
        return ()
    return tuple(islice(_cases(sweep, base, _open(sweep.automatic)), MOST_OPEN))


def degenerate(sweep: Sweep, base: Case) -> tuple[Case, ...]:
    """A case with one size at 0 or 1 that is not listed; without seeds."""
    if sweep.hook:
        return ()
    sizes = dict(base.sizes)
    listed = {name: set(sweep.sizes.get(name, ())) for name in sizes}
    others = (
        {**sizes, name: n}
        for name in sizes
        if name not in sweep.of_ranks
        for n in (0, 1)
        if n not in listed[name] and not (n == 1 and name in sweep.automatic)
    )
    return tuple(_cases(sweep, base, others))


def of_one(sweep: Sweep, base: Case) -> tuple[Case, ...]:
    """A case with one size at 1 in turn, where inference lists no such size; without seeds."""
    sizes = dict(base.sizes)
    names = (name for name in sizes if name not in sweep.of_ranks and 1 not in sweep.sizes.get(name, ()))
    return tuple(_cases(sweep, base, ({**sizes, name: 1} for name in names)))


def _open(automatic: Sizes) -> Iterator[dict[str, int]]:
    # Each of the first ones is even where its successor is odd: both halves and tails occur.
    yield {name: n + 1 for name, n in automatic.items()}
    if len(automatic) > 1:
        yield dict.fromkeys(automatic, ALL_ALIKE)
    for name in automatic:
        yield {**automatic, name: 1}


def _cases(sweep: Sweep, base: Case, others: Iterator[dict[str, int]]) -> Iterator[Case]:
    factors = factors_of(sweep)
    for other in others:
        sizes = {**dict(base.sizes), **other}
        case = case_at(sweep, factors, base, sizes) if allowed(sweep, sizes) is None else None
        if case is not None:
            yield replace(case, id=case_id(list(case.sizes), list(case.options)))
