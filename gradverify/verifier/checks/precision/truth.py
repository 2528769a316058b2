"""The truth in float64 for a native call, where a dtype is judged, and both Jacobians there.

The truth is the strongest there is, and others that agree with it; of a target without a float64 path, the
composite's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from gradverify.model import Case, Closeness, Effort, Point, tensors_of
from gradverify.verifier import guard
from gradverify.verifier.checks.composite import (
    Composite,
    NoComposite,
    composite_of,
    of_tensors,
    recorded_forward,
)
from gradverify.verifier.checks.precision.judging import OWN_FLOAT32, Judgement, Truth, Where, judge_call
from gradverify.verifier.checks.precision.kinks import half_the_digits, slopes_at_kinks
from gradverify.verifier.checks.precision.native import (
    Arithmetic,
    NativeCall,
    NoCall,
    Scatter,
    Source,
    native_call,
    plainly,
    values_of,
)
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
from gradverify.verifier.checks.samples import another_draw, prepare
from gradverify.verifier.checks.subject import Sample, Subject
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.inputs.native_values import drawn_value
from gradverify.verifier.interpreter.launches import interpreted, wrong_product
from gradverify.verifier.numerics.calling import returned_tensors
from gradverify.verifier.numerics.compare import compare
from gradverify.verifier.numerics.jacobian import NumericalJacobian, analytical_jacobian
from gradverify.verifier.numerics.native_rounding import as_real
from gradverify.verifier.numerics.problem import CallProblem, Layout, Problem
from gradverify.verifier.numerics.round_off import erring
from gradverify.verifier.numerics.tolerance import Tolerance, is_known
from gradverify.verifier.numerics.tracing import promoted
from gradverify.verifier.numerics.verdict import Judged, NotJudged

AGREE = 1e-6
"""Relative difference, beside a value or its typical size, within which two float64 computations agree."""

FOLLOW = 16.0
"""Times half of a dtype's digits by which inputs move to see whether a recording follows them."""

FOLLOW_AT_MOST = 0.25
"""Relative: further away, branches may be others."""

CHANGE_ROUNDINGS = 4.0
"""Roundings of a value by which its change may be off: two of the outputs, and some of what is inside."""

SAME_CHANGE = 1e-2
"""Share of a change within which another one is the same: both are of the same map, so only rounding is
between them."""

OWN = "its own verified float64 path"


class Strategy(Protocol):
    """Where the truth comes from."""

    @property
    def name(self) -> str:
        """What native values are held against, in words."""

    def of(self, call: NativeCall, seed: int) -> Truth | str:
        """The truth for one native call, or why there is none, as the end of a sentence."""

    def plain(self, call: NativeCall, *, for_gradients: bool = False) -> Composite | None:
        """A composite that can be run in the native dtype, where there is one.

        What torch derives of forward's own operations says something of gradients alone.
        """

    def alone(self) -> Strategy:
        """The same without what is needed to measure rounding alone."""


@dataclass(frozen=True)
class Verified:
    """The target's own float64 values, verified just before; a composite that agrees gives the noise."""

    sample: Sample
    composite: Composite | NoComposite

    @property
    def name(self) -> str:
        """The composite, where there is one."""
        return self.composite.source if isinstance(self.composite, Composite) else OWN

    def of(self, call: NativeCall, seed: int) -> Truth | str:
        """Both computations, the composite first."""
        cotangents = call.exact_cotangents
        own = values_of(call.exact, cotangents)
        if isinstance(own, Raised):
            return f"in float64 it raises {own.error.type} at the rounded inputs"
        sources = [Source(OWN, call.exact, cotangents, seed)]
        if isinstance(self.composite, Composite):
            other = replace(self.composite.problem, arguments=call.exact.arguments)
            theirs = values_of(other, cotangents)
            if not isinstance(theirs, Raised) and agree(own, theirs):
                sources.insert(0, Source(self.composite.source, other, cotangents, seed, plain=True))
        return Truth(own, tuple(Scatter(source) for source in sources))

    def plain(self, call: NativeCall, *, for_gradients: bool = False) -> Composite | None:  # noqa: ARG002 - the protocol's signature
        """The confirmed composite, or any that gives the target's values."""
        composite = self.composite if isinstance(self.composite, Composite) else composite_of(self.sample)
        return composite if isinstance(composite, Composite) else None

    def alone(self) -> Strategy:
        """Its own values."""
        return replace(self, composite=NoComposite("its own values are enough"))


@dataclass(frozen=True)
class FromNative:
    """The truth for a target without a float64 path: the reference, or forward's operations in float64."""

    subject: Subject
    case: Case | None = None
    """Given at values that are no typical ones: there nothing may change, as where all is saturated."""
    followed: bool = False
    """Forward's operations were seen to follow it at the values beside which these lie."""

    @property
    def name(self) -> str:
        """Which of them."""
        if self.subject.surrogate is not None:
            return "the surrogate"
        return "the reference" if self.subject.reference is not None else "forward's operations in float64"

    def of(self, call: NativeCall, seed: int) -> Truth | str:
        """The values of the composite at the rounded inputs."""
        composite = self.composite(call)
        if composite is None:
            return "it has no float64 path and no composite in plain torch operations"
        other = replace(composite.problem, arguments=call.exact.arguments)
        values = values_of(other, call.exact_cotangents)
        if isinstance(values, Raised):
            return f"{self.name} cannot be differentiated in float64: {values.error.type}"
        if self.subject.reference is None and not self._is_followed(call, other, seed):
            return "it has no float64 path, and its forward is not made of torch operations alone"
        source = Source(self.name, other, call.exact_cotangents, seed, plain=True)
        return Truth(values, (Scatter(source),))

    def at_kinks(self, call: NativeCall, truth: Truth, seed: int) -> tuple[Truth, Truth] | None:
        """The truth with gradients that the composite's slopes allow, and those that were measured alone.

        None where the gradients are torch's. Each holds NaN for what the other has.
        """
        composite, outputs = self.composite(call), len(call.problem.output_positions)
        inputs = Layout.of(call.exact.primals)
        if composite is None or call.problem.outputs.size > MOST_ROWS or inputs.size > MOST_COLUMNS:
            return None
        exact = replace(composite.problem, arguments=call.exact.arguments)
        theirs = analytical_jacobian(exact)
        if isinstance(theirs, Raised):
            return None
        accepted, slopes = slopes_at_kinks(call.problem, exact, theirs.value, seed)
        changed, is_measured = (accepted - theirs.value).nan_to_num(0.0), slopes.isfinite()
        if not changed.any() and not is_measured.any():
            return None
        cotangent = call.problem.outputs.flatten(call.cotangents)
        whole = cotangent @ torch.where(is_measured, slopes, accepted)
        more = torch.where(is_measured.any(dim=0), torch.nan, cotangent @ changed)
        alone = torch.where(is_measured.any(dim=0), whole, torch.nan)
        pairs = zip(truth.values[outputs:], map(as_real, inputs.unflatten(more)), strict=True)
        allowed = (*truth.values[:outputs], *(g + m for g, m in pairs))
        measured = (*truth.values[:outputs], *map(as_real, inputs.unflatten(alone)))
        return replace(truth, values=allowed), replace(truth, values=measured, scatters=())

    def alone(self) -> Strategy:
        """The composite, which was seen to follow forward at typical values."""
        return replace(self, followed=True)

    def _is_followed(self, call: NativeCall, composite: CallProblem, seed: int) -> bool:
        """Whether forward's operations follow it here; where nothing changes, at typical values."""
        if self.followed:
            return True
        found = _follows(call, composite, seed)
        if found is not None or self.case is None:
            return bool(found)
        typical = prepare(self.subject, self.case, Point.TYPICAL, 0)
        if not isinstance(typical, Sample):
            return False
        there = native_call(
            typical.problem, typical.exact or typical.arguments, call.arithmetic, drawn_value, seed
        )
        other = replace(self, case=None).composite(there) if isinstance(there, NativeCall) else None
        if other is None or not isinstance(there, NativeCall):
            return False
        return bool(_follows(there, replace(other.problem, arguments=there.exact.arguments), seed))

    def composite(self, call: NativeCall) -> Composite | None:
        """The reference; without one, what forward's operations are."""
        return self._reference(call) if self.subject.reference is not None else self._recorded(call)

    def plain(self, call: NativeCall, *, for_gradients: bool = False) -> Composite | None:
        """The reference; forward's own operations are what is judged, but for their derivative."""
        return self.composite(call) if for_gradients else self._reference(call)

    def _recorded(self, call: NativeCall) -> Composite | None:
        """The operations that forward ran on the native inputs."""
        subject = self.subject
        if subject.own_forward is None:
            return None
        recorded = guard.call(recorded_forward, call.problem, subject.own_forward)
        if isinstance(recorded, Raised):
            return None
        run = guard.call(promoted, recorded.value)
        if isinstance(run, Raised):
            return None
        return Composite(replace(call.exact, function=of_tensors(run.value)), self.name)

    def _reference(self, call: NativeCall) -> Composite | None:
        names = [a.name for a in call.exact.arguments]
        reference = self.subject.reference_by_name(names)
        return None if reference is None else Composite(replace(call.exact, function=reference), self.name)


@dataclass(frozen=True)
class OwnFloat32:
    """The target in 16 bits against itself in float32: where there is neither float64 nor a composite.

    What is rounded too often shows. A formula that is wrong in both dtypes does not: that is left to the
    slope of forward in float32.
    """

    name: str = OWN_FLOAT32

    def of(self, call: NativeCall, seed: int) -> Truth | str:
        """The values in float32; the noise inside is not seen, what moved inputs do is."""
        problem = replace(call.exact, function=_through_float32(call.exact.function))
        values = values_of(problem, call.exact_cotangents)
        if isinstance(values, Raised):
            return f"in float32 it raises {values.error.type}"
        return Truth(values, (Scatter(Source(self.name, problem, call.exact_cotangents, seed)),))

    def plain(self, call: NativeCall, *, for_gradients: bool = False) -> Composite | None:  # noqa: ARG002 - the protocol's signature
        """There is none."""
        return None

    def alone(self) -> Strategy:
        """It is alone."""
        return self


def _through_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of float64 tensors that computes in float32."""

    def called(*arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401 - user code's arguments and result
        given = [_cast(a, torch.float64, torch.float32) for a in arguments]
        return tuple(_cast(r, torch.float32, torch.float64) for r in returned_tensors(function(*given)))

    return called


def _cast(value: Any, of: torch.dtype, to: torch.dtype) -> Any:  # noqa: ANN401 - any argument
    return value.to(to) if isinstance(value, Tensor) and value.dtype is of else value


def _follows(call: NativeCall, composite: CallProblem, seed: int) -> bool | None:
    """Whether a recorded forward gives forward's values, and changes as forward does where inputs move.

    None where nothing changes.

    NumPy, `.item()` and kernels leave no operation behind, only the number that they gave: that has forward's
    value and none of its changes. What does not change by more than rounding shows neither.
    """
    eps = float(torch.finfo(call.dtype).eps)
    generator = torch.Generator().manual_seed(seed % 2**63)
    moved = [erring(p, min(FOLLOW * eps**0.5, FOLLOW_AT_MOST), generator) for p in call.exact.primals]
    pairs = [_both(call, composite, primals) for primals in (call.exact.primals, moved)]
    if not all(pairs):
        return False
    seen = False
    for here, there in zip(*pairs, strict=True):
        size = here[1].abs() + here[1].square().mean().sqrt()
        if not ((here[0] - here[1]).abs() <= eps**0.5 * size).all():
            return False  # NaN and infinities show no agreement
        own, recorded = (after - before for before, after in zip(here, there, strict=True))
        off, whole = own - recorded, recorded.norm()
        # What cancels inside leaves single entries few digits, and all of them together more.
        near = off.abs() <= SAME_CHANGE * recorded.abs() + eps**0.5 * size
        rounding = eps * size.max() if size.numel() else torch.zeros(())
        along = (off * recorded).sum().abs() <= whole * (SAME_CHANGE * whole + CHANGE_ROUNDINGS * rounding)
        if not near.all() or not along:
            return False
        seen |= bool(is_known(whole, whole, rounding))
    return seen or None


def _both(call: NativeCall, composite: CallProblem, primals: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """What the target and the composite give at values that are rounded for both; empty where one raises."""
    short = [p.to(native.dtype) for p, native in zip(primals, call.problem.primals, strict=True)]
    native = call.problem.evaluate(short)
    exact = composite.evaluate([s.to(p.dtype) for s, p in zip(short, primals, strict=True)])
    if isinstance(native, Raised) or isinstance(exact, Raised):
        return []
    return list(zip(map(as_real, native.value), map(as_real, exact.value), strict=True))


def agree(mine: Sequence[Tensor], theirs: Sequence[Tensor], within: float = AGREE) -> bool:
    """Whether two computations give the same values."""
    for a, b in zip(mine, theirs, strict=True):
        if a.shape != b.shape:
            return False
        size = a.abs() + a.square().mean().sqrt() if a.numel() else a
        near = (a - b).abs() <= within * size
        if not (near | (a == b) | (a.isnan() & b.isnan())).all():
            return False
    return True


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
        """Every value of a call with these inputs; what torch derives of a composite is no truth at kinks.

        Nor at declared special values, as the slope of a constant that forward puts for a quotient of zeros.
        """
        reach = largest_declared(self.sample.case)
        found = judge_call(call, truth, reach=reach, briefly=self.briefly)
        special = self.declared and self.sample.point is Point.SPECIAL
        if not isinstance(self.truth, FromNative) or not (special or any(map(_is_wrong_gradient, found))):
            return found
        at_kinks = self.truth.at_kinks(call, truth, self.seed)
        if at_kinks is None:
            return found
        allowed, alone = at_kinks
        found = judge_call(call, allowed, reach=reach, briefly=self.briefly)
        measured = judge_call(call, alone, reach=reach, briefly=True)
        # Nothing is lost on the way to what a branch of its own gives: no formula is unstable there.
        off = [
            replace(m, unstable=False) if _is_wrong_gradient(m) or m.lost.any() else None for m in measured
        ]
        return [m or f for f, m in zip(found, off, strict=True)]

    def elsewhere(self) -> Place:
        """The same at other values, as far as others are known to be valid, and for other grad_outputs."""
        as_drawn = self.values is AS_DRAWN or not self.declared
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
    if (typical.asked or everywhere) and free_inputs(sample.case):
        yield from (replace(typical, values=values, declared=False) for values in EXTREMES)


def _is_wrong_gradient(judgement: Judgement) -> bool:
    return judgement.value.output is None and judgement.closeness is Closeness.WRONG


def _ties(call: NativeCall, arguments: Sequence[Argument], distinct: frozenset[str]) -> bool:
    """Whether rounding has made equal what the spec says is distinct."""
    return any(
        short.value.unique().numel() < given.value.unique().numel()
        for short, given in zip(call.problem.arguments, arguments, strict=True)
        if given.name in distinct or given.in_list in distinct
    )


MOST_ROWS = 256
"""Rows that are worth as many backwards of a kernel, to say where its gradient is wrong."""

MOST_COLUMNS = 4_096
"""Entries of the inputs whose slopes are worth measuring, to say whether a gradient is wrong at a kink."""

ROUNDINGS = 16.0
"""Units of rounding of the largest entry of a block by which backward's entries may be off."""


def native_jacobians(sample: Sample) -> Judged | NotJudged | Raised:
    """Backward's rows beside those of the composite at the same rounded values."""
    if sample.problem.outputs.size > MOST_ROWS:
        return NotJudged(f"its Jacobian has more than {MOST_ROWS} rows")
    exact = exact_problem(sample)
    if exact is None:
        return NotJudged("there is no float64 path and no composite")
    judged = jacobians_beside(sample.problem, exact)
    if not isinstance(judged, Judged) or not judged.comparison.wrong.any():
        return judged
    accepted, slopes = slopes_at_kinks(sample.problem, exact, judged.measured.value, sample.case.seed)
    rows = torch.where(slopes.isfinite(), slopes, accepted)
    return _judged_beside(judged.comparison.analytical, rows, judged.measured.centre, exact, sample.problem)


def exact_problem(sample: Sample) -> CallProblem | None:
    """The composite in float64 at the values of a native sample; None where there is none."""
    truth = FromNative(sample.subject)
    call = Place.typical(sample, truth, plainly(sample.subject.native), asked=True).call()
    composite = truth.composite(call) if isinstance(call, NativeCall) else None
    if composite is None or not isinstance(call, NativeCall):
        return None
    return replace(composite.problem, arguments=call.exact.arguments)


def jacobians_beside(native: Problem, exact: Problem) -> Judged | NotJudged | Raised:
    """The rows of a native problem's backward beside those of the same in float64."""
    mine, theirs = analytical_jacobian(native), analytical_jacobian(exact)
    if isinstance(mine, Raised):
        return mine
    values = exact.evaluate(exact.primals)
    if isinstance(theirs, Raised) or isinstance(values, Raised) or mine.value.shape != theirs.value.shape:
        return NotJudged("the composite could not be differentiated")
    return _judged_beside(mine.value, theirs.value, exact.outputs.flatten(values.value), exact, native)


def _judged_beside(mine: Tensor, theirs: Tensor, centre: Tensor, exact: Problem, native: Problem) -> Judged:
    inputs, outputs = Layout.of(native.primals), native.outputs
    measured = _as_measured(theirs, centre, exact, native)
    comparison = compare(mine, measured, inputs, outputs, Tolerance(half_the_digits(native)))
    return Judged(comparison, measured, inputs, outputs)


def _as_measured(value: Tensor, centre: Tensor, exact: Problem, native: Problem) -> NumericalJacobian:
    """The composite's Jacobian, as far as the rounding of the native one lets it be reported."""
    inputs = Layout.of(native.primals)
    unit = inputs.rounding.max() / 2
    error = torch.zeros_like(value)
    for rows in native.outputs.slices:
        for columns in inputs.slices:
            error[rows, columns] = ROUNDINGS * unit * value[rows, columns].abs().max()
    nothing = torch.zeros_like(value)
    x = Layout.of(exact.primals).flatten(exact.primals).abs()
    return NumericalJacobian(
        value, error, value == 0, nothing, nothing, centre, unit * centre.abs(), torch.where(x > 0, x, 1.0)
    )
