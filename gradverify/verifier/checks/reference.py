"""The composite reference: values (GV301), gradients (GV302) and second derivatives (GV303)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Entries, Entry, Finding, Outcome, Severity
from gradverify.verifier.checks.first_order import measured_first_order
from gradverify.verifier.checks.gradient_spread import ROUND_OFF_SAFETY, gradient_spread, value_spread
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.result import CheckResult, FirstOrder, Uncovered, outcome_of
from gradverify.verifier.checks.subject import Sample, first_line, reference_problem
from gradverify.verifier.checks.wording import WORST_ENTRIES, count_of, number, output_name
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.flat import Block, Layout
from gradverify.verifier.numerics.own_rounding import gradient_round_off, value_round_off
from gradverify.verifier.numerics.problem import CallProblem, Problem, VjpProblem

SAME_FACTOR = 1e-8
"""Two gradients are multiples of each other within this share of an entry."""

LEAST_RELATED = 3
"""Entries that one factor must explain: one is a multiple of anything."""


def reference(sample: Sample, first: FirstOrder, second: CheckResult | None) -> CheckResult:
    """Compare the target with its composite over the same inputs, the random state replayed."""
    function = sample.subject.reference
    if function is None:
        return CheckResult(outcome=Outcome.NOT_RUN)
    built = reference_problem(sample, function, sample.subject.reference_arguments)
    if isinstance(built, Raised):
        return refused(sample, f"the reference raised {built.error.type}: {first_line(built.error.message)}")
    other = built.value
    mine = _matching(sample.problem, other)
    if not other.output_positions:
        return refused(sample, "the reference returned no tensor at the position of a differentiable output")
    shapes = _other_shapes(sample, mine, other)
    if shapes is not None:
        return CheckResult((shapes,), Outcome.FAILED)
    findings = _compare_forward(sample, mine, other)
    if not findings:
        findings += compare_gradients(sample, mine, other, first)
        if not findings and second is not None and second.capability == "yes":
            findings += _compare_second(sample, mine, other)
    return CheckResult(tuple(findings), outcome_of(findings))


def refused(sample: Sample, reason: str) -> CheckResult:
    """A reference that cannot be called says nothing about the target: not verified, not green."""
    everything = {
        (p, "reference"): Uncovered(torch.ones(1, 1, dtype=torch.bool), reason)
        for p in sample.problem.output_positions[:1]
    }
    return CheckResult((), Outcome.INCONCLUSIVE, everything)


def _matching(problem: CallProblem, other: CallProblem) -> CallProblem:
    """The target restricted to the outputs that the reference has too."""
    if problem.output_positions == other.output_positions:
        return problem
    kept = [problem.output_positions.index(p) for p in other.output_positions]
    sizes = problem.outputs.blocks
    start, blocks = 0, []
    for k in kept:
        length = sizes[k].stop - sizes[k].start
        blocks.append(replace(sizes[k], start=start, stop=start + length))
        start += length
    return replace(problem, output_positions=other.output_positions, outputs=Layout(tuple(blocks)))


def _other_shapes(sample: Sample, mine: CallProblem, other: CallProblem) -> Finding | None:
    for position, a, b in zip(mine.output_positions, mine.outputs.blocks, other.outputs.blocks, strict=True):
        if a.shape != b.shape:
            return sample.finding(
                "GV301",
                f"{output_name(position, sample.outputs_returned)} has shape {list(a.shape)}, "
                f"the reference's has {list(b.shape)}",
                hint="Is it the reference for these inputs, called positionally with what forward gets?",
                output=position,
            )
    return None


def _compare_forward(sample: Sample, mine: CallProblem, other: CallProblem) -> list[Finding]:
    a, b = mine.evaluate(mine.primals), other.evaluate(other.primals)
    if isinstance(a, Raised) or isinstance(b, Raised):
        return []
    x, y = mine.outputs.flatten(a.value), other.outputs.flatten(b.value)
    noise = value_spread(mine, x) + value_spread(other, y)
    if _differs(sample, x, y, noise).any():
        noise += (value_round_off(mine) + value_round_off(other)) / ROUND_OFF_SAFETY
    findings = []
    for position, block in zip(mine.output_positions, mine.outputs.blocks, strict=True):
        rows = slice(block.start, block.stop)
        wrong = _differs(sample, x[rows], y[rows], noise[rows])
        if wrong.any():
            entries = _entries(x[rows], y[rows], noise[rows], wrong, block, values=True)
            findings.append(
                sample.finding(
                    "GV301",
                    f"{output_name(position, sample.outputs_returned)} of forward differs from the reference "
                    f"at {count_of(entries.wrong, entries.checked)}, by up to {_worst(entries)}",
                    hint="Forward and reference compute different things: the gradients are not compared.",
                    output=position,
                    entries=entries,
                    badness=abs(entries.worst[0].actual - entries.worst[0].expected),
                )
            )
    return findings


def compare_gradients(
    sample: Sample, mine: CallProblem, other: CallProblem, first: FirstOrder | None
) -> list[Finding]:
    """Gradients for one random grad_output of each output alone; never at a kink.

    `first` is None for a surrogate: there the numbers that verified backward do not speak against it.
    """
    findings = []
    u = mine.outputs.unflatten(random_signs(mine.outputs.size, sample.case.seed + 29))
    inputs = sample.inputs
    for number_of, position in enumerate(mine.output_positions):
        alone = tuple(t if k == number_of else None for k, t in enumerate(u))
        a, b = mine.pull_back(mine.primals, alone), other.pull_back(other.primals, alone)
        if isinstance(a, Raised) or isinstance(b, Raised):
            continue
        x, y = inputs.flatten(a.value), inputs.flatten(b.value)
        noise = _noise_of_both(sample, (mine, x), (other, y), alone)
        if first is not None and first.proven and _differs(sample, x, y, noise).any():
            first = measured_first_order(sample)  # where are the kinks, and who is right?
        smooth = _smooth_columns(first, inputs)
        for name, block in zip(mine.input_names, inputs.blocks, strict=True):
            columns = slice(block.start, block.stop)
            wrong = _differs(sample, x[columns], y[columns], noise[columns]) & smooth[columns]
            if wrong.any():
                entries = _entries(x[columns], y[columns], noise[columns], wrong, block, values=False)
                found = _gradient_differs(sample, first, position, name, entries)
                findings.append(_with_relation(found, x[columns], y[columns], noise[columns]))
    return findings


def _with_relation(finding: Finding, mine: Tensor, theirs: Tensor, noise: Tensor) -> Finding:
    """The hint, with how the two gradients are related if one sentence tells it for every entry.

    Where backward was verified, it is the reference that is off by it.
    """
    whose = "The reference's" if finding.severity is Severity.WARNING else "Backward's"
    off, right = (theirs, mine) if finding.severity is Severity.WARNING else (mine, theirs)
    if not off.any() and right.any():
        said = f"{whose} gradient of `{finding.input}` is zero: it is detached there."
    else:
        square = (right @ right).item()
        c = (off @ right).item() / square if square > 0 else 0.0
        allowed = SAME_FACTOR * off.abs() + ROUND_OFF_SAFETY * noise
        if mine.numel() < LEAST_RELATED or c == 0 or not ((off - c * right).abs() <= allowed).all():
            return finding
        said = f"{whose} gradient of `{finding.input}` is {number(c)} times the other at every entry."
    return replace(finding, hint=f"{said} {finding.hint}".strip())


def _gradient_differs(
    sample: Sample, first: FirstOrder | None, position: int, name: str, entries: Entries
) -> Finding:
    of_output = f" of output {position}" if sample.outputs_returned > 1 else ""
    whose = "surrogate's" if first is None else "reference's"
    made = sample.finding(
        "GV302",
        f"the gradient{of_output} with respect to `{name}` differs from the {whose} at "
        f"{count_of(entries.wrong, entries.checked)}, by up to {_worst(entries)}",
        output=position,
        input=name,
        entries=entries,
        badness=abs(entries.worst[0].actual - entries.worst[0].expected),
    )
    if first is None or not first.verified or not _covered(sample, first, name):
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
    w = a.outputs.unflatten(random_signs(a.outputs.size, sample.case.seed + 37))
    layout = Layout.of(a.primals)
    left, right = a.pull_back(a.primals, w), b.pull_back(b.primals, w)
    if isinstance(left, Raised) or isinstance(right, Raised):
        return []
    x, y = layout.flatten(left.value), layout.flatten(right.value)
    noise = _noise_of_both(sample, (a, x), (b, y), w)
    findings = []
    for name, block in zip(a.input_names, layout.blocks, strict=True):
        columns = slice(block.start, block.stop)
        wrong = _differs(sample, x[columns], y[columns], noise[columns])
        if wrong.any():
            entries = _entries(x[columns], y[columns], noise[columns], wrong, block, values=False)
            findings.append(
                sample.finding(
                    "GV303",
                    f"the second derivative by `{name}` differs from the reference's at "
                    f"{count_of(entries.wrong, entries.checked)}, by up to {_worst(entries)}; "
                    "it was verified numerically, so the reference's own is not right",
                    input=name,
                    entries=entries,
                    severity=Severity.WARNING,
                )
            )
    return findings


def _noise_of_both(
    sample: Sample, mine: tuple[Problem, Tensor], other: tuple[Problem, Tensor], u: tuple[Tensor | None, ...]
) -> Tensor:
    """How far rounding may move two gradients (flat); that of their own operations where they differ."""
    noise = torch.stack([gradient_spread(problem, u, base) for problem, base in (mine, other)]).sum(dim=0)
    if _differs(sample, mine[1], other[1], noise).any():
        for problem, _ in (mine, other):
            noise += gradient_round_off(problem, u) / ROUND_OFF_SAFETY
    return noise


def _differs(sample: Sample, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    settings = sample.subject.settings
    finite = y.abs()[y.isfinite()]
    median = finite.median() if finite.numel() else torch.zeros((), dtype=torch.float64)
    allowed = settings.atol + settings.rtol * (y.abs() + median)
    same = (x == y) | (x.isnan() & y.isnan())
    off = ~((x - y).abs() <= torch.maximum(allowed, ROUND_OFF_SAFETY * noise))
    return off & ~same


def _smooth_columns(first: FirstOrder | None, inputs: Layout) -> Tensor:
    if first is None or first.measured is None:
        return torch.ones(inputs.size, dtype=torch.bool)
    return ~(first.measured.kink > 0).any(dim=0)


def _covered(sample: Sample, first: FirstOrder, name: str) -> bool:
    if first.comparison is None:
        return False
    block = sample.inputs.blocks[sample.problem.input_names.index(name)]
    return bool(first.comparison.covered[:, block.start : block.stop].all())


def _entries(x: Tensor, y: Tensor, noise: Tensor, wrong: Tensor, block: Block, *, values: bool) -> Entries:
    difference = (x - y).abs().nan_to_num(torch.inf)
    places = sorted(wrong.nonzero().flatten().tolist(), key=lambda k: (-difference[k].item(), k))
    worst = tuple(
        Entry(
            output=block.index(block.start + k) if values else (),
            input=None if values else block.index(block.start + k),
            actual=x[k].item(),
            expected=y[k].item(),
            error_bound=noise[k].item(),
        )
        for k in places[:WORST_ENTRIES]
    )
    return Entries(len(places), wrong.numel(), worst, compared_with="reference")


def _worst(entries: Entries) -> str:
    worst = entries.worst[0]
    difference = number(abs(worst.actual - worst.expected))
    return f"{difference} ({number(worst.actual)}, reference {number(worst.expected)})"
