"""A change of backward is confirmed before it is offered: at every case and at larger values.

One random grad_output each: the gradient along a direction must be the slope that forward has there.

A sample as evidence for a diagnosis: both Jacobians, the sizes and the names of what took part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Case, tensors_of
from gradverify.model import Point as KindOfPoint
from gradverify.model.case import is_declared
from gradverify.verifier.diagnose.edits.own_backward import OwnBackward, Repairs
from gradverify.verifier.diagnose.evidence import OfRanks, Options, Point
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import CallProblem, Layout, VjpProblem
from gradverify.verifier.questions.changes import requires_grad_subsets
from gradverify.verifier.questions.reading import own_backward
from gradverify.verifier.questions.subject import Sample, placed_on
from gradverify.verifier.questions.verified import verified
from gradverify.verifier.questions.witnessing import (
    Jacobians,
    bounds_of,
    first_asked,
    jacobians_of,
    second_asked,
    second_problem,
)
from gradverify.verifier.targets.discover import backward_name
from gradverify.verifier.verify.kept import Build, Kept, Place
from gradverify.verifier.witnesses.answers import Budget, Judgement, NotJudged, Right
from gradverify.verifier.witnesses.claim import Claim, units
from gradverify.verifier.witnesses.judge import judge
from gradverify.verifier.witnesses.values import Slope as SlopeOfRows
from gradverify.verifier.witnesses.values import Values, probe


def with_primals(problem: CallProblem, primals: tuple[Tensor, ...]) -> CallProblem:
    """The same call with other values of its differentiable inputs."""
    values = iter(primals)
    arguments = tuple(replace(a, value=next(values)) if a.differentiable else a for a in problem.arguments)
    return replace(problem, arguments=arguments)


def measured_point(sample: Sample, repairs: Repairs) -> Point | None:
    """Both Jacobians of a sample; None where they cannot be judged.

    `repairs` is what is known of changes of the target's backward.
    """
    problem = sample.problem
    found = jacobians_of(first_asked(sample))
    if found is None:
        return None
    names = tuple(_output_name(sample, p) for p in problem.output_positions)
    return replace(
        _point(sample, problem, found, names),
        own_backward=own_backward_of(sample, repairs),
        of_ranks=_of_ranks(sample),
        raises=found.raises,
    )


def _of_ranks(sample: Sample) -> OfRanks | None:
    """What backward gives on each rank; None in one process, and where it cannot be had."""
    across, world = sample.subject.across, sample.case.world
    if across is None or world == 1:
        return None
    claimed = []
    for rank in range(world):
        with across.one_rank(rank):
            rows = Claim(sample.problem).rows(units(sample.problem.outputs.size))
        if isinstance(rows, Raised):
            return None
        claimed.append(rows)
    from gradverify.verifier.ranks.placement import columns_of_ranks  # noqa: PLC0415 - of a target on ranks

    tensors = [a for a in sample.arguments if isinstance(a.value, Tensor)]
    columns = tuple(
        columns_of_ranks(placed.gradient, a.value.shape, world)
        for a, placed in zip(tensors, across.inputs, strict=True)
        if a.differentiable
    )
    outputs = [across.placed(p).gradient for p in sample.problem.output_positions]
    shapes = [block.shape for block in sample.problem.outputs.blocks]
    of_outputs = tuple(columns_of_ranks(p, s, world) for p, s in zip(outputs, shapes, strict=True))
    return OfRanks(tuple(claimed), columns, of_outputs)


def measured_second_point(sample: Sample) -> Point | None:
    """The same of a sample's backward as a map of inputs and grad_output, differentiated once more."""
    found, problem = jacobians_of(second_asked(sample)), second_problem(sample)
    if found is None or found.raises:
        return None
    names = tuple(f"g_{name}" for name in problem.first_order.input_names)
    return replace(_point(sample, problem, found, names), order=2)


def are_right_in_second_order(samples: Sequence[Sample]) -> bool:
    """Whether backward, as its class has it now, is right at all of them when it is differentiated itself."""
    return all(map(_is_right_in_second_order, samples))


def _is_right_in_second_order(sample: Sample) -> bool:
    asked = second_asked(sample)
    found = None if asked is None else judge(replace(asked, budget=Budget()), prove=True)
    return isinstance(found, Judgement) and all(
        isinstance(a, Right | NotJudged) for a in found.answers.values()
    )


def are_right_with_inputs_frozen(samples: Sequence[Sample]) -> bool:
    """Whether no gradient changes when some inputs are frozen, by the backward that the class has now."""
    bases = [verified(sample) for sample in samples]
    return all(base is not None and not requires_grad_subsets(base).findings for base in bases)


def _point(
    sample: Sample, problem: CallProblem | VjpProblem, found: Jacobians, output_names: tuple[str, ...]
) -> Point:
    inputs = Layout.of(problem.primals)
    return Point(
        claimed=found.claimed,
        true=found.true,
        bound=found.error,
        inputs=inputs,
        outputs=problem.outputs,
        x=inputs.flatten(problem.primals),
        y=found.centre,
        input_names=problem.input_names,
        output_names=output_names,
        flat=found.true == 0,
        shapes=_shapes(sample),
        scalars=_scalars(sample),
        constants=_constants(sample),
        forward=lambda x: _value_at(problem, x),
    )


def _value_at(problem: CallProblem | VjpProblem, x: Tensor) -> Tensor | None:
    result = problem.evaluate(Layout.of(problem.primals).unflatten(x))
    return None if isinstance(result, Raised) else problem.outputs.flatten(result.value)


def _scalars(sample: Sample) -> tuple[tuple[str, float], ...]:
    values = ((a.name, a.value) for a in sample.arguments if type(a.value) in {int, float})
    return tuple((name, float(value)) for name, value in values)


def _constants(sample: Sample) -> tuple[tuple[str, Tensor], ...]:
    """Dense real tensors that are not differentiated."""
    tensors = [(a.name, a.value) for a in sample.arguments if not a.differentiable]
    return tuple(
        (name, value.detach().to("cpu", torch.float64))
        for name, value in tensors
        if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_complex()
    )


def repairs_of(kept: Kept) -> Repairs:
    """What is known of changes of a target's backward, and how many calls they may take."""
    if kept.repairs is None:
        kept.repairs = Repairs(kept.allowance)
    return kept.repairs


def own_backward_of(sample: Sample, repairs: Repairs) -> OwnBackward | None:
    """What runs changes of its backward; None for what is no Function.

    On the CPU, wherever the gradient is wrong: on a device, an index out of bounds would end the process.
    """
    function = sample.subject.function_class
    if function is None:
        return None
    if sample.subject.settings.device != "cpu":
        placed = placed_on("cpu", sample)
        if isinstance(placed, Raised):
            return None
        sample = placed.value
    return OwnBackward(sample.problem, function, backward_name(function), own_backward(function), repairs)


def _output_name(sample: Sample, position: int) -> str:
    number = str(position) if sample.outputs_returned > 1 else ""
    is_taken = f"y{number}" in {argument.name for argument in sample.arguments}
    return f"{'output' if is_taken else 'y'}{number}"


def _shapes(sample: Sample) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Every tensor of the call with its shape, the outputs last."""
    given = [(a.name, tuple(a.value.shape)) for a in sample.arguments if isinstance(a.value, Tensor)]
    problem = sample.problem
    returned = [
        (_output_name(sample, position), block.shape[:-1] if block.is_complex else block.shape)
        for position, block in zip(problem.output_positions, problem.outputs.blocks, strict=True)
    ]
    return (*given, *returned)


LARGER = 5.0
"""Times as large as drawn: past most thresholds of clamps and branches that ordinary values stay below."""

MOST_OPTIONS = 3
"""Options of cases, at one of whose calls each a threshold is looked for."""

OTHER_NUMBER = 0.75
"""Times a number that is passed beside tensors: a share of one stays one, and a temperature positive."""

KEY = 31
"""Of the random grad_output and direction."""

CALLS = 20
"""Of forward and of backward that a change takes at one place, about."""

KNOWN = 1e-3
"""Share of the sum of its terms within which a slope must be known to refute anything."""

SAME = 1e-6
"""Share of the sum of its terms by which a slope may differ: a change that is wrong there is grossly so."""


def further_places(visited: Sequence[Place], kept: Kept, build: Build) -> tuple[FurtherPlace, ...]:
    """One place for each case that was verified, and at its declared special values, as of a label to ignore.

    Then those of its declared range, one at larger values, and one with other numbers; as many as may be
    asked.
    """
    most = kept.allowance.left // CALLS
    points = (KindOfPoint.TYPICAL, KindOfPoint.SPECIAL)
    first = [place for point in points for place in visited if (place.point, place.draw) == (point, 0)]
    ranged = (place for place in visited if place.point is KindOfPoint.WIDE)
    first += [place for place in ranged if is_declared(place.point, place.draw)]
    samples = [kept.sample(place, build) for place in first[:most]]
    judged = [one for one in samples if isinstance(one, Sample) and not one.disconnected]
    larger = [_larger(one) for one in judged if _unbounded(one.case) & {*one.problem.input_names}]
    others = [other for one in judged if (other := _with_other_numbers(one)) is not None]
    found = []
    options: set[Options] = set()
    for sample in (*judged, *larger, *others)[:most]:
        own = own_backward_of(sample, repairs_of(kept))
        if own is not None:
            is_other = sample.case.options not in options and len(options) < MOST_OPTIONS
            found.append(FurtherPlace(own, _declared(sample.case), bounds_of(sample), is_other))
            options.add(sample.case.options)
    return tuple(found)


def _larger(sample: Sample) -> Sample:
    """The same call at larger values of the inputs that may have them."""
    free, problem = _unbounded(sample.case), sample.problem
    values = zip(problem.input_names, problem.primals, strict=True)
    primals = tuple(LARGER * value if name in free else value for name, value in values)
    return replace(sample, problem=with_primals(problem, primals))


def _with_other_numbers(sample: Sample) -> Sample | None:
    """The same call with other numbers than those that it is given beside tensors; None where it has none.

    A factor that is written out is right for one of them alone.
    """
    problem = _renumbered(sample.problem, OTHER_NUMBER)
    return None if problem is None else replace(sample, problem=problem)


def _renumbered(problem: CallProblem, share: float) -> CallProblem | None:
    """A call with a share of each number beside its tensors; None where it has none."""
    given = problem.arguments
    values = [share * a.value if type(a.value) is float and a.value else a.value for a in given]
    if all(value is a.value for value, a in zip(values, given, strict=True)):
        return None
    arguments = tuple(replace(a, value=value) for value, a in zip(values, given, strict=True))
    return replace(problem, arguments=arguments)


def _unbounded(case: Case) -> set[str]:
    """Inputs of which nothing is said that larger values may contradict."""
    return {name for name, (_, most) in _declared(case).items() if most == torch.inf}


def _declared(case: Case) -> dict[str, tuple[float, float]]:
    """The least and the largest value of each input whose values may be multiplied."""
    given = [t for one in case.inputs for t in tensors_of(one)]
    return {
        t.name: t.range or (-torch.inf, torch.inf)
        for t in given
        if t.value is None and not t.structure and not t.make and t.domain != "unit"
    }


@dataclass(frozen=True)
class Slope:
    """What forward has along a direction, for one grad_output, and how far it may be off."""

    value: float
    error: float


@dataclass
class FurtherPlace:
    """One call at which a change must hold that was found at others."""

    own: OwnBackward
    declared: Mapping[str, tuple[float, float]]
    """The least and the largest value of each input whose values may be multiplied."""
    bounds: tuple[Tensor, Tensor] | None = None
    """The ends of what is declared of each entry, beyond which forward is not called."""
    is_of_other_options: bool = False
    """The first one of its options."""
    along: dict[int, SlopeOfRows | None] = field(default_factory=dict)
    """What was measured, by input."""
    slopes: dict[tuple[int, int], Slope | None] = field(default_factory=dict)
    """What was measured, by output and input."""
    _others: dict[float, FurtherPlace | None] = field(default_factory=dict)
    """The same at shares of the values."""

    def scaled(self, share: float) -> FurtherPlace | None:
        """The same call at a share of those values that may be so; None where none may."""
        if share not in self._others:
            problem = self.own.problem
            values = [*zip(problem.input_names, problem.primals, strict=True)]
            moved = [share * v if self._may_be(n, share * v) else v for n, v in values]
            is_same = all(one is v for one, (_, v) in zip(moved, values, strict=True))
            there = None if is_same else self._with(with_primals(problem, tuple(moved)))
            self._others[share] = there
        return self._others[share]

    def with_numbers(self, share: float) -> FurtherPlace | None:
        """The same call with a share of each number beside its tensors; None where it has none."""
        problem = _renumbered(self.own.problem, share)
        return None if problem is None else self._with(problem)

    @property
    def size(self) -> float:
        """The largest absolute value of the inputs that may have others; 0 for none."""
        values = zip(self.own.problem.input_names, self.own.problem.primals, strict=True)
        return max((float(v.abs().max()) for n, v in values if n in self.declared and v.numel()), default=0.0)

    def runs(self, backward: Callable[..., Any]) -> bool:
        """Whether a backward gives a gradient by the first output here."""
        return self.own.is_started() and self.own.pulled_back(0, self._cotangent(0), backward) is not None

    def _may_be(self, name: str, values: Tensor) -> bool:
        least, most = self.declared.get(name, (torch.inf, -torch.inf))
        if least == -torch.inf and most == torch.inf:
            return True
        return not values.is_complex() and bool(((values >= least) & (values <= most)).all())

    def _with(self, problem: CallProblem) -> FurtherPlace:
        own = self.own
        other = OwnBackward(problem, own.function, own.name, own.own, own.repairs)
        return FurtherPlace(other, self.declared, self.bounds)

    def _cotangent(self, output: int) -> Tensor:
        """A random grad_output, zero where forward has a kink, or is not known."""
        part = self._rows(output)
        u = probe(part.stop - part.start, KEY)
        for found in filter(None, map(self._along, range(len(self._parts)))):
            u = torch.where(found.kink[part] | ~found.error[part].isfinite(), 0.0, u)
        return u

    def refutes(self, backward: Callable[..., Any], wrong: frozenset[str]) -> bool:
        """Whether a gradient is certainly wrong here with another backward: what that alters, or was wrong.

        `wrong` names the inputs whose gradients are wrong elsewhere without it.
        """
        return self.own.is_started() and any(
            self._is_wrong(output, backward, wrong) for output in range(len(self.own.problem.outputs.blocks))
        )

    def _is_wrong(self, output: int, backward: Callable[..., Any], wrong: frozenset[str]) -> bool:
        u = self._cotangent(output)
        before = self.own.pulled_back(output, u, self.own.own)
        gradient = None if before is None else self.own.pulled_back(output, u, backward)
        if gradient is None:
            return before is not None
        names = self.own.problem.input_names
        return any(
            (before is None or name in wrong or not torch.equal(gradient[part], before[part]))
            and self._differs(output, source, u, gradient)
            for source, (name, part) in enumerate(zip(names, self._parts, strict=True))
        )

    @property
    def _values(self) -> Values:
        return Values(self.own.problem, bounds=self.bounds)

    @property
    def _parts(self) -> list[slice]:
        return [slice(b.start, b.stop) for b in Layout.of(self.own.problem.primals).blocks]

    def _differs(self, output: int, source: int, u: Tensor, gradient: Tensor) -> bool:
        """Whether a gradient is not the derivative by one input, along a direction of that."""
        direction = self._direction(source)
        if (output, source) not in self.slopes:
            self.slopes[output, source] = self._measured(output, u, source)
        slope = self.slopes[output, source]
        if slope is None:
            return False
        terms = gradient * direction
        size, error = max(float(terms.abs().sum()), abs(slope.value)), slope.error
        known = error <= KNOWN * size
        return known and abs(float(terms.sum()) - slope.value) > error + SAME * size

    def _direction(self, source: int) -> Tensor:
        """Every entry of one input by about its own size, the others by nothing."""
        return self._values.direction(KEY, self._parts[source])

    def _along(self, source: int) -> SlopeOfRows | None:
        """What every output has along the direction of an input; None where that does not move."""
        if source not in self.along:
            direction = self._direction(source)
            moves = bool(direction.any())
            self.along[source] = self._values.slope(direction) if moves else None
        return self.along[source]

    def _measured(self, output: int, u: Tensor, source: int) -> Slope | None:
        """What forward has along a direction; None where that is not known."""
        found, part = self._along(source), self._rows(output)
        if found is None or not bool(u.any()):
            return None
        there = u != 0
        value, error = found.value[part][there], found.error[part][there]
        return Slope(float(u[there] @ value), float(u[there].abs() @ error))

    def _rows(self, output: int) -> slice:
        block = self.own.problem.outputs.blocks[output]
        return slice(block.start, block.stop)
