"""Values at which formats overflow or cancel: what a spec declares, else typical ones moved.

How far entries may move and stay valid: within their range and domain, and not over a declared kink.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.model import Case, ConcatInput, Input, ListInput, Point, TensorInput, tensors_of
from gradverify.verifier.checks.samples import exact_arguments_at
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.inputs.values import DOMAINS, interval_of

SPLIT_BY_ZERO = "nonzero"
"""The domain of two parts, which no step may connect."""


def room_around(case: Case, arguments: Sequence[Argument]) -> list[Tensor]:
    """For each differentiable argument, float64 and shaped like it; infinite where nothing limits a move.

    Of what a hook builds only declared kinks are known.
    """
    kinks = {a.name: a.avoid for a in case.annotations}
    declared: dict[str, Sequence[TensorInput]] = {}
    for an_input in case.inputs:
        if isinstance(an_input, ConcatInput):
            declared[an_input.name] = an_input.parts
        else:
            declared |= {t.name: (t,) for t in tensors_of(an_input)}
    found = []
    for argument in (a for a in arguments if a.differentiable):
        value = argument.value.detach()
        if value.is_complex() or not value.is_floating_point():
            found.append(torch.full(value.shape, torch.inf, dtype=torch.float64, device=value.device))
            continue
        x = value.double()
        room = _apart(x, kinks.get(argument.name, ()))
        parts = declared.get(argument.name, ())
        if len(parts) == 1:
            room = torch.minimum(room, _room(x, parts[0]))
        elif parts and sum(p.shape[-1] for p in parts) == x.shape[-1]:
            each = zip(x.split([p.shape[-1] for p in parts], dim=-1), parts, strict=True)
            room = torch.minimum(room, torch.cat([_room(part, spec) for part, spec in each], dim=-1))
        found.append(room)
    return found


def _room(x: Tensor, spec: TensorInput) -> Tensor:
    low, high = DOMAINS[spec.domain]
    if spec.range is not None:
        low, high = max(low, spec.range[0]), min(high, spec.range[1])
    inside = torch.minimum(x - low, high - x).clamp_min(0.0)
    apart = (*spec.avoid, 0.0) if spec.domain == SPLIT_BY_ZERO else spec.avoid
    return torch.minimum(inside, _apart(x, apart))


def _apart(x: Tensor, points: Iterable[float]) -> Tensor:
    """The distance of each entry to the nearest of some points."""
    room = torch.full_like(x, torch.inf)
    for point in points:
        room = torch.minimum(room, (x - point).abs())
    return room


@dataclass(frozen=True)
class ValueRange:
    """Typical values times a factor, plus a shift; or as large as `largest`."""

    name: str
    factor: float = 1.0
    shift: float = 0.0
    largest: float = 0.0
    """The entry of the largest magnitude becomes this number, and the others in proportion; 0 for none."""

    def moves(self, argument: Argument, free: frozenset[str]) -> Tensor:
        """An argument's value in this range; one that the spec limits stays as it was drawn."""
        value: Tensor = argument.value
        if argument.name not in free and argument.in_list not in free:
            return value
        if self.largest:
            return _scaled(value, self.largest)
        if self.factor == 1 and not self.shift:
            return value
        return value * self.factor + self.shift


def _scaled(value: Tensor, largest: float) -> Tensor:
    entry = value.reshape(-1)[value.abs().argmax()] if value.numel() else value.new_zeros(())
    if entry == 0:
        return value
    return value * (largest / (entry.abs() if value.is_complex() else entry))


AS_DRAWN = ValueRange("")

RANGE = "the declared range"
"""The name of values over all of it."""

ENDS = ("near the low end of the declared range", "near the high end of the declared range")

BOTH_ENDS = "near either end of the declared range"
"""The name of values each of which is near one of the ends: as far from each other as may be."""

NEAR = 2.0**-10
"""Share of an end, or of the range's width where that is less, within which values are near it: so near that
squares of them cancel, and ties of float32 are rare."""

OPPOSITE_ENDS = "near opposite ends of the declared ranges"
"""The name of values of which one input's are near the low end and the next one's near the high end."""

MIXED_SEED = 307
"""Added to a case's seed for which entry is near which end; any other would do."""

HALF = 0.5
"""Share of the entries that are near the low end."""

MAGNITUDES = 2
"""Magnitudes inside of a range, evenly spread over the decades between its largest and its smallest one."""

SMALLEST = 1e-4
"""The smallest magnitude of a range that holds zero, beside its largest one, or one where that is larger."""

DECADES = 1e3
"""Factor between the largest and the smallest magnitude of a range from which there are others inside."""

EXTREMES = (
    ValueRange("values up to 120", largest=120.0),
    ValueRange("values plus 1000", shift=1000.0),
    ValueRange("values times 0.001", factor=1e-3),
)
"""Overflow without a maximum shows beyond 89, the logarithm of the largest number in float32, whichever
typical values were drawn; cancellation in E[x^2] - E[x]^2 at plus 1000 (measured)."""


def free_inputs(case: Case) -> frozenset[str]:
    """Names of the inputs that nothing in the spec limits; none where a hook draws them."""
    if case.hook:
        return frozenset()
    return frozenset(i.name for i in case.inputs if all(map(_is_free, tensors_of(i))) and tensors_of(i))


@dataclass(frozen=True)
class Declared:
    """Values that a spec says are valid."""

    name: str
    """Of the range of values, for sentences."""
    point: Point
    arguments: tuple[Argument, ...]
    """In float64."""


def declared_values(sample: Sample, dtype: torch.dtype) -> Iterator[Declared]:
    """The arguments over the declared range, near its ends and at magnitudes inside, and at special values.

    As far as the spec declares any; none leaves its range by being rounded to `dtype`.
    """
    case = sample.case
    if case.hook:
        return
    asked = []
    if declares_range(case):
        asked.append((RANGE, Point.WIDE, case))
        narrow = [
            (ENDS[0], _near_low),
            (ENDS[1], _near_high),
            *(("a magnitude inside the declared range", _magnitude(1 + k)) for k in range(MAGNITUDES)),
        ]
        asked += [(name, Point.WIDE, _narrowed(case, narrower)) for name, narrower in narrow]
    if any(t.special for i in case.inputs for t in tensors_of(i)):
        asked.append(("declared special values", Point.SPECIAL, case))
    seen, ends = [case.inputs], list[Declared]()
    for name, point, narrowed in asked:
        if narrowed is not case and narrowed.inputs in seen:
            continue
        seen.append(narrowed.inputs)
        drawn = exact_arguments_at(sample.subject, narrowed, point, 0)
        if not isinstance(drawn, Raised):
            found = Declared(name, point, tuple(_kept_inside(drawn, case, dtype)))
            ends += [found] if name in ENDS else []
            yield found
    if len(ends) == len(ENDS):
        low, high = (one.arguments for one in ends)
        yield Declared(BOTH_ENDS, Point.WIDE, _mixed(low, high, case.seed))
        opposite = _opposite(low, high)
        if opposite is not None:
            yield Declared(OPPOSITE_ENDS, Point.WIDE, opposite)


def declares_range(case: Case) -> bool:
    """Whether the range of some floating input is declared."""
    return any(t.range is not None and _is_drawn(t) for i in case.inputs for t in tensors_of(i))


def largest_declared(case: Case) -> float:
    """The largest magnitude that an input may have; at least one where the spec does not say."""
    floating = [t for i in case.inputs for t in tensors_of(i) if _is_floating(t)]
    return max((max(map(abs, t.range)) if t.range else 1.0 for t in floating), default=1.0)


def _narrowed(case: Case, narrower: Callable[[float, float], tuple[float, float] | None]) -> Case:
    """The case with other declared ranges; what has none, or is built otherwise, stays as it is."""

    def of_tensor(spec: TensorInput) -> TensorInput:
        if spec.range is None or not _is_drawn(spec):
            return spec
        low, high = interval_of(spec, Point.WIDE)
        found = narrower(low, high)
        return spec if found is None or not found[0] < found[1] else replace(spec, range=found)

    def of_input(given: Input) -> Input:
        match given:
            case TensorInput():
                return of_tensor(given)
            case ListInput():
                return replace(given, items=tuple(map(of_tensor, given.items)))
            case ConcatInput():
                return replace(given, parts=tuple(map(of_tensor, given.parts)))
            case _:
                return given

    return replace(case, inputs=tuple(map(of_input, case.inputs)))


def _mixed(low: Sequence[Argument], high: Sequence[Argument], seed: int) -> tuple[Argument, ...]:
    """Arguments with each entry from one of two, at random; what both have alike stays."""
    generator = torch.Generator().manual_seed((seed + MIXED_SEED) % 2**63)
    mixed = []
    for a, b in zip(low, high, strict=True):
        value = a.value
        if isinstance(value, Tensor) and value.is_floating_point() and value.shape == b.value.shape:
            is_low = (torch.rand(value.shape, generator=generator) < HALF).to(value.device)
            value = torch.where(is_low, value, b.value)
        mixed.append(replace(a, value=value))
    return tuple(mixed)


def _opposite(low: Sequence[Argument], high: Sequence[Argument]) -> tuple[Argument, ...] | None:
    """Arguments with a range in turn near the low and the high end of it; None where there is but one."""
    differ = [
        isinstance(a.value, Tensor) and not torch.equal(a.value, b.value)
        for a, b in zip(low, high, strict=True)
    ]
    if sum(differ) < len(ENDS):
        return None
    turn = itertools.cycle((True, False))
    pairs = zip(low, high, differ, strict=True)
    return tuple(a if not is_ranged or next(turn) else b for a, b, is_ranged in pairs)


def _near_low(low: float, high: float) -> tuple[float, float]:
    return low, low + NEAR * min(high - low, abs(low))


def _near_high(low: float, high: float) -> tuple[float, float]:
    return high - NEAR * min(high - low, abs(high)), high


def _magnitude(step: int) -> Callable[[float, float], tuple[float, float] | None]:
    """What makes a range one of numbers of one magnitude, so many steps below the largest one."""

    def narrower(low: float, high: float) -> tuple[float, float] | None:
        largest = max(abs(low), abs(high))
        through_zero = low <= 0 <= high
        smallest = SMALLEST * min(largest, 1.0) if through_zero else min(abs(low), abs(high))
        if largest < DECADES * smallest:
            return None
        size = largest * (smallest / largest) ** (step / (MAGNITUDES + 1))
        if through_zero:
            return max(low, -size), min(high, size)
        return (size / 2, size) if low > 0 else (-size, -size / 2)

    return narrower


def _kept_inside(arguments: Sequence[Argument], case: Case, dtype: torch.dtype) -> Iterator[Argument]:
    """The arguments, those that rounding would move out of their declared range one number further in."""
    ranges = {t.name: t.range for i in case.inputs for t in tensors_of(i) if t.range and _is_drawn(t)}
    for argument in arguments:
        given, value = ranges.get(argument.name), argument.value
        if given is None or not isinstance(value, Tensor) or value.dtype != torch.float64 or argument.step:
            yield argument
            continue
        short, inward = value.to(dtype).double(), torch.finfo(dtype).eps * value.abs()
        value = torch.where(short > given[1], value - inward, value)
        yield replace(argument, value=torch.where(short < given[0], value + inward, value))


def _is_drawn(spec: TensorInput) -> bool:
    return _is_floating(spec) and not spec.structure and spec.value is None and not spec.make


def _is_free(spec: TensorInput) -> bool:
    drawn = spec.value is None and not spec.make and not spec.structure and not spec.avoid
    return drawn and _is_floating(spec) and spec.range is None and spec.domain == "real"


def _is_floating(spec: TensorInput) -> bool:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype.is_floating_point or dtype.is_complex
