"""Where a dtype is judged: typical values, the declared range with its ends, special values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.model import Case, Effort, Point, TensorInput, tensors_of
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.inputs.values import interval_of
from gradverify.verifier.interpreter.launches import interpreted, wrong_product
from gradverify.verifier.questions.dtypes.calls import Arithmetic, NativeCall, NoCall, Truth, native_call
from gradverify.verifier.questions.dtypes.formats import root_mean_square
from gradverify.verifier.questions.dtypes.judging import Judgement, judge_call
from gradverify.verifier.questions.dtypes.lines import POINTS, errors_along
from gradverify.verifier.questions.samples import another_draw, exact_arguments_at
from gradverify.verifier.questions.subject import Sample

COTANGENT_SEED = 61
"""Added to a case's seed for its grad_outputs here."""

OTHER_COTANGENT = 1009
"""Added to that seed where something is measured again."""

RANGE = "the declared range"
"""The name of values over all of it."""

NEAR = 2.0**-10
"""Share of an end, or of the range's width where that is less, within which values are near it: so near that
squares of them cancel, and ties of float32 are rare."""

APART = 2.0**-5
"""Share of the way to another draw between neighbouring points of a line: four numbers of bfloat16."""


@dataclass(frozen=True)
class Against:
    """What native values are held against."""

    name: str
    """In words."""
    at: Callable[[NativeCall], Truth | str]
    """The truth for one native call, or why there is none, as the end of a sentence."""


@dataclass(frozen=True)
class Place:
    """One arithmetic at one set of values."""

    sample: Sample
    against: Against
    arithmetic: Arithmetic
    arguments: Sequence[Argument]
    """In float64."""
    asked: bool
    """The dtype was listed; float32 is judged by default."""
    seed: int
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
        made = native_call(sample.problem, self.arguments, self.arithmetic, self.seed)
        if interpreted() > before and (why := wrong_product(self.arithmetic.dtype)):
            return NoCall(why)
        if isinstance(made, NoCall):
            return made
        distinct = {i.name for i in sample.case.inputs for t in tensors_of(i) if t.distinct}
        for short, given in zip(made.problem.arguments, self.arguments, strict=True):
            is_distinct = bool({given.name, given.in_list} & distinct)
            if is_distinct and short.value.unique().numel() < given.value.unique().numel():
                return NoCall("rounding its inputs makes equal what the spec says is distinct")
        truth = self.against.at(made)
        return NoCall(truth) if isinstance(truth, str) else (made, truth)

    def judge(self, call: NativeCall, truth: Truth) -> list[Judgement]:
        """Every value of a call with these inputs."""
        floating = [t for i in self.sample.case.inputs for t in tensors_of(i) if _is_floating(t)]
        reach = max((max(map(abs, t.range)) if t.range else 1.0 for t in floating), default=1.0)
        return judge_call(call, truth, reach=reach, briefly=self.is_brief, outside=self._noise)

    def elsewhere(self) -> Place:
        """The same at other values, as far as others are known to be valid, and for other grad_outputs."""
        typical = not self.values and self.sample.point is Point.TYPICAL
        other = another_draw(self.sample, exact=True) if typical else None
        arguments = self.arguments if other is None else other
        return replace(self, arguments=arguments, seed=self.seed + OTHER_COTANGENT)

    def _noise(self) -> list[Tensor] | None:
        """What of the errors on the way to another draw is not smooth; in units of the roundoff."""
        ends, line = self.elsewhere().arguments, []
        for k in range(POINTS):
            between = [
                replace(a, value=a.value + k * APART * (b.value - a.value))
                if a.differentiable and a.step is None
                else a
                for a, b in zip(self.arguments, ends, strict=True)
            ]
            found = replace(self, arguments=between).called()
            if isinstance(found, NoCall):
                return None
            call, truth = found
            pairs = zip(call.got, truth.values, strict=True)
            line.append([(got - wanted).nan_to_num(0.0, 0.0, 0.0) for got, wanted in pairs])
        each = (torch.stack(errors) / call.form.unit for errors in zip(*line, strict=True))
        # Of so few draws none tells of a single entry.
        return [torch.full_like(errors[:1], root_mean_square(errors_along(errors))) for errors in each]


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
    for name, point, part in _DECLARED:
        parts = {n: part(*ends) for n, ends in ranges.items()} if part is not None else {}
        wide = any(low < high for low, high in (parts or ranges).values())
        drawn = exact_arguments_at(subject, case, point, 0)
        if not (special if point is Point.SPECIAL else wide) or isinstance(drawn, Raised):
            continue
        moved = (_spread_over(a, parts.get(a.name, (0.0, 0.0)), generator) for a in drawn)
        dtype = typical.arithmetic.dtype
        arguments = tuple(_kept_inside(a, ranges.get(a.name), dtype) for a in moved)
        # A finding shows the inputs that it was made at.
        shown = replace(sample, arguments=arguments, point=point, draw=0)
        yield replace(typical, sample=shown, arguments=arguments, values=name)


Part = Callable[[float, float], tuple[float, float]]
"""A part of a range by its ends."""

SMALLEST = 1e-4
"""The smallest magnitude of a range that holds zero, beside its largest one, or one where that is larger."""

DECADES = 1e3
"""Factor between the largest and the smallest magnitude of a range from which there are others inside."""


def _magnitude(low: float, high: float) -> tuple[float, float]:
    """Two thirds up the decades of a range that has many; nothing where it has few."""
    largest, through_zero = max(abs(low), abs(high)), low <= 0 <= high
    smallest = SMALLEST * min(largest, 1.0) if through_zero else min(abs(low), abs(high))
    size = (largest**2 * smallest) ** (1 / 3) if largest >= DECADES * smallest else 0.0
    if through_zero:
        return max(low, -size), min(high, size)
    return (size / 2, size) if low > 0 else (-size, -size / 2)


_DECLARED: tuple[tuple[str, Point, Part | None], ...] = (
    (RANGE, Point.WIDE, None),
    (
        "near the low end of the declared range",
        Point.WIDE,
        lambda low, high: (low, low + NEAR * min(high - low, abs(low))),
    ),
    (
        "near the high end of the declared range",
        Point.WIDE,
        lambda low, high: (high - NEAR * min(high - low, abs(high)), high),
    ),
    ("a magnitude inside the declared range", Point.WIDE, _magnitude),
    ("declared special values", Point.SPECIAL, None),
)
"""What a spec says is valid: a name, the point that is drawn, and the part of a range that values lie in."""


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
