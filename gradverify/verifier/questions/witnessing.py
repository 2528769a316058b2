"""The witnesses of a target: made once for each combination of options, and asked at each sample."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradverify.model import Point, TensorInput
from gradverify.source import iterates
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.values import DOMAINS
from gradverify.verifier.numerics.problem import CallProblem, Graph, VjpProblem
from gradverify.verifier.questions.dtypes.calls import exact_arguments, in_float64
from gradverify.verifier.questions.reading import own_backward
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.witnesses.answers import Asked, Budget, Trust
from gradverify.verifier.witnesses.claim import Claim
from gradverify.verifier.witnesses.derived import Derived, derive
from gradverify.verifier.witnesses.rounding import SHORT, Formats, has_digits_of_float32
from gradverify.verifier.witnesses.values import FLOAT32, FLOAT64, Values, probe

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
    made: str = ""
    """The line on which forward, which takes float64, makes numbers of float32."""
    unsteady: bool = False
    """Forward gives other values at the same inputs."""
    alone: bool = False
    """It has no float64 path, and no witness but values."""

    @property
    def is_short(self) -> bool:
        """Whether forward computes in float32 or less inside."""
        return bool((self.formats or frozenset()) & SHORT)

    @property
    def epsilon(self) -> float:
        """Forward's precision."""
        return (FLOAT32 if self.is_short else FLOAT64).epsilon


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
    known = sample.subject.learnt.setdefault((Witnesses, sample.subject.short), Witnesses())
    assert isinstance(known, Witnesses)  # noqa: S101 - for the type checker
    return known


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
    known.made = seen.made if problem.outputs.is_double and not known.is_short else ""
    hidden = any(map(seen.is_from_outside, again.value))
    if hidden and problem.outputs.is_double and has_digits_of_float32(problem.outputs.flatten(again.value)):
        known.formats |= {torch.float32}
    before, now = problem.outputs.flatten(graph.outputs), problem.outputs.flatten(again.value)
    if _same(before, now):
        return False
    repeated = problem.evaluate(problem.primals)  # with a graph it may be another function
    return not isinstance(repeated, Raised) and not _same(now, problem.outputs.flatten(repeated.value))


def _same(a: Tensor, b: Tensor) -> bool:
    size = a.abs()[a.isfinite()]
    bar = SAME_FORWARD * (float(size.max()) if size.numel() else 0.0)
    return bool((((a - b).abs() <= bar) | (a == b) | (a.isnan() & b.isnan())).all())


def first_order(sample: Sample, graph: Graph, *, declared: bool) -> Asked:
    """What the judge needs of a sample's gradient."""
    witnesses, problem, settings = witnesses_of(sample), sample.problem, sample.subject.settings
    known, function = witnesses.of(sample), sample.subject.function_class
    held = _held(sample)
    derived, hides = _derived(sample, graph, held)
    steps, bounds = FLOAT32 if known.is_short else FLOAT64, _bounds(sample)
    loops = bool(iterates(sample.subject.function if function is None else function.forward))
    again = witnesses.wrong if declared or not loops else ()
    return Asked(
        problem=problem,
        claim=Claim(problem, graph),
        values=Values(problem, steps=steps, bounds=bounds, held=held),
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


def _bounds(sample: Sample) -> tuple[Tensor, Tensor] | None:
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
        trust=witnesses_of(sample).of(sample).second,
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
