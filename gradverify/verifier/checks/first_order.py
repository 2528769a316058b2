"""First order: is backward the derivative of forward (GV003, GV101, GV102, GV106 to GV110).

Size 0 (GV412): nothing can be measured, but forward and backward must run and give the right shapes.

Whether a gradient is wrong for nothing but random numbers that backward draws for itself.

A mask that is drawn again in backward is forward's only where the generator is where it was then. That
is so in no training step, and not here either: backward starts from random states of its own.

Gradients that change faster than a difference quotient can follow, at declared wide values.

A fast part that is small beside f, as sin(a x)^2 / a is where `a` is large, passes for noise of f: every
step leads over many of its periods, and what is measured is the slope of the rest. Beyond 1/epsilon radians
no digit of its phase is known. Where the gradient of backward changes between neighbouring values, and so
does its average over both sides, the mismatch need not be a mistake. A wrong formula that is smooth is as
wrong at the neighbours, and so is its average.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Effort, Finding, Outcome, Point, RaisedError, Severity, indexed
from gradverify.verifier.checks.equal_entries import wrong_where_declared
from gradverify.verifier.checks.float32_inside import (
    float32_inside,
    is_given_short,
    is_short,
    single_precision_outputs,
)
from gradverify.verifier.checks.grad_output import nonlinearity, rounded_to
from gradverify.verifier.checks.kept import judged_jacobians
from gradverify.verifier.checks.result import WORSE, CheckResult, FirstOrder, Uncovered, outcome_of
from gradverify.verifier.checks.structured_grad_outputs import NotTaken, wrong_with_structure
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.wording import (
    blocks,
    describe_block,
    number,
    output_name,
    part,
    rounded,
    uncovered_part,
)
from gradverify.verifier.guard import Raised, lacking
from gradverify.verifier.interpreter.launches import launches
from gradverify.verifier.memory import filled_memory
from gradverify.verifier.numerics.compare import SAME, Comparison
from gradverify.verifier.numerics.directional_derivative import slopes_along
from gradverify.verifier.numerics.jacobian import NumericalJacobian
from gradverify.verifier.numerics.large import LARGEST_JACOBIAN
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.problem import Block, Layout, Problem
from gradverify.verifier.numerics.proof import Certificate, certify, damping_of
from gradverify.verifier.numerics.sampling import Sampler, own_noise
from gradverify.verifier.numerics.verdict import Judged, NotJudged
from gradverify.verifier.raised_errors import fails_to_import


def refused_empty(sample: Sample) -> FirstOrder | None:
    """Run one backward where the Jacobian has no entries; None where it is right, or there is no need.

    The shapes of what backward returns are read while it runs, and judged with the contract. Inputs on which
    nothing depends get a gradient of zeros; but where no input is empty, the result is made so, and may be
    there for its backward alone.
    """
    problem = sample.problem
    inputs = Layout.of(problem.primals)
    if inputs.size and problem.outputs.size:
        return None
    cotangent = problem.outputs.unflatten(torch.ones(problem.outputs.size, dtype=torch.float64))
    with filled_memory(fill=True):
        result = problem.pull_back(problem.primals, cotangent)
    if isinstance(result, Raised):
        result = problem.pull_back(problem.primals, cotangent)
    if isinstance(result, Raised):
        return FirstOrder(CheckResult((_backward_raised(sample, result.error),), Outcome.FAILED))
    gradient = inputs.flatten(result.value)
    wrong = gradient != 0
    if not wrong.any() or not _is_given_nothing(sample):
        return None
    return FirstOrder(CheckResult((_of_nothing(sample, inputs, gradient, wrong),), Outcome.FAILED))


def _is_given_nothing(sample: Sample) -> bool:
    """Whether some argument is empty, from which an empty result follows."""
    return any(isinstance(a.value, Tensor) and not a.value.numel() for a in sample.arguments)


def _of_nothing(sample: Sample, inputs: Layout, gradient: Tensor, wrong: Tensor) -> Finding:
    worst = int(wrong.int().argmax())
    number_of = inputs.block_of(worst)
    name = sample.problem.input_names[number_of]
    place = indexed(name, inputs.blocks[number_of].index(worst))
    read = ", as uninitialised memory or a division by the size gives" if gradient[worst].isnan() else ""
    return sample.finding(
        "GV412",
        f"what forward returns is empty, and the gradient of {place} is {number(gradient[worst].item())}, "
        f"not 0{read}",
        hint="Nothing depends on it there: allocate gradients with zeros, and look for what is left out or "
        "divided by where the batch is empty.",
        input=name,
        severity=Severity.ERROR,
    )


def _backward_raised(sample: Sample, error: RaisedError) -> Finding:
    return sample.finding(
        "GV412",
        f"backward raised {error.type} for an empty input: {first_line(error.message)}",
        hint="An empty batch is an ordinary input: return gradients of the inputs' shapes. If size 0 is not "
        "valid, leave it out of the spec.",
        severity=Severity.ERROR,
        raised=error,
    )


OF_NUMBERS = frozenset({"GV101", "GV107"})
"""Codes of gradients that are no derivative."""

DRAW_IN_FORWARD = (
    "Backward draws random numbers of its own: with those that forward drew, the gradient is right (tried "
    "here). Draw in forward and save what was drawn (ctx.save_for_backward). To draw it again, keep the "
    "random state in forward, and set it in backward inside torch.random.fork_rng()."
)


def explained_by_draws(sample: Sample, findings: Iterable[Finding]) -> list[Finding]:
    """The findings, those of wrong numbers with this cause where it is theirs."""
    reported = list(findings)
    wrong = [f for f in reported if f.code in OF_NUMBERS and f.severity is Severity.ERROR and not f.cause]
    if not wrong or not _is_right_with_forwards(sample):
        return reported
    return [replace(f, cause="random-numbers", hint=DRAW_IN_FORWARD) if f in wrong else f for f in reported]


def _is_right_with_forwards(sample: Sample) -> bool:
    """Whether backward draws, and is right where it finds the random states that forward found."""
    problem = sample.problem
    u = random_signs(problem.outputs.size, sample.case.seed)
    result = problem.pull_back(problem.primals, problem.outputs.unflatten(u))
    if isinstance(result, Raised) or problem.random_states.untouched():
        return False
    alone = replace(problem, random_states=problem.random_states.forwards_alone())
    return certify(alone, rtol=sample.subject.settings.rtol, key=sample.key) is not None


NO_FLOAT64_PATH = "forward has no more digits than float32, so there is no float64 path to verify it by"
WITHOUT_FLOAT64_PATH = (
    "Let forward compute in the dtype it is given, or name a composite of plain torch operations as "
    "`reference:`: it is judged in float32 by that. A mistake far beyond float32's rounding would have been "
    "found."
)
GIVEN_SHORT = (
    "the inputs are given in float32, or shorter, which has too few digits for a numerical derivative",
    "Give float64: `.double()` in a test, `dtype=dtype` in a function that builds the inputs.",
)

RETURN_NONE = (
    "After ctx.set_materialize_grads(False) a grad_output may be None: return None for it, or leave out "
    "set_materialize_grads."
)
"""The remedy of GV407."""

EXPECT_ZEROS = "A loss that does not use an output sends zeros for it, in place of None."
"""The same where autograd has put zeros in its place."""

FAR_STEPS = (2.0**-6, 2.0**-7)
"""In units of the entry itself: 64 times the usual step and a fraction of the way to another decade."""

NEAR_STEPS = (2.0**-30, 2.0**-34, 2.0**-38, 2.0**-42, 2.0**-46, 2.0**-50)
"""In units of the entry itself: from well below the usual steps down to a few units in the last place."""


OF_THE_MACHINE = frozenset({"GV001", "GV109"})
"""Codes of an exception of backward that says nothing of backward."""


def first_order(sample: Sample) -> FirstOrder:
    """The certificate; where it does not close, both Jacobians.

    What is right is asked for grad_outputs of a certain structure, too.
    """
    if sample.disconnected:
        return _disconnected(sample)
    found = _dense(sample)
    if found.result.outcome is not Outcome.PASSED:
        return found
    wrong = wrong_with_structure(sample)
    if isinstance(wrong, NotTaken):
        wrong = not_taken(sample, wrong)
    if wrong is not None and wrong.severity is not Severity.ERROR:
        found = replace(found, result=replace(found.result, findings=(*found.result.findings, wrong)))
        wrong = None
    wrong = wrong or wrong_where_declared(sample)
    if wrong is None:
        return found
    findings = (*(f for f in found.result.findings if f.severity is Severity.WARNING), wrong)
    return FirstOrder(CheckResult(findings, Outcome.FAILED), found.comparison, found.measured)


def not_taken(sample: Sample, refused: NotTaken) -> Finding:
    """GV102; a warning where backward refuses it on purpose or for its size, which is no wrong gradient."""
    finding = backward_raised(sample, refused.error, f" for a grad_output {refused.said}")
    certain = finding.severity is Severity.ERROR and not (refused.error.deliberate or refused.scaled)
    return finding if certain else replace(finding, severity=Severity.WARNING)


def _dense(sample: Sample) -> FirstOrder:
    refused = refused_empty(sample)
    if refused is not None:
        return refused
    settings = sample.subject.settings
    if settings.effort is not Effort.THOROUGH:
        damping = damping_of(sample.problem)
        certificate = certify(sample.problem, rtol=settings.rtol, key=sample.key, damping=damping)
        if certificate is not None:
            return FirstOrder(CheckResult(smallest_visible_error=certificate.visible), proven=True)
    return measured_first_order(sample)


def measured_first_order(sample: Sample, *, largest: int = LARGEST_JACOBIAN) -> FirstOrder:
    """Both Jacobians, compared; every difference confirmed by an independent measurement.

    `largest` is how many entries of a Jacobian are worth building.
    """
    before = launches()
    judged = judged_jacobians(sample, sample.problem, largest=largest)
    if isinstance(judged, Certificate):
        return FirstOrder(CheckResult(smallest_visible_error=judged.visible), proven=True)
    if isinstance(judged, Raised):
        raised = _raised(sample, judged.error)
        return FirstOrder(
            CheckResult((raised,), Outcome.INCONCLUSIVE if raised.code in OF_THE_MACHINE else Outcome.FAILED)
        )
    if isinstance(judged, NotJudged):
        return FirstOrder(_nothing_known(sample, judged))
    whole = judged.inputs.size == sample.inputs.size
    if not whole:
        findings, _ = _judge_blocks(sample, judged, frozenset())
        return FirstOrder(CheckResult(tuple(findings), outcome_of(findings)))
    single = single_precision_outputs(sample, judged.measured.centre)
    nonlinear = nonlinearity(sample, judged.comparison.analytical, judged.measured)
    with_slopes = unless_seen_nearby if sample.point is Point.WIDE else where_differentiable
    judged = replace(judged, comparison=with_slopes(sample, judged.comparison, judged.measured))
    findings, uncovered = _judge_blocks(sample, judged, single)
    if (nonlinear is not None or findings or uncovered) and not single:
        single = float32_inside(sample, kernels=launches() > before)
    if single:  # between two float32 numbers forward is smooth, and has another slope
        judged = replace(judged, comparison=seen_from_afar(sample, judged.comparison, judged.measured))
        findings, uncovered = _judge_blocks(sample, judged, single)
    if nonlinear is not None and not single:
        return FirstOrder(CheckResult((nonlinear,), Outcome.FAILED), judged.comparison, judged.measured)
    if not single and all(f.severity is not Severity.ERROR for f in findings):
        short = rounded_to(sample, judged.comparison.analytical, torch.float32)
        names = [n for n in short if not is_short(sample, n)]
        findings = [f for f in findings if f.input not in names] + [rounded(sample, n) for n in names]
    findings = explained_by_draws(sample, findings)
    outcome, visible = outcome_of(findings), judged.comparison.smallest_visible
    if single:
        outcome, visible = max(outcome, Outcome.INCONCLUSIVE, key=WORSE.index), None
    result = CheckResult(
        tuple(findings), outcome, uncovered, visible, not_judged=int(judged.comparison.not_judged.sum())
    )
    return FirstOrder(result, judged.comparison, judged.measured, single_precision=bool(single))


def seen_from_afar(sample: Sample, comparison: Comparison, measured: NumericalJacobian) -> Comparison:
    """Keep what differs over larger steps too, and over no step so small that f hardly moves.

    Near 0 the numerator of (1 - cos x) / x² is constant in float64 while its denominator moves: the values
    are as smooth as one may wish, and their slope has nothing to do with the derivative.
    """
    columns = comparison.wrong.any(dim=0).nonzero().flatten().tolist()
    if not columns:
        return comparison
    sampler = Sampler(sample.problem, measured.centre)
    size = torch.where(sampler.x != 0, sampler.x.abs(), sampler.scales)[columns]
    value, claimed = measured.value.mT[columns], comparison.analytical.mT[columns]
    off = SAME * (value - claimed).abs()
    same = torch.ones_like(value, dtype=torch.bool)
    for step in FAR_STEPS:
        same &= (sampler.sample(columns, step * size).derivative - value).abs() <= off
    same |= measured.kink.mT[columns] > 0
    wrong = comparison.wrong.clone()
    wrong[:, columns] &= same.mT
    return unless_seen_nearby(sample, replace(comparison, wrong=wrong), measured)


def unless_seen_nearby(sample: Sample, comparison: Comparison, measured: NumericalJacobian) -> Comparison:
    """The comparison (M x N) without what is wrong where some step far below the usual ones gives the claim.

    Where a small fast part rides on f, every usual step leads over many of its periods. Such entries are
    neither wrong nor covered.
    """
    columns = comparison.wrong.any(dim=0).nonzero().flatten().tolist()
    if not columns:
        return comparison
    sampler = Sampler(sample.problem, measured.centre)
    size = torch.where(sampler.x != 0, sampler.x.abs(), sampler.scales)[columns]
    claimed = comparison.analytical.mT[columns]
    off = SAME * (measured.value.mT[columns] - claimed).abs()
    noise = own_noise(measured.centre, sample.problem.outputs)
    seen = torch.zeros_like(comparison.wrong)
    for step in NEAR_STEPS:
        near = sampler.sample(columns, step * size)
        seen[:, columns] |= (((near.derivative - claimed).abs() <= off) & (near.amplified(noise) <= off)).mT
    seen &= comparison.wrong
    return replace(comparison, wrong=comparison.wrong & ~seen, covered=comparison.covered & ~seen)


def where_differentiable(
    sample: Sample, comparison: Comparison, measured: NumericalJacobian, problem: Problem | None = None
) -> Comparison:
    """At special points, where values tie or vanish, only rows that have a derivative can be wrong.

    NaN is no gradient where forward's slopes are finite from every side. An output whose slopes are not gives
    the gradients of all others infinite terms, which zeros make NaN. `problem` is the map that was measured,
    if it is not forward.
    """
    accused = comparison.wrong | comparison.nonfinite
    if sample.point is not Point.SPECIAL or not accused.any():
        return comparison
    slopes = slopes_along(problem or sample.problem, measured, sample.case.seed)
    rows, kinks = slopes.linear[:, None], measured.kink > 0
    # Beyond both one-sided slopes, a value at a kink is wrong whatever happens in other directions.
    kept = rows | kinks
    nonfinite = comparison.nonfinite & slopes.finite.all()
    if problem is not None:  # of a derivative of backward that is finite from every side, as at a kink
        nonfinite &= rows & ~kinks.any(dim=0) & kept.any(dim=1).all()
    return replace(
        comparison,
        wrong=comparison.wrong & kept,
        nonfinite=nonfinite,
        covered=comparison.covered & (kept | ~accused),
    )


def _judge_blocks(
    sample: Sample, judged: Judged, single: frozenset[int]
) -> tuple[list[Finding], dict[tuple[int, str], Uncovered]]:
    """Findings on each (output, input) block, and what of it could not be judged."""
    findings: list[Finding] = []
    uncovered: dict[tuple[int, str], Uncovered] = {}
    names, positions = sample.problem.input_names, sample.problem.output_positions
    for o, output, i, source in blocks(judged.outputs, judged.inputs):
        finding = describe_block(sample, judged.comparison, positions[o], output, names[i], source)
        if finding is not None:
            findings.append(_of_single_precision(finding) if single else finding)
        unknown = uncovered_part(sample.problem, judged, output, source)
        if positions[o] in single:
            everything = torch.ones_like(part(judged.comparison.wrong, output, source))
            said = (NO_FLOAT64_PATH, WITHOUT_FLOAT64_PATH) if not is_given_short(sample) else GIVEN_SHORT
            unknown = Uncovered(everything, *said)
        if unknown is not None:
            uncovered[positions[o], names[i]] = unknown
    return findings, uncovered


def _raised(sample: Sample, error: RaisedError) -> Finding:
    """GV407 where backward runs once no grad_output is undefined, or zeros in its place; else GV102.

    Outputs are differentiated one at a time, so the others' grad_outputs may have been undefined.
    """
    outputs = sample.problem.outputs
    if len(outputs.blocks) > 1 and sample.subject.has_python_backward and not error.deliberate:
        defined = torch.ones(outputs.size, dtype=torch.float64)
        if not _raises_for(sample, defined):
            when, hint = "when a grad_output is undefined (None)", RETURN_NONE
            if any(_raises_for(sample, _of_one_output(defined, block)) for block in outputs.blocks):
                when, hint = "when the grad_output of an output is zeros", EXPECT_ZEROS
            said = f"backward raises {error.type} {when}: {first_line(error.message)}"
            return sample.finding("GV407", said, hint=hint, raised=error)
    return backward_raised(sample, error)


def _of_one_output(u: Tensor, block: Block) -> Tensor:
    """Grad_outputs (flat, M) that are zeros but for one output."""
    alone = torch.zeros_like(u)
    alone[block.start : block.stop] = u[block.start : block.stop]
    return alone


def _raises_for(sample: Sample, u: Tensor) -> bool:
    """Whether backward raises for grad_outputs (flat, M) that are all defined."""
    grad_outputs = sample.problem.outputs.unflatten(u)
    return isinstance(sample.problem.pull_back(sample.problem.primals, grad_outputs), Raised)


_UNPACKS = re.compile(r"[^=#]+=\s*[\w.()\[\]]+\.saved_(tensors|variables)\s*(#.*)?")
"""`a, b = ctx.saved_tensors`, as a line: what it unpacks is what forward saved."""


def backward_raised(sample: Sample, error: RaisedError, when: str = "") -> Finding:
    """GV102, with the commonest accident put into words: nothing was saved for backward.

    GV109 where it tells of this machine alone, GV001 where a package is missing.
    """
    said = f"backward raised {error.type}{when}: {first_line(error.message)}"
    missing = lacking(error, sample.subject.settings.device)
    if missing:
        code = "GV001" if fails_to_import(error) else "GV109"
        return sample.finding(code, said, hint=missing, raised=error)
    hint = ""
    if error.frames and _UNPACKS.fullmatch(error.frames[-1].source) and "unpack" in error.message:
        if "got 0" in error.message:
            said = f"backward raised{when}: no saved tensors ({error.type}: {first_line(error.message)})"
            hint = (
                "In this call forward saved nothing: hand the tensors that backward unpacks to "
                "ctx.save_for_backward."
            )
        else:
            hint = "Save as many tensors in forward as backward unpacks, in the same order."
    return sample.finding("GV102", said, hint=hint, raised=error)


def _of_single_precision(finding: Finding) -> Finding:
    """Where forward itself is float32, a backward that is float32 too is a fact and no mistake."""
    return replace(finding, severity=Severity.NOTE) if finding.code == "GV110" else finding


def _nothing_known(sample: Sample, judged: NotJudged) -> CheckResult:
    uncovered = {
        (sample.problem.output_positions[o], sample.problem.input_names[i]): Uncovered.wholly(
            judged, output.stop - output.start, source.stop - source.start
        )
        for o, output, i, source in blocks(sample.problem.outputs, sample.inputs)
    }
    return CheckResult((), Outcome.INCONCLUSIVE, uncovered)


def _disconnected(sample: Sample) -> FirstOrder:
    names = " and ".join(output_name(p, sample.outputs_returned) for p in sample.disconnected)
    finding = sample.finding(
        "GV003",
        f"{names} has no gradient: nothing connects it to the inputs",
        hint="Something detaches it (no_grad, .data, .detach(), a call that autograd does not know).",
        output=sample.disconnected[0],
    )
    return FirstOrder(CheckResult((finding,), Outcome.FAILED))
