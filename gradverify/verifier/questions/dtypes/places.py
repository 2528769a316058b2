"""Where a dtype is judged: typical values, the declared range with its ends, special values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from gradverify.model import Case, Effort, Point, TensorInput, tensors_of
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.inputs.values import interval_of
from gradverify.verifier.interpreter.launches import interpreted, wrong_product
from gradverify.verifier.questions.dtypes.calls import (
    Arithmetic,
    NativeCall,
    NoCall,
    Truth,
    native_call,
    truth_of,
)
from gradverify.verifier.questions.subject import Sample, exact_arguments_at

COTANGENT_SEED = 61
"""Added to a case's seed for its grad_outputs here."""

RANGE = "the declared range"
"""The name of values over all of it."""

NEAR = 2.0**-10
"""Share of an end, or of the range's width where that is less, within which values are near it: so near that
squares of them cancel, and ties of float32 are rare."""


@dataclass(frozen=True)
class Place:
    """One arithmetic at one set of values."""

    sample: Sample
    arithmetic: Arithmetic
    arguments: Sequence[Argument]
    """In float64."""
    asked: bool
    """The dtype was listed; float32 is judged by default."""
    values: str = ""
    """The name of a range of values; empty for those that were drawn."""

    @property
    def is_stated(self) -> bool:
        """Somebody says that this dtype, or such values, are meant: it was listed, or a range is declared."""
        return self.asked or bool(self.values) or bool(_ranges(self.sample.case))

    @property
    def is_brief(self) -> bool:
        """Rounding was measured at typical values: only what no formula may lose is looked for."""
        return bool(self.values) and not (self.asked and self.values == RANGE)

    def called(self) -> tuple[NativeCall, Truth] | NoCall:
        """A call with its truth; or why there is nothing to judge."""
        before, sample = interpreted(), self.sample
        seed = sample.case.seed + COTANGENT_SEED
        made = native_call(sample.problem, self.arguments, self.arithmetic, seed)
        if interpreted() > before and (why := wrong_product(self.arithmetic.dtype)):
            return NoCall(why)
        if isinstance(made, NoCall):
            return made
        distinct = {i.name for i in sample.case.inputs for t in tensors_of(i) if t.distinct}
        for short, given in zip(made.problem.arguments, self.arguments, strict=True):
            is_distinct = bool({given.name, given.in_list} & distinct)
            if is_distinct and short.value.unique().numel() < given.value.unique().numel():
                return NoCall("rounding its inputs makes equal what the spec says is distinct")
        truth = truth_of(sample, made)
        return NoCall(truth) if isinstance(truth, str) else (made, truth)


def places_of(typical: Place, *, in_full: bool) -> Iterator[Place]:
    """Typical values, and what the spec declares; that no more than once for each combination of options."""
    yield typical
    sample = typical.sample
    case, subject = sample.case, sample.subject
    once = sample.point is Point.TYPICAL and not sample.draw and subject.is_first_of_options
    if not (in_full and once) or case.hook or subject.settings.effort is Effort.QUICK:
        return
    ranges, special = _ranges(case), any(t.special for i in case.inputs for t in tensors_of(i))
    generator = torch.Generator().manual_seed(case.seed)
    for name, of_several, point, part in _DECLARED:
        each = enumerate(ranges.items())
        parts = {n: part(*ends, k) for k, (n, ends) in each} if part is not None else {}
        wide = any(low < high for low, high in (parts or ranges).values())
        drawn = exact_arguments_at(subject, case, point, 0)
        if not (special if point is Point.SPECIAL else wide) or isinstance(drawn, Raised):
            continue
        dtype = typical.arithmetic.dtype
        moved = (_spread_over(a, parts.get(a.name, (0.0, 0.0)), generator) for a in drawn)
        arguments = tuple(_kept_inside(a, ranges.get(a.name), dtype) for a in moved)
        # A finding shows the inputs that it was made at.
        shown = replace(sample, arguments=arguments, point=point, draw=0)
        yield replace(
            typical, sample=shown, arguments=arguments, values=of_several if len(ranges) > 1 else name
        )


SMALLEST = 1e-4
"""The smallest magnitude of a range that holds zero, beside its largest one, or one where that is larger."""

DECADES = 1e3
"""Factor between the largest and the smallest magnitude of a range from which there are others inside."""


def _magnitude(low: float, high: float, _: int) -> tuple[float, float]:
    """Up to two thirds of the decades of a range that has many; nothing where it has few."""
    largest, smallest = max(abs(low), abs(high)), min(abs(low), abs(high))
    if low <= 0 <= high:
        smallest = SMALLEST * min(largest, 1.0)
    size = (largest**2 * smallest) ** (1 / 3) if largest >= DECADES * smallest else 0.0
    return max(low, -size), min(high, size)


def _near_low(low: float, high: float, number: int) -> tuple[float, float]:
    """Near the low end; every second input near its high one, or they would nearly be equal."""
    if number % 2:
        return high - NEAR * min(high - low, abs(high)), high
    return low, low + NEAR * min(high - low, abs(low))


def _near_high(low: float, high: float, number: int) -> tuple[float, float]:
    return _near_low(low, high, number + 1)


MAGNITUDE, SPECIAL = "a magnitude inside the declared range", "declared special values"

OPPOSITE = "near opposite ends of the declared ranges"

_DECLARED: tuple[tuple[str, str, Point, Callable[[float, float, int], tuple[float, float]] | None], ...] = (
    (RANGE, RANGE, Point.WIDE, None),
    ("near the low end of the declared range", OPPOSITE, Point.WIDE, _near_low),
    ("near the high end of the declared range", OPPOSITE, Point.WIDE, _near_high),
    (MAGNITUDE, MAGNITUDE, Point.WIDE, _magnitude),
    (SPECIAL, SPECIAL, Point.SPECIAL, None),
)
"""What a spec says is valid: a name, that of several inputs, the point that is drawn, and the part of a range
in which values lie."""


def _spread_over(argument: Argument, ends: tuple[float, float], generator: torch.Generator) -> Argument:
    """With values from a part of its range; as it is where that is empty."""
    if not ends[0] < ends[1]:
        return argument
    value = argument.value
    share = torch.rand(value.shape, generator=generator, dtype=value.dtype).to(value.device)
    corner = ends[0] * (1 + 1j if share.is_complex() else 1)
    return replace(argument, value=corner + (ends[1] - ends[0]) * share)


def _kept_inside(argument: Argument, ends: tuple[float, float] | None, dtype: torch.dtype) -> Argument:
    """What rounding would move out of its range one number further in."""
    value = argument.value
    if ends is None or value.is_complex():
        return argument
    short, inward = value.to(dtype).to(value.dtype), torch.finfo(dtype).eps * value.abs()
    value = torch.where(short > ends[1], value - inward, value)
    return replace(argument, value=torch.where(short < ends[0], value + inward, value))


def _ranges(case: Case) -> dict[str, tuple[float, float]]:
    """The declared ranges of floating inputs, by their name."""
    tensors = (t for i in case.inputs for t in tensors_of(i) if t.range is not None and _is_floating(t))
    drawn = (t for t in tensors if not t.structure and t.value is None and not t.make)
    return {t.name: interval_of(t, Point.WIDE) for t in drawn}


def _is_floating(spec: TensorInput) -> bool:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype.is_floating_point or dtype.is_complex
