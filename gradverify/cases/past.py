"""Cases at and past the constants that a target's source holds sizes against: a block, two, and its tail.

These sizes were not requested. One that `where:` forbids is no case; one that forward refuses counts for
nothing, and the report says that nothing is known there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradverify.cases.inputs import levels
from gradverify.cases.sweep import Sweep, resized, with_each_option
from gradverify.model import ALIGNED, Beyond, Case, SizeConstant, tensors_of

BLOCK_OF_THREADS = SizeConstant(1024, "threads in a block")
"""The most there are (CUDA C++ Programming Guide, technical specifications per compute capability).

The blocks of compiled code cannot be read; they are powers of 2 up to this, so twice this and one has a tail.
"""

MULTIPLES_OF_16 = SizeConstant(16, ALIGNED)
"""Where vector loads, tensor cores and unrolled loops have their own path, whatever the source says."""

LARGEST_CONSTANT = 4096
"""Constants beyond are said, not tried: what is quadratic in a size would take gigabytes."""

LARGEST_INPUT = 2**20
"""Elements of an input."""

MOST_CASES = 12
"""Cases of one combination of options: three sizes at four constants, where all sizes are alike."""

LARGEST_ALIKE = 2**16
"""Elements of an input up to which all sizes are alike in one case; beyond, each has a case of its own."""

LEAST_REPORTED = 8
"""Constants from here on are above the usual sizes; an untried smaller bare number is not reported."""


ENOUGH = "enough other sizes are tried"
TOO_LARGE = "its inputs would be too large"


def past_constants(
    sweep: Sweep, cases: Sequence[Case], constants: Sequence[SizeConstant] | None
) -> tuple[tuple[Beyond, ...], tuple[str, ...]]:
    """Plan cases at each constant, at its double and at its successor; without seeds.

    So for the first case, and with it for every value of an option, which may decide where a block ends.
    Then what is not tried, with the reason: `BLOCK = 8192: it is too large to be tried`.
    """
    with_sizes = [c for c in cases if all(n > 0 for _, n in c.sizes)]
    if constants is None or not with_sizes:
        return (), ()
    every = [*constants, *_given(sweep)]
    first, *others = with_each_option(with_sizes)
    found, untried = _past_of(sweep, first, cases, (*[MULTIPLES_OF_16] * bool(first.sizes), *every))
    for base in others:
        alike = [case for case in cases if case.options == base.options]
        said = "".join(f"{n}={value}," for n, value in base.options if (n, value) not in first.options)
        more = _past_of(sweep, base, alike, every)[0]
        found += [replace(one, case=replace(one.case, id=f"{said}{one.case.id}")) for one in more]
    return tuple({one.case.id: one for one in found}.values()), untried


def _given(sweep: Sweep) -> list[SizeConstant]:
    """Numbers that a call is given: how many rows are taken at once, how wide a window is."""
    return [
        SizeConstant(value, item.name, is_argument=True)
        for item in sweep.inputs
        for value in levels(item) or (getattr(item, "value", None),)
        if type(value) is int and LEAST_REPORTED <= value <= LARGEST_CONSTANT
    ]


def _past_of(
    sweep: Sweep, base: Case, cases: Sequence[Case], constants: Sequence[SizeConstant]
) -> tuple[list[Beyond], tuple[str, ...]]:
    """The cases with the options of one, the smallest sizes first, and what is not tried.

    A size that every name has in some case is none of them. What a condition of the spec forbids is no size
    of the target, and nothing is missing there.
    """
    found: list[Beyond] = []
    whys = {constant: _why_not(constant, base) for constant in constants}
    untried = {(c, 0): f"{c}: {why}" for c, why in whys.items() if why and _is_reported(c)}
    tried = [dict(case.sizes) for case in cases]
    declared = dict(sweep.sizes)
    tails = _is_reported if declared else bool
    wanted = [(n, c) for c, why in whys.items() if not why for n in _values_at(c, tail=tails(c))]
    for value, constant in sorted(wanted, key=lambda pair: pair[0]):
        missing = [name for name in sweep.dimensions(base) if all(s.get(name) != value for s in tried)]
        where = f"{'at' if value % constant.value == 0 else 'just past'} {constant}"
        for names, case in _at(sweep, base, missing, value):
            is_large = _largest(case) > LARGEST_INPUT
            if not is_large and len(found) < MOST_CASES:
                at = replace(case, id=f"{','.join(f'{name}={value}' for name in names)}, {where}")
                listed, reported = any(name in declared for name in names), _is_reported(constant)
                found.append(Beyond(at, str(constant), names[0], listed, reported, constant.value))
                tried.append(dict(case.sizes))
            elif _is_reported(constant):
                why = TOO_LARGE if is_large else ENOUGH
                untried.setdefault((constant, value), f"{constant} ({names[0]}={value}): {why}")
    return found, tuple(untried.values())


def _why_not(constant: SizeConstant, base: Case) -> str:
    """Why nothing is tried at a constant; empty where it is."""
    if constant.value > LARGEST_CONSTANT:
        return "it is too large to be tried"
    return "" if base.sizes else "the spec names no sizes"


def _values_at(constant: SizeConstant, *, tail: bool) -> tuple[int, ...]:
    """Sizes for which `n == c`, `n in (c, ...)`, `n % c == 0`, `n <= c` and `n > c` come out differently.

    Where a spec lists sizes, what is cut into a few parts is mostly meant for none where one is left over:
    halves, pairs, quaternions.
    """
    value = constant.value
    if constant is MULTIPLES_OF_16:
        return (value,)
    return (value, 2 * value, value + 1) if tail else (value, 2 * value)


def _at(sweep: Sweep, base: Case, names: Sequence[str], value: int) -> Iterator[tuple[Sequence[str], Case]]:
    """The base case with all of some sizes at a value; with each alone where that is large or forbidden."""
    together = resized(sweep, base, dict.fromkeys(names, value)) if names else None
    if together is not None and _largest(together) <= LARGEST_ALIKE:
        yield names, together
        return
    for name in names:
        alone = resized(sweep, base, {name: value})
        if alone is not None:
            yield [name], alone


def _is_reported(constant: SizeConstant) -> bool:
    """Whether it matters that nothing is known past a constant: `range(3)` is mostly an axis of three."""
    return not constant.is_argument and (bool(constant.name) or constant.value >= LEAST_REPORTED)


def _largest(case: Case) -> int:
    return max((math.prod(t.shape) for i in case.inputs for t in tensors_of(i)), default=0)
