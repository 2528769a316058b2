"""A composite reference: values (GV301), gradients (GV302) and second derivatives (GV303).

A surrogate is one whose gradient is meant, though it is not the derivative: straight-through rounding,
gradient reversal, spiking units. For the inputs it covers, GV302 against its gradient stands in for the
checks against the exact derivative; the others stay exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Entries, Finding, Outcome, Point, Severity
from gradverify.verifier.checks.composite import reference_problem
from gradverify.verifier.checks.first_order import measured_first_order, not_taken
from gradverify.verifier.checks.result import CheckResult, FirstOrder, Uncovered, outcome_of
from gradverify.verifier.checks.structured_grad_outputs import NotTaken, wrong_with_structure
from gradverify.verifier.checks.subject import Sample, Surrogate, first_line
from gradverify.verifier.checks.wording import apart, count_of, number, output_name, vector_entries
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.problem import Block, CallProblem, Layout, Problem, VjpProblem
from gradverify.verifier.numerics.round_off import (
    OF_ONE,
    gradient_round_off,
    gradient_spread,
    value_round_off,
    value_spread,
)
from gradverify.verifier.numerics.tolerance import SAFETY, distance

LOSES_DIGITS = (
    "Something in backward loses digits, such as a difference quotient with a small step, or large numbers "
    "that cancel."
)
"""The hint of a gradient that is unstable."""

REPLACED = frozenset({"GV101", "GV106", "GV107"})
"""Codes that a surrogate stands in for."""

ALSO_REPLACED_WITHOUT_COMPOSITE = frozenset({"GV108", "GV110"})
"""Codes that nothing can judge where only a reason is declared."""


def reference(sample: Sample, first: FirstOrder, second: CheckResult | None) -> CheckResult:
    """Compare the target with its composite over the same inputs, the random state replayed."""
    function = sample.subject.reference
    if function is None:
        return CheckResult(outcome=Outcome.NOT_RUN)
    built = reference_problem(sample, function, sample.subject.reference_arguments)
    if isinstance(built, Raised):
        return _refused(sample, f"the reference raised {built.error.type}: {first_line(built.error.message)}")
    other = built.value
    if not other.output_positions:
        return _refused(sample, "the reference returned no tensor at the position of a differentiable output")
    mine = _matching(sample.problem, other)
    findings = _other_shapes(sample, mine, other) or _compare_forward(sample, mine, other)
    findings = findings or _compare_gradients(sample, mine, other, first)
    if not findings and second is not None and second.capability == "yes":
        findings = _compare_second(sample, mine, other)
    return _result(findings)


def surrogate_gradient(sample: Sample, surrogate: Surrogate) -> CheckResult:
    """GV302: backward against the gradient of the surrogate; its forward is not compared."""
    if surrogate.function is None:
        return CheckResult(outcome=Outcome.NOT_RUN)
    built = reference_problem(sample, surrogate.function, surrogate.arguments)
    if isinstance(built, Raised):
        return _refused(sample, f"the surrogate raised {built.error.type}: {first_line(built.error.message)}")
    found = _compare_gradients(sample, sample.problem, built.value, None)
    return _result([f for f in found if surrogate.covers(f.input)])


def _result(findings: Sequence[Finding]) -> CheckResult:
    """Findings as a result: what is left open is not passed."""
    outcome = outcome_of(tuple(findings))
    if outcome is Outcome.PASSED and any(f.code == "GV109" for f in findings):
        outcome = Outcome.INCONCLUSIVE
    return CheckResult(tuple(findings), outcome)


def without_exact(first: FirstOrder, surrogate: Surrogate) -> FirstOrder:
    """The first order without what the surrogate replaces."""
    codes = REPLACED if surrogate.function is not None else REPLACED | ALSO_REPLACED_WITHOUT_COMPOSITE
    findings = tuple(f for f in first.result.findings if f.code not in codes or not surrogate.covers(f.input))
    exact_inputs = bool(surrogate.inputs)
    result = replace(
        first.result,
        findings=findings,
        uncovered={k: v for k, v in first.result.uncovered.items() if not surrogate.covers(k[1])},
        outcome=outcome_of(findings) if exact_inputs or findings else Outcome.NOT_RUN,
        smallest_visible_error=first.result.smallest_visible_error if exact_inputs else None,
    )
    return replace(first, result=result)


def linear_at_least(sample: Sample, first: FirstOrder, surrogate: Surrogate) -> FirstOrder:
    """The first order with what is wrong for grad_outputs of a certain structure (GV106).

    A composite's gradient is linear in grad_output; what is meant for a reason alone need not be.
    """
    wrong = None if surrogate.function is None else wrong_with_structure(sample)
    if isinstance(wrong, NotTaken):
        wrong = not_taken(sample, wrong)
    if wrong is None or not surrogate.covers(wrong.input):
        return first
    findings = (*first.result.findings, wrong)
    outcome = outcome_of(findings) if wrong.severity is Severity.ERROR else first.result.outcome
    return replace(first, result=replace(first.result, findings=findings, outcome=outcome))


def _refused(sample: Sample, reason: str) -> CheckResult:
    """A reference that cannot be called says nothing about the target: not verified, not green."""
    nothing = Uncovered(torch.ones(1, 1, dtype=torch.bool), reason)
    everything = {(p, "reference"): nothing for p in sample.problem.output_positions[:1]}
    return CheckResult((), Outcome.INCONCLUSIVE, everything)


def _matching(problem: CallProblem, other: CallProblem) -> CallProblem:
    """The target restricted to the outputs that the reference has too."""
    start, blocks = 0, []
    for position in other.output_positions:
        block = problem.outputs.blocks[problem.output_positions.index(position)]
        length = block.stop - block.start
        blocks.append(replace(block, start=start, stop=start + length))
        start += length
    return replace(problem, output_positions=other.output_positions, outputs=Layout(tuple(blocks)))


def _other_shapes(sample: Sample, mine: CallProblem, other: CallProblem) -> list[Finding]:
    outputs = zip(mine.output_positions, mine.outputs.blocks, other.outputs.blocks, strict=True)
    return [
        sample.finding(
            "GV301",
            f"{output_name(position, sample.outputs_returned)} has shape {list(a.shape)}, "
            f"the reference's has {list(b.shape)}",
            hint="Is it the reference for these inputs, called positionally with what forward gets?",
            output=position,
        )
        for position, a, b in outputs
        if a.shape != b.shape
    ][:1]


def _compare_forward(sample: Sample, mine: CallProblem, other: CallProblem) -> list[Finding]:
    a, b = mine.evaluate(mine.primals), other.evaluate(other.primals)
    if isinstance(a, Raised) or isinstance(b, Raised):
        return []
    x, y = mine.outputs.flatten(a.value), other.outputs.flatten(b.value)
    noise = value_spread(mine, x) + value_spread(other, y)
    if _differs(sample, x, y, noise).any():
        noise += (value_round_off(mine) + value_round_off(other)) / SAFETY
    pair = (x, y, noise, noise)
    return [
        sample.finding(
            "GV301",
            f"{output_name(position, sample.outputs_returned)} of forward differs from the reference "
            f"at {_where(entries)}",
            hint="Forward and reference give different values: the gradients are not compared.",
            output=position,
            entries=entries,
            badness=_badness(entries),
        )
        for position, block in zip(mine.output_positions, mine.outputs.blocks, strict=True)
        if (entries := _entries(sample, pair, block, of_output=True)).wrong
    ]


def _compare_gradients(
    sample: Sample, mine: CallProblem, other: CallProblem, first: FirstOrder | None
) -> list[Finding]:
    """Gradients for one random grad_output of each output alone; never at a kink.

    `first` is None for a surrogate: there the numbers that verified backward do not speak against it.
    """
    findings = []
    u = mine.outputs.unflatten(random_signs(mine.outputs.size, sample.case.seed + 29))
    for number_of, position in enumerate(mine.output_positions):
        alone = tuple(t if k == number_of else None for k, t in enumerate(u))
        pair = _gradients(sample, mine, other, alone, sample.inputs)
        if pair is None:
            continue
        if first is not None and first.proven and _differs(sample, *pair[:3]).any():
            first = measured_first_order(sample)  # where are the kinks, and who is right?
        measured = None if first is None else first.measured
        smooth = None if measured is None else ~(measured.kink > 0).any(dim=0)
        findings += [
            _gradient_differs(sample, first, position, name, entries)
            for name, entries in _wrong_inputs(sample, pair, mine.input_names, sample.inputs, smooth)
        ]
        if first is None or not first.verified:
            findings += _unstable(sample, pair, mine.input_names)
    return findings


def _unstable(sample: Sample, pair: _Pair, names: tuple[str, ...]) -> Iterator[Finding]:
    """GV109 for gradients whose own rounding alone explains a difference from the reference's.

    What they round away themselves excuses no more than the tolerance does of the largest entry, or what
    vanishes beside numbers of order one. What the reference rounds away is not known of the truth.
    """
    x, y, noise, theirs = pair
    settings, explained = sample.subject.settings, ~_differs(sample, x, y, noise)
    for name, block in zip(names, sample.inputs.blocks, strict=True):
        part = slice(block.start, block.stop)
        if sample.point is not Point.TYPICAL or block.stop == block.start:
            continue
        largest = y[part].abs().nan_to_num(0.0, 0.0, 0.0).max().item()
        most = torch.clamp_min(SAFETY * theirs[part], max(settings.atol + settings.rtol * largest, OF_ONE))
        off = torch.where(explained[part], (x - y)[part].abs(), 0.0)
        over = off > most
        if over.any():
            worst = int(torch.where(over, off, -1.0).argmax())
            got, wanted = apart(x[part][worst].item(), y[part][worst].item())
            moves = number(SAFETY * noise[part][worst].item())
            yield sample.finding(
                "GV109",
                f"the gradient with respect to `{name}` is unstable: its own rounding moves it by up to "
                f"{moves}, so that {got} could not be told from {wanted}",
                hint=LOSES_DIGITS,
                input=name,
            )


def _gradient_differs(
    sample: Sample, first: FirstOrder | None, position: int, name: str, entries: Entries
) -> Finding:
    of_output = f" of output {position}" if sample.outputs_returned > 1 else ""
    other = "surrogate" if first is None else "reference"
    made = sample.finding(
        "GV302",
        f"the gradient{of_output} with respect to `{name}` differs from the {other}'s at "
        f"{_where(entries, other)}",
        output=position,
        input=name,
        entries=entries,
        badness=_badness(entries),
    )
    if first is None or first.comparison is None or not first.verified:
        return made
    block = sample.inputs.blocks[sample.problem.input_names.index(name)]
    if not first.comparison.covered[:, block.start : block.stop].all():
        return made
    return replace(
        made,
        severity=Severity.WARNING,
        message=made.message + "; backward was verified numerically, so it is the reference's own gradient "
        "that is not the derivative",
        hint="Does the reference detach something, or declare a surrogate gradient?",
    )


def _compare_second(sample: Sample, mine: CallProblem, other: CallProblem) -> list[Finding]:
    u = mine.outputs.unflatten(random_signs(mine.outputs.size, sample.case.seed + 31))
    a, b = VjpProblem(mine, u), VjpProblem(other, u)
    layout = Layout.of(a.primals)
    w = a.outputs.unflatten(random_signs(a.outputs.size, sample.case.seed + 37))
    pair = _gradients(sample, a, b, w, layout)
    wrong = [] if pair is None else _wrong_inputs(sample, pair, a.input_names, layout, None)
    return [
        sample.finding(
            "GV303",
            f"the second derivative by `{name}` differs from the reference's at {_where(entries)}; "
            "it was verified numerically, so the reference's own is not right",
            input=name,
            entries=entries,
            severity=Severity.WARNING,
        )
        for name, entries in wrong
    ]


_Pair = tuple[Tensor, Tensor, Tensor, Tensor]
"""What the target gives, what the reference gives, and how far rounding may move both and the reference
alone: flat."""


def _gradients(
    sample: Sample, mine: Problem, other: Problem, u: tuple[Tensor | None, ...], layout: Layout
) -> _Pair | None:
    """Two gradients; the rounding of their own operations is asked for where they differ."""
    a, b = mine.pull_back(mine.primals, u), other.pull_back(other.primals, u)
    if isinstance(a, Raised) or isinstance(b, Raised):
        return None
    x, y = layout.flatten(a.value), layout.flatten(b.value)
    own, theirs = gradient_spread(mine, u, x), gradient_spread(other, u, y)
    if _differs(sample, x, y, own + theirs).any():
        own = own + gradient_round_off(mine, u) / SAFETY
        theirs = theirs + gradient_round_off(other, u) / SAFETY
    return x, y, own + theirs, theirs


def _wrong_inputs(
    sample: Sample, pair: _Pair, names: tuple[str, ...], layout: Layout, smooth: Tensor | None
) -> Iterator[tuple[str, Entries]]:
    """Inputs by which two gradients differ, and where; `smooth` are the columns that are judged."""
    for name, block in zip(names, layout.blocks, strict=True):
        entries = _entries(sample, pair, block, smooth=smooth)
        if entries.wrong:
            yield name, entries


def _entries(
    sample: Sample, pair: _Pair, block: Block, *, of_output: bool = False, smooth: Tensor | None = None
) -> Entries:
    x, y, noise, _ = (t[block.start : block.stop] for t in pair)
    wrong = _differs(sample, x, y, noise)
    if smooth is not None:
        wrong &= smooth[block.start : block.stop]
    return vector_entries(x, y, noise, wrong, block, of_output=of_output)


def _differs(sample: Sample, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    settings = sample.subject.settings
    finite = y.abs()[y.isfinite()]
    median = finite.median() if finite.numel() else torch.zeros((), dtype=torch.float64)
    allowed = settings.atol + settings.rtol * (y.abs() + median)
    same = (x == y) | (x.isnan() & y.isnan())
    return ~(distance(x, y) <= torch.maximum(allowed, SAFETY * noise)) & ~same


def _where(entries: Entries, other: str = "reference") -> str:
    got, wanted = apart(entries.worst[0].actual, entries.worst[0].expected)
    off = number(_badness(entries))
    return f"{count_of(entries.wrong, entries.checked)}, by up to {off} ({got}, {other} {wanted})"


def _badness(entries: Entries) -> float:
    return abs(entries.worst[0].actual - entries.worst[0].expected)
