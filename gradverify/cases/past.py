"""Cases at and past the constants that a target's source holds sizes against: a block, its tail, another.

These sizes were not requested. One that `where:` forbids is no case; one that forward refuses counts for
nothing, and the report says that nothing is known there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gradverify.cases.inputs import ChoicesSpec, ValueSpec
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

LARGEST_DOUBLED = 1024
"""Up to here two whole blocks and a bit are tried, so that what one block hands to the next shows."""

LARGEST_INPUT = 2**20
"""Elements of an input."""

MOST_CASES = 9
"""Cases of a target past constants: three sizes past three constants."""

MOST_AT = 12
"""Cases at constants, their doubles and their successors: four constants, where all sizes are alike."""

LARGEST_ALIKE = 2**16
"""Elements of an input up to which all sizes are alike in one case; beyond, each has a case of its own."""

LEAST_REPORTED = 8
"""Constants from here on are above the usual sizes; an untried smaller bare number is not reported."""


ENOUGH = "enough other sizes are tried"
TOO_LARGE = "its inputs would be too large"


@dataclass(frozen=True)
class _From:
    """What cases past constants are made from: the sizes and options of one case."""

    sweep: Sweep
    cases: Sequence[Case]
    """Those that are planned, of its options."""
    base: Case
    options: str = ""
    """What the ids of its cases begin with: `mode=sum,` where it is not the first case."""

    def at(self, sizes: Mapping[str, int]) -> Case | None:
        """The case at other sizes; None where it has no valid inputs."""
        return resized(self.sweep, self.base, sizes)

    def is_declared(self, name: str) -> bool:
        """Whether the spec lists the values of a size."""
        return any(name == one for one, _ in self.sweep.sizes)

    @property
    def names(self) -> list[str]:
        """The sizes that are dimensions."""
        return [*self.sweep.dimensions(self.base)]


def past_constants(
    sweep: Sweep, cases: Sequence[Case], constants: Sequence[SizeConstant] | None
) -> tuple[tuple[Beyond, ...], tuple[str, ...]]:
    """Plan a case past each constant for each size that no planned case has past it already; without seeds.

    So for the first case, and with it for every value of an option, which may decide where a block ends.
    Then what is not tried, with the reason: `BLOCK = 8192: too large to be tried`.
    """
    with_sizes = [c for c in cases if all(n > 0 for _, n in c.sizes)]
    if constants is None or not with_sizes:
        return (), ()
    known = {constant.value for constant in constants}
    given = (one for one in _given(sweep) if one.value not in known)
    constants = sorted((*constants, *given), key=lambda constant: constant.value)
    first, *others = with_each_option(with_sizes)
    at_first, untried = _past_of(_From(sweep, cases, first), constants)
    found = {one.case.id: one for one in at_first}
    for base in others:
        alike = [case for case in cases if case.options == base.options]
        options = (f"{name}={value}," for name, value in base.options if (name, value) not in first.options)
        for one in _past_of(_From(sweep, alike, base, "".join(options)), constants)[0]:
            if one.constant != ALIGNED:
                found.setdefault(one.case.id, one)
    return tuple(found.values()), tuple(untried)


def _given(sweep: Sweep) -> tuple[SizeConstant, ...]:
    """Numbers that a call is given: how many rows are taken at once, how wide a window is."""
    found: dict[int, SizeConstant] = {}
    for item in sweep.inputs:
        values = (item.value,) if isinstance(item, ValueSpec) else ()
        for value in item.choices if isinstance(item, ChoicesSpec) else values:
            if type(value) is int and LEAST_REPORTED <= value <= LARGEST_CONSTANT:
                found.setdefault(value, SizeConstant(value, item.name, is_argument=True))
    return tuple(found.values())


def _past_of(start: _From, constants: Sequence[SizeConstant]) -> tuple[list[Beyond], dict[str, None]]:
    """What there is past the constants with the options of one case, and what is not tried."""
    found: list[Beyond] = []
    untried: dict[str, None] = {}
    for constant in constants:
        for past in _past(start, tuple(found), constant):
            if isinstance(past, Beyond):
                found.append(past)
            elif _is_reported(constant):
                untried[f"{constant}{past}"] = None
    if start.base.sizes:
        found += _at_each(start, constants, found, untried)
    return found, untried


def _at_each(
    start: _From, constants: Sequence[SizeConstant], past: Sequence[Beyond], untried: dict[str, None]
) -> list[Beyond]:
    """Plan the cases at 16 and at each constant, its double and its successor, in order of price.

    A size that every name has in some planned case is none of them. What a condition of the spec forbids is
    no size of the target, and nothing is missing there.
    """
    found: list[Beyond] = []
    tried = [dict(case.sizes) for case in (*start.cases, *(b.case for b in past))]
    every = (MULTIPLES_OF_16, *(c for c in constants if c.value <= LARGEST_CONSTANT))
    wanted = [(value, c) for c in every for value in _values_at(c)]
    for value, constant in sorted(wanted, key=lambda pair: pair[0]):
        missing = [name for name in start.names if all(sizes.get(name) != value for sizes in tried)]
        possible = list(_at(start, missing, value))
        small = [(names, case) for names, case in possible if _largest(case) <= LARGEST_INPUT]
        reason = TOO_LARGE if possible and not small else ""
        if len(found) + len(small) > MOST_AT:
            small, reason = [], ENOUGH
        if reason and _is_reported(constant):
            untried[f"{constant} ({missing[0]}={value}): {reason}"] = None
        tried += [dict(case.sizes) for _, case in small]
        found += [
            Beyond(
                _named(start, case, ",".join(f"{name}={value}" for name in names), value, constant),
                str(constant),
                names[0],
                any(map(start.is_declared, names)),
                _is_reported(constant),
                _in_order(start, missing, case, value, constant),
                constant.value,
            )
            for names, case in small
        ]
    return found


def _in_order(
    start: _From, names: Sequence[str], one: Case, value: int, constant: SizeConstant
) -> tuple[Case, ...] | None:
    """Cases at a value that keep the order of the sizes; None where `one` does.

    All at multiples of it, in their order; and each alone at it, with those that are larger moved up.
    """
    larger = _larger(start.cases)
    if _keeps(dict(one.sizes), larger):
        return None
    sizes = dict(start.base.sizes)
    multiples = {name: value * (1 + _rank(name, larger)) for name in names}
    moved = [
        {n: value if n == name else value + s - sizes[name] if (n, name) in larger else s
         for n, s in sizes.items()}
        for name in names
    ]  # fmt: skip
    found = []
    for asked in ({**sizes, **multiples}, *moved):
        case = start.at(asked) if _keeps(asked, larger) else None
        if case is not None and _largest(case) <= LARGEST_INPUT:
            said = ",".join(f"{n}={s}" for n, s in asked.items() if s != sizes[n])
            found.append(_named(start, case, said, value, constant))
    return tuple(found)


def _named(start: _From, case: Case, sizes: str, value: int, constant: SizeConstant) -> Case:
    """`n=64, at BLOCK = 64`, also for a multiple of it; `n=65, just past BLOCK = 64`."""
    where = "just past" if _is_past(value, constant.value) else "at"
    return replace(case, id=f"{start.options}{sizes}, {where} {constant}")


def _larger(cases: Sequence[Case]) -> frozenset[tuple[str, str]]:
    """Pairs of sizes of which the first is the larger one in every case that has no empty tensor."""
    several = [dict(case.sizes) for case in cases if all(n > 0 for _, n in case.sizes)]
    names = several[0] if several else {}
    return frozenset((a, b) for a in names for b in names if all(s[a] > s[b] for s in several))


def _keeps(sizes: Mapping[str, int], larger: frozenset[tuple[str, str]]) -> bool:
    return all(sizes[a] > sizes[b] for a, b in larger)


def _rank(name: str, larger: frozenset[tuple[str, str]]) -> int:
    """How many sizes at most stand below each other below this one."""
    below = [b for a, b in larger if a == name]
    return 1 + max(_rank(b, larger) for b in below) if below else 0


def _values_at(constant: SizeConstant) -> tuple[int, ...]:
    """Sizes for which `n == c`, `n in (c, ...)`, `n % c == 0`, `n <= c` and `n > c` come out differently.

    What is cut into a few parts is mostly broadcast, or meant for none, where one is left over.
    """
    value = constant.value
    if constant is MULTIPLES_OF_16:
        return (value,)
    return (value, 2 * value, value + 1) if _is_reported(constant) else (value, 2 * value)


def _at(start: _From, names: Sequence[str], value: int) -> Iterator[tuple[Sequence[str], Case]]:
    """The base case with all of some sizes at a value; with each alone where that is large or forbidden."""
    alike = start.at(dict.fromkeys(names, value)) if names else None
    if alike is not None and _largest(alike) <= LARGEST_ALIKE:
        yield names, alike
        return
    for name in names:
        alone = start.at({name: value})
        if alone is not None:
            yield [name], alone


def _past(start: _From, found: Sequence[Beyond], constant: SizeConstant) -> Iterator[Beyond | str]:
    """One case for each size that is not past the constant in any case yet, or why there is none.

    What a condition of the spec forbids is no size of the target, and nothing is missing there.
    """
    if constant.value > LARGEST_CONSTANT:
        yield ": it is too large to be tried"
        return
    if not start.base.sizes or len(found) >= MOST_CASES:
        yield f": {ENOUGH if start.base.sizes else 'the spec names no sizes'}"
        return
    for name in start.names:
        own = [b.case for b in found if b.size == name]
        listed = [dict(case.sizes).get(name, 0) for case in start.cases]
        known = [*listed, *(dict(case.sizes)[name] for case in own)]
        declared = start.is_declared(name)
        if any(_is_past(n, constant.value) for n in known) or (declared and _is_of_pairs(listed, constant)):
            continue
        possible = ((value, start.at({name: value})) for value in _sizes_past(constant.value))
        value, case = next(((n, made) for n, made in possible if made is not None), (0, None))
        if case is None:
            continue
        if _largest(case) <= LARGEST_INPUT:
            past = replace(case, id=f"{start.options}{name}={value}, past {constant}")
            yield Beyond(past, str(constant), name, declared, _is_reported(constant), number=constant.value)
        else:
            yield f" ({name}={value}): {TOO_LARGE}"


def _is_reported(constant: SizeConstant) -> bool:
    """Whether it matters that nothing is known past a constant: `range(3)` is mostly an axis of three."""
    return not constant.is_argument and (bool(constant.name) or constant.value >= LEAST_REPORTED)


def _is_past(size: int, constant: int) -> bool:
    """Larger, and with a tail: a whole number of blocks has none."""
    return size > constant and size % constant != 0


def _is_of_pairs(listed: Sequence[int], constant: SizeConstant) -> bool:
    """Whether a spec lists multiples of a small number alone: halves, pairs, quaternions.

    A number with a name is a block, whose tail is to be tried.
    """
    return (
        not constant.name
        and constant.value < LEAST_REPORTED
        and all(size % constant.value == 0 for size in listed)
    )


def _sizes_past(constant: int) -> tuple[int, ...]:
    """The most telling first: others where a condition of the spec forbids it."""
    if constant > LARGEST_DOUBLED:
        return constant + 1, 2 * constant
    return 2 * constant + 1, constant + 1, 2 * constant, 3 * constant, constant + constant // 2


def _largest(case: Case) -> int:
    return max((math.prod(t.shape) for i in case.inputs for t in tensors_of(i)), default=0)
