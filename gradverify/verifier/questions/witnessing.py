"""The witnesses of a target: made once for each combination of options, and asked at each sample.

Both Jacobians at one sample, for whoever asks why they differ: backward's, and that of a witness. That is
derived, where values have confirmed it and nothing hides in it; else forward's slopes, column by column.
Where the gradient is another one beside the point, as at a kink, nothing is known.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradverify.model import Point, TensorInput
from gradverify.source import iterates
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.values import DOMAINS
from gradverify.verifier.numerics.problem import CallProblem, Graph, VjpProblem
from gradverify.verifier.questions.dtypes.calls import exact_arguments, in_float64
from gradverify.verifier.questions.reading import own_backward
from gradverify.verifier.questions.subject import Sample, graph_of
from gradverify.verifier.witnesses.answers import Asked, Budget, Trust
from gradverify.verifier.witnesses.claim import Claim, rows_at, units
from gradverify.verifier.witnesses.derived import Derived, derive
from gradverify.verifier.witnesses.kinks import BESIDE, ROOM
from gradverify.verifier.witnesses.proof import proved
from gradverify.verifier.witnesses.rounding import FACTOR, SHORT, Formats, has_digits_of_float32
from gradverify.verifier.witnesses.values import FLOAT32, FLOAT64, Steps, Values, probe

OF_SECOND = 1e-6
"""Relative tolerance of second derivatives in float64: two formulas in a row."""

SAME_FORWARD = 1e-9
"""Relative difference between two calls of one forward: libraries add in an order that memory decides."""


@dataclass
class Options:
    """What is known of the target at one combination of options."""

    first: Trust = field(default_factory=Trust)
    second: Trust = field(default_factory=Trust)
    form: str = "eager"
    """The form of derived to begin with: nothing hid in those before it where it was tried."""
    twice: bool = False
    """Backward was seen to be differentiable, and its derivative is right so far."""
    formats: frozenset[torch.dtype] | None = None
    """In which forward computes; None until it was watched."""
    met: frozenset[torch.dtype] = frozenset()
    """Those of any number that it makes, also of what it keeps for backward alone."""
    compares: bool = False
    """Forward compares numbers, and may take another branch at zeros or ties."""
    made: str = ""
    """The line on which forward, which takes float64, makes numbers of float32."""
    wrong: set[tuple[int, int]] = field(default_factory=set)
    """(output, input) pairs that were found wrong at a declared sample of these options."""
    unsteady: bool = False
    """Forward gives other values at the same inputs."""
    alone: bool = False
    """It has no float64 path, and no witness but values."""

    @property
    def is_short(self) -> bool:
        """Whether forward computes in float32 or less inside."""
        return bool((self.formats or frozenset()) & SHORT)

    @property
    def steps(self) -> Steps:
        """Of differences of forward's values."""
        return FLOAT32 if self.is_short else FLOAT64

    @property
    def epsilon(self) -> float:
        """Forward's precision."""
        return self.steps.epsilon


@dataclass
class Witnesses:
    """Of one target."""

    by_options: dict[object, Options] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    wrong: dict[tuple[int, int], str] = field(default_factory=dict)
    """(output, input) pairs that were found wrong at a declared sample, with the code that says how."""
    ordinary: set[tuple[int, int]] = field(default_factory=set)
    """Those of them that were measured at typical values, which a report shows before others."""
    suspected: set[tuple[int, int]] = field(default_factory=set)
    """Those that values alone refuted once at what nobody declared."""
    refuted: bool = False
    """Values have refuted derived: it is not used again for this target."""

    def of(self, sample: Sample) -> Options:
        """What is known at the options of a sample."""
        return self.by_options.setdefault(sample.case.options, Options())


def witnesses_of(sample: Sample) -> Witnesses:
    """What is known of the gradient of a target, from sample to sample."""
    # With short operations carried out in float64 it is another function.
    known: Witnesses = sample.subject.learnt.setdefault((Witnesses, sample.subject.short), Witnesses())
    return known


def options_of(sample: Sample) -> Options:
    """The same, of the combination of options that a sample has."""
    return witnesses_of(sample).of(sample)


def other_values(sample: Sample, graph: Graph, known: Options) -> bool:
    """Whether the same call gives other values; meanwhile the formats of its operations are noted."""
    problem = sample.problem
    with Formats(problem.primals) as seen:
        again = problem.evaluate(problem.primals)
    known.formats = frozenset(b.dtype for b in problem.outputs.blocks)
    if isinstance(again, Raised):
        return False
    known.formats |= {f for t in again.value for f in seen.of(t)}
    known.met = known.formats | seen.met
    known.compares = seen.compares
    known.made = seen.made if problem.outputs.is_double and not known.is_short else ""
    hidden, now = any(map(seen.is_from_outside, again.value)), problem.outputs.flatten(again.value)
    if hidden and problem.outputs.is_double and has_digits_of_float32(now):
        known.formats |= {torch.float32}
    if _same(problem.outputs.flatten(graph.outputs), now):
        return False
    repeated = problem.evaluate(problem.primals)  # with a graph it may be another function
    return not isinstance(repeated, Raised) and not _same(now, problem.outputs.flatten(repeated.value))


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0.0, atol=SAME_FORWARD * largest(a), equal_nan=True)


def largest(values: Tensor) -> float:
    """The largest magnitude of finite numbers; 0 where there are none."""
    return float(values.abs().nan_to_num(0.0, 0.0, 0.0).max()) if values.numel() else 0.0


def first_order(sample: Sample, graph: Graph, *, declared: bool) -> Asked:
    """What the judge needs of a sample's gradient."""
    witnesses, problem, settings = witnesses_of(sample), sample.problem, sample.subject.settings
    known, function = witnesses.of(sample), sample.subject.function_class
    held = _held(sample)
    derived, hides = _derived(sample, graph, held)
    loops = bool(iterates(sample.subject.function if function is None else function.forward))
    # At what nobody declared it says nothing that other options, as an approximation, are wrong.
    again = witnesses.wrong if declared else () if loops else known.wrong
    return Asked(
        problem=problem,
        claim=Claim(problem, graph),
        values=Values(problem, steps=known.steps, bounds=bounds_of(sample), held=held),
        derived=derived,
        hides=hides,
        trust=known.first,
        rtol=settings.rtol,
        atol=settings.atol,
        declared=declared,
        limited=declared,
        budget=witnesses.budget,
        counter=problem.counter,
        wrong=frozenset(
            pair for pair in again if pair in witnesses.ordinary or sample.point is not Point.TYPICAL
        ),
        loops=loops,
        iterates=function is not None and bool(iterates(own_backward(function))),
        formats=known.formats or frozenset(),
        kept_short=bool(known.made),
        key=sample.key % 4096,
    )


def _held(sample: Sample) -> Tensor | None:
    """Coordinates that are constants by the spec (bool, N); None for none."""
    flat = []
    for argument, block in zip(sample.differentiable, sample.inputs.blocks, strict=True):
        held = torch.zeros(argument.value.shape, dtype=torch.bool) if argument.held is None else argument.held
        flat.append(held.cpu().reshape(-1).repeat_interleave(2 if block.is_complex else 1))
    return torch.cat(flat) if any(bool(held.any()) for held in flat) else None


def _derived(sample: Sample, graph: Graph, held: Tensor | None) -> tuple[Claim | None, bool]:
    """The derived witness, or of a native sample the reference; and whether something hides in it."""
    witnesses, subject = witnesses_of(sample), sample.subject
    known = witnesses.of(sample)
    if witnesses.refuted:
        return None, False
    if sample.is_native:
        wide = in_float64(subject, sample.problem, exact_arguments(sample), graph.outputs)
        known.alone = wide is None
        return (None if wide is None else Claim(wide, held=held, rounded=sample.problem.outputs)), False
    # Nothing but operations is left of an operator's own forward once its Functions are opened.
    forward = subject.own_forward if subject.operator is not None else None
    found = derive(
        sample.problem, forward or subject.call, graph.outputs, first=known.form, wide=known.is_short
    )
    if not isinstance(found, Derived):
        return None, False
    known.form = known.form if found.is_wide else found.form
    return Claim(found.problem, held=held), found.hides


def bounds_of(sample: Sample) -> tuple[Tensor, Tensor] | None:
    """The ends of declared ranges and domains, entry by entry (N each); None where nothing is bounded."""
    declared = {i.name: i for i in sample.case.inputs if isinstance(i, TensorInput)}
    problem, layout = sample.problem, sample.inputs
    ends = torch.tensor([[-torch.inf], [torch.inf]], dtype=torch.float64).repeat(1, layout.size)
    for name, x, block in zip(problem.input_names, problem.primals, layout.blocks, strict=True):
        spec = declared.get(name)
        if spec is None or spec.structure or spec.make or spec.value is not None:
            continue
        low, high = DOMAINS[spec.domain]
        if spec.range is not None:
            low, high = max(low, spec.range[0]), min(high, spec.range[1])
        if not bool(((x.real < low) | (x.real > high)).any()):  # special values may lie outside
            ends[0, block.span], ends[1, block.span] = low, high
    return (ends[0], ends[1]) if bool(ends.isfinite().any()) else None


def second_order(sample: Sample, first: Asked, graph: Graph, second: VjpProblem) -> Asked:
    """The same of the map (x, u) -> backward(x, u); `graph` is that of the gradients."""
    witness = None if first.witness is None else first.witness.problem
    steps = first.values.steps
    if not steps.is_short:  # a derivative of a quotient squares what it divides by
        steps = replace(steps, smallest=steps.smallest**0.5)
    values, count, held = Values(second, steps=steps), len(first.values.x), first.values.held
    values.scale[:count], values.inward[:count] = first.values.scale, first.values.inward
    if held is not None:
        values.held = held = torch.cat([held, torch.zeros(len(values.x) - count, dtype=torch.bool)])
    derived: Claim | None = None
    if isinstance(witness, CallProblem):
        u = witness.outputs.unflatten(second.first_order.outputs.flatten(second.cotangents))
        derived = Claim(VjpProblem(witness, u), held=held, rounded=second.outputs)
    return replace(
        first,
        problem=second,
        claim=Claim(second, graph),
        values=values,
        derived=derived,
        trust=options_of(sample).second,
        rtol=max(first.rtol, OF_SECOND),
        limited=first.declared and sample.point is Point.TYPICAL,  # at the ends of a range digits are lost
        wrong=frozenset(),
        kept_short=False,
        key=first.key + 3,
    )


def cotangents_of(sample: Sample) -> tuple[Tensor, ...]:
    """The grad_outputs at which the second order is asked."""
    outputs = sample.problem.outputs
    return outputs.unflatten(probe(outputs.size, sample.key % 4096 + 17))


MOST_ROWS = 1024
"""Rows of a Jacobian that is built: a backward for each of them, and a grad_output of as many entries."""


@dataclass(frozen=True)
class Jacobians:
    """Matrices are M × N: outputs by inputs."""

    claimed: Tensor
    """What backward gives; zeros where it raises."""
    true: Tensor
    """What forward has."""
    error: Tensor
    """How far `true` may be off; infinite where nothing is known."""
    centre: Tensor
    """What forward returns (M)."""
    raises: bool = False


def first_asked(sample: Sample) -> Asked | None:
    """A sample's claim with its witnesses; None where forward raises."""
    made = graph_of(sample)
    return None if isinstance(made, Raised) else first_order(sample, made.value, declared=True)


def second_problem(sample: Sample) -> VjpProblem:
    """The backward of a sample as a map of its own, at one grad_output."""
    return VjpProblem(sample.problem, cotangents_of(sample))


def second_asked(sample: Sample) -> Asked | None:
    """The same of second order; None where backward raises, or cannot be differentiated."""
    first = first_asked(sample)
    second = second_problem(sample)
    made = second.graph(second.primals)
    if first is None or isinstance(made, Raised):
        return None
    return second_order(sample, first, made.value, second)


def jacobians_of(asked: Asked | None) -> Jacobians | None:
    """Of a target, or of its backward; None where it raises, gives no numbers, or too many."""
    if asked is None or asked.problem.outputs.size > MOST_ROWS:
        return None
    values, rows = asked.values, units(asked.problem.outputs.size)
    if not bool(values.centre.isfinite().any()):
        return None
    found = asked.claim.afresh().rows(rows)
    claimed = torch.zeros(len(rows), len(values.x)).double() if isinstance(found, Raised) else found
    if asked.derived is not None and not asked.trust.confirmed:
        proved(asked)
    derived = _of_derived(asked, rows)
    true, error = slopes(asked) if derived is None else derived
    return Jacobians(claimed, true, error, values.centre, raises=isinstance(found, Raised))


def _of_derived(asked: Asked, rows: Tensor) -> tuple[Tensor, Tensor] | None:
    """Derived's Jacobian with its error; None where it is not to be trusted."""
    witness = asked.witness
    if witness is None or asked.hides or not asked.trust.confirmed:
        return None
    true = witness.rows(rows)
    if isinstance(true, Raised):
        return None
    error = rounding_of(asked, true)
    error[other_beside(asked, true, rows) | ~true.isfinite()] = torch.inf
    return true, error


def other_beside(asked: Asked, true: Tensor, rows: Tensor) -> Tensor:
    """Entries of derived's Jacobian that are others beside the point, as at a kink (bool, K × N)."""
    other = torch.zeros_like(true, dtype=torch.bool)
    for sign in (1.0, -1.0):
        way = asked.values.turned(sign * probe(len(asked.values.x), asked.key + 31))
        x = asked.values.x + BESIDE * asked.values.scale * way
        near = None if asked.witness is None else rows_at(asked.witness.problem, x, rows)
        moved = torch.zeros_like(true) if near is None else (near - true).abs()
        other |= ~(moved <= ROOM * largest(true))
    return other


def rounding_of(asked: Asked, true: Tensor) -> Tensor:
    """How far derived's Jacobian may be off by rounding."""
    largest = true.abs().nan_to_num(0.0, 0.0, 0.0).amax(dim=1, keepdim=True) if true.numel() else true
    return (FACTOR * asked.values.steps.epsilon * largest).expand_as(true).clone()


def slopes(asked: Asked, until: int = sys.maxsize) -> tuple[Tensor, Tensor]:
    """Forward's slopes along every coordinate, with their errors.

    None is begun once user code was called more often than `until`: they are infinite then.
    """
    values = asked.values
    true = torch.zeros(values.outputs.size, len(values.x), dtype=torch.float64)
    error = torch.zeros_like(true)
    for column in (values.scale > 0).nonzero()[:, 0].tolist():
        if guard.CALLS.made > until:
            error[:, column] = torch.inf
            continue
        v = values.unit(column)
        slope, size = values.slope(v), float(v[column])
        true[:, column] = slope.value / size
        error[:, column] = torch.where(slope.kink, torch.inf, slope.error / abs(size))
    return true, error
