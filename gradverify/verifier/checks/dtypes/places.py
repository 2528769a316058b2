"""Where a dtype is judged: typical values, the declared range with its ends, special values, extremes.

Values at which formats overflow or cancel are what a spec declares, else typical ones moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.model import Case, ConcatInput, Effort, Input, ListInput, Point, TensorInput, tensors_of
from gradverify.verifier.checks.dtypes.calls import Arithmetic, NativeCall, NoCall, Truth, native_call
from gradverify.verifier.checks.dtypes.judging import Judgement, judge_call
from gradverify.verifier.checks.dtypes.words import Where
from gradverify.verifier.checks.samples import another_draw, exact_arguments_at
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.inputs.native_values import Change, drawn_value
from gradverify.verifier.inputs.values import interval_of
from gradverify.verifier.interpreter.launches import interpreted, wrong_product

COTANGENT_SEED = 61
"""Added to a case's seed for its grad_outputs here."""

OTHER_COTANGENT = 1009
"""Added to that seed where something is measured again."""

RANGE = "the declared range"
"""The name of values over all of it."""

ENDS = ("near the low end of the declared range", "near the high end of the declared range")

INSIDE = "a magnitude inside the declared range"
"""The name of values of one size, between its largest and its smallest."""

NEAR = 2.0**-10
"""Share of an end, or of the range's width where that is less, within which values are near it: so near that
squares of them cancel, and ties of float32 are rare."""

LARGEST = 120.0
"""Overflow without a maximum shows beyond 89, the logarithm of the largest number in float32 (measured)."""

SHIFT = 1000.0
"""Cancellation in E[x^2] - E[x]^2 shows at such a mean (measured)."""


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
    """In float64, before they are moved."""
    asked: bool
    """The dtype was listed; float32 is judged by default."""
    seed: int
    values: str = ""
    """The name of a range of values; empty for those that were drawn."""
    change: Change = drawn_value
    declared: bool = True
    """The spec says that such values are valid, or they are moderate."""
    briefly: bool = False
    """Only what no formula may lose is looked for: rounding was measured at typical values."""

    @staticmethod
    def typical(sample: Sample, against: Against, arithmetic: Arithmetic, *, asked: bool) -> Place:
        """The sample's own values."""
        seed = sample.case.seed + COTANGENT_SEED
        return Place(sample, against, arithmetic, sample.exact or sample.arguments, asked, seed)

    @property
    def is_stated(self) -> bool:
        """Somebody says that this dtype, or such values, are meant: it was listed, or a range is declared."""
        return self.asked or bool(self.values) or declares_range(self.sample.case)

    @property
    def where(self) -> Where:
        """For sentences."""
        return Where(self.sample, self.arithmetic, self.values, self.against.name)

    def call(self) -> NativeCall | NoCall:
        """Run it, or say why that has no meaning."""
        before, problem = interpreted(), self.sample.problem
        made = native_call(problem, self.arguments, self.arithmetic, self.change, self.seed)
        if interpreted() > before and (why := wrong_product(self.arithmetic.dtype)):
            return NoCall(why)
        if isinstance(made, NativeCall) and self._ties(made):
            return NoCall("rounding its inputs makes equal what the spec says is distinct")
        return made

    def _ties(self, call: NativeCall) -> bool:
        case = self.sample.case
        distinct = {i.name for i in case.inputs for t in tensors_of(i) if t.distinct}
        return any(
            short.value.unique().numel() < given.value.unique().numel()
            for short, given in zip(call.problem.arguments, self.arguments, strict=True)
            if given.name in distinct or given.in_list in distinct
        )

    def judged(self) -> list[Judgement] | str:
        """Every value, or why there is nothing to judge."""
        call = self.call()
        truth = self.against.at(call) if isinstance(call, NativeCall) else call.why
        if isinstance(truth, str) or not isinstance(call, NativeCall):
            return str(truth)
        return self.judge(call, truth)

    def judge(self, call: NativeCall, truth: Truth) -> list[Judgement]:
        """Every value of a call with these inputs."""
        return judge_call(call, truth, reach=_largest_declared(self.sample.case), briefly=self.briefly)

    def elsewhere(self) -> Place:
        """The same at other values, as far as others are known to be valid, and for other grad_outputs."""
        as_drawn = not self.values or not self.declared
        typical = self.sample.point is Point.TYPICAL
        other = another_draw(self.sample, exact=True) if as_drawn and typical else None
        arguments = self.arguments if other is None else other
        return replace(self, arguments=arguments, seed=self.seed + OTHER_COTANGENT)


def places_of(typical: Place, *, in_full: bool) -> Iterator[Place]:
    """Typical values, what the spec declares, and extremes where it is silent."""
    yield typical
    sample = typical.sample
    quick = sample.subject.settings.effort is Effort.QUICK
    if sample.point is not Point.TYPICAL or sample.draw or quick:
        return
    everywhere = in_full and sample.subject.is_first_of_options
    for found in declared_values(sample, typical.arithmetic.dtype) if everywhere else ():
        # A finding shows the inputs that it was made at.
        shown = replace(sample, arguments=found.arguments, point=found.point, draw=0)
        measured = typical.asked and found.name == RANGE
        there = replace(typical, sample=shown, arguments=found.arguments, values=found.name)
        yield replace(there, briefly=not measured)
    free = _free_inputs(sample.case)
    if free and (typical.asked or everywhere):
        for name, change in _extremes(free):
            yield replace(typical, values=name, change=change, declared=False)


def _extremes(free: frozenset[str]) -> Iterator[tuple[str, Change]]:
    """Names of undeclared values, and how inputs that nothing limits are moved there."""

    def scaled(argument: Argument) -> Tensor:
        value: Tensor = argument.value
        entry = value.reshape(-1)[value.abs().argmax()] if value.numel() else value.new_zeros(())
        if entry == 0 or not {argument.name, argument.in_list} & free:
            return value
        return value * (LARGEST / (entry.abs() if value.is_complex() else entry))

    def shifted(argument: Argument) -> Tensor:
        value: Tensor = argument.value
        return value + SHIFT if {argument.name, argument.in_list} & free else value

    yield f"values up to {LARGEST:g}", scaled
    yield f"values plus {SHIFT:g}", shifted


def _free_inputs(case: Case) -> frozenset[str]:
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
    """The arguments over the declared range, near its ends, and at special values, as far as declared.

    None leaves its range by being rounded to `dtype`.
    """
    case = sample.case
    if case.hook:
        return
    asked = []
    if declares_range(case):
        asked = [(RANGE, case), *((name, _narrowed(case, narrower)) for name, narrower in _PARTS)]
    for name, narrowed in asked:
        drawn = exact_arguments_at(sample.subject, narrowed, Point.WIDE, 0)
        is_another = name == RANGE or narrowed.inputs != case.inputs
        if is_another and not isinstance(drawn, Raised):
            yield Declared(name, Point.WIDE, tuple(_kept_inside(drawn, case, dtype)))
    if any(t.special for i in case.inputs for t in tensors_of(i)):
        drawn = exact_arguments_at(sample.subject, case, Point.SPECIAL, 0)
        if not isinstance(drawn, Raised):
            kept = tuple(_kept_inside(drawn, case, dtype))
            yield Declared("declared special values", Point.SPECIAL, kept)


def declares_range(case: Case) -> bool:
    """Whether the range of some floating input is declared."""
    return any(t.range is not None and _is_drawn(t) for i in case.inputs for t in tensors_of(i))


def _largest_declared(case: Case) -> float:
    """The largest magnitude that an input may have; at least one where the spec does not say."""
    floating = [t for i in case.inputs for t in tensors_of(i) if _is_floating(t)]
    return max((max(map(abs, t.range)) if t.range else 1.0 for t in floating), default=1.0)


Narrower = Callable[[float, float], tuple[float, float]]


def _magnitude(low: float, high: float) -> tuple[float, float]:
    """Two thirds up the decades of a range that has many; the range itself where it has few."""
    largest, through_zero = max(abs(low), abs(high)), low <= 0 <= high
    smallest = SMALLEST * min(largest, 1.0) if through_zero else min(abs(low), abs(high))
    if largest < DECADES * smallest:
        return low, high
    size = (largest**2 * smallest) ** (1 / 3)
    if through_zero:
        return max(low, -size), min(high, size)
    return (size / 2, size) if low > 0 else (-size, -size / 2)


SMALLEST = 1e-4
"""The smallest magnitude of a range that holds zero, beside its largest one, or one where that is larger."""

DECADES = 1e3
"""Factor between the largest and the smallest magnitude of a range from which there are others inside."""

_PARTS: tuple[tuple[str, Narrower], ...] = (
    (ENDS[0], lambda low, high: (low, low + NEAR * min(high - low, abs(low)))),
    (ENDS[1], lambda low, high: (high - NEAR * min(high - low, abs(high)), high)),
    (INSIDE, _magnitude),
)
"""Parts of a range, by what makes a range one of them."""


def _narrowed(case: Case, narrower: Narrower) -> Case:
    """The case with other declared ranges; what has none, or is built otherwise, stays as it is."""

    def of_tensor(spec: TensorInput) -> TensorInput:
        if spec.range is None or not _is_drawn(spec):
            return spec
        low, high = narrower(*interval_of(spec, Point.WIDE))
        return replace(spec, range=(low, high)) if low < high else spec

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
    return _is_drawn(spec) and not spec.avoid and spec.range is None and spec.domain == "real"


def _is_floating(spec: TensorInput) -> bool:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype.is_floating_point or dtype.is_complex
