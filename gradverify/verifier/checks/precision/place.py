"""Where a dtype is judged: the values, the grad_outputs, and the truth they are held against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradverify.model import Effort, Point, tensors_of
from gradverify.verifier.checks.precision.arithmetic import Arithmetic
from gradverify.verifier.checks.precision.judging import Judgement, Truth, judge_call
from gradverify.verifier.checks.precision.messages import Where
from gradverify.verifier.checks.precision.native import NativeCall, NoCall, native_call
from gradverify.verifier.checks.precision.truth import Strategy
from gradverify.verifier.checks.precision.value_ranges import (
    AS_DRAWN,
    EXTREMES,
    RANGE,
    ValueRange,
    declared_values,
    declares_range,
    free_inputs,
    largest_declared,
)
from gradverify.verifier.checks.samples import another_draw
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.interpreter.launches import interpreted, wrong_product

COTANGENT_SEED = 61
"""Added to a case's seed for its grad_outputs here."""

OTHER_COTANGENT = 1009
"""Added to that seed where something is measured again."""


@dataclass(frozen=True)
class Place:
    """One arithmetic at one set of values."""

    sample: Sample
    truth: Strategy
    arithmetic: Arithmetic
    values: ValueRange
    arguments: Sequence[Argument]
    """In float64, before they are moved."""
    declared: bool
    """The spec says that such values are valid, or they are moderate."""
    asked: bool
    """The dtype was listed; float32 is judged by default."""
    seed: int
    briefly: bool = False
    """Only what no formula may lose is looked for: rounding was measured at typical values."""

    @staticmethod
    def typical(sample: Sample, truth: Strategy, arithmetic: Arithmetic, *, asked: bool) -> Place:
        """The sample's own values."""
        seed = sample.case.seed + COTANGENT_SEED
        exact = sample.exact or sample.arguments
        return Place(sample, truth, arithmetic, AS_DRAWN, exact, declared=True, asked=asked, seed=seed)

    @property
    def is_stated(self) -> bool:
        """Somebody says that this dtype, or such values, are meant: it was listed, or a range is declared."""
        return self.asked or self.values is not AS_DRAWN or declares_range(self.sample.case)

    @property
    def where(self) -> Where:
        """For sentences."""
        return Where(self.sample, self.arithmetic, self.values, self.truth.name)

    def call(self) -> NativeCall | NoCall:
        """Run it, or say why that has no meaning."""
        case = self.sample.case
        free = free_inputs(case)
        distinct = frozenset(i.name for i in case.inputs for t in tensors_of(i) if t.distinct)
        before = interpreted()
        made = native_call(
            self.sample.problem,
            self.arguments,
            self.arithmetic,
            lambda argument: self.values.moves(argument, free),
            self.seed,
        )
        if interpreted() > before and (why := wrong_product(self.arithmetic.dtype)):
            return NoCall(why)
        if isinstance(made, NativeCall) and _ties(made, self.arguments, distinct):
            return NoCall("rounding its inputs makes equal what the spec says is distinct")
        return made

    def judged(self) -> list[Judgement] | str:
        """Every value, or why there is nothing to judge."""
        call = self.call()
        if isinstance(call, NoCall):
            return call.why
        truth = self.truth.of(call, self.seed)
        if isinstance(truth, str):
            return truth
        return self.judge(call, truth)

    def judge(self, call: NativeCall, truth: Truth) -> list[Judgement]:
        """Every value of a call with these inputs."""
        return judge_call(call, truth, reach=largest_declared(self.sample.case), briefly=self.briefly)

    def elsewhere(self) -> Place:
        """The same at other values, as far as others are known to be valid, and for other grad_outputs."""
        as_drawn = self.values is AS_DRAWN or not self.declared
        typical = self.sample.point is Point.TYPICAL
        other = another_draw(self.sample, exact=True) if as_drawn and typical else None
        arguments = self.arguments if other is None else other
        return replace(self, arguments=arguments, seed=self.seed + OTHER_COTANGENT)


def places_of(typical: Place, *, in_full: bool) -> Iterator[Place]:
    """Typical values, what the spec declares, and extremes of a listed dtype where it is silent."""
    yield typical
    sample = typical.sample
    quick = sample.subject.settings.effort is Effort.QUICK
    if sample.point is not Point.TYPICAL or sample.draw or quick:
        return
    everywhere = in_full and sample.subject.is_first_of_options
    for found in declared_values(sample, typical.arithmetic.dtype) if everywhere else ():
        # A finding shows the inputs that it was made at.
        arguments = found.arguments
        shown = replace(sample, arguments=arguments, point=found.point, draw=0)
        measured = typical.asked and found.name == RANGE
        yield replace(
            typical,
            sample=shown,
            truth=typical.truth if measured else typical.truth.alone(),
            arguments=arguments,
            values=ValueRange(found.name),
            briefly=not measured,
        )
    if typical.asked and free_inputs(sample.case):
        yield from (replace(typical, values=values, declared=False) for values in EXTREMES)


def _ties(call: NativeCall, arguments: Sequence[Argument], distinct: frozenset[str]) -> bool:
    """Whether rounding has made equal what the spec says is distinct."""
    return any(
        short.value.unique().numel() < given.value.unique().numel()
        for short, given in zip(call.problem.arguments, arguments, strict=True)
        if given.name in distinct or given.in_list in distinct
    )
