"""First order: is backward the derivative of forward (GV003, GV101, GV102, GV106 to GV110)."""

from __future__ import annotations

from dataclasses import replace

import torch

from gradverify.model import Effort, Finding, Outcome, Point, RaisedError, Severity
from gradverify.verifier.checks.drawn_again import explained_by_draws
from gradverify.verifier.checks.empty import refused_empty
from gradverify.verifier.checks.fast_parts import without_fast_parts
from gradverify.verifier.checks.float32_inside import (
    float32_inside,
    is_given_short,
    is_short,
    single_precision_outputs,
)
from gradverify.verifier.checks.grad_output import nonlinearity, rounded_to
from gradverify.verifier.checks.jacobians import judged_jacobians
from gradverify.verifier.checks.mismatch import describe_block, rounded
from gradverify.verifier.checks.result import WORSE, CheckResult, FirstOrder, Uncovered, outcome_of
from gradverify.verifier.checks.structured_grad_outputs import NotTaken, wrong_with_structure
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.tied_values import wrong_where_tied
from gradverify.verifier.checks.unknown import uncovered_part
from gradverify.verifier.checks.wording import blocks, output_name, part
from gradverify.verifier.guard import Raised
from gradverify.verifier.interpreter.launches import launches
from gradverify.verifier.lacking import lacking
from gradverify.verifier.names_bound import missing_package
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.directional_derivative import slopes_along
from gradverify.verifier.numerics.jacobian import NumericalJacobian
from gradverify.verifier.numerics.large import LARGEST_JACOBIAN
from gradverify.verifier.numerics.noise import own_noise
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.proof import Certificate, certify, damping_of
from gradverify.verifier.numerics.remeasure import SAME
from gradverify.verifier.numerics.sampling import Sampler
from gradverify.verifier.numerics.verdict import Judged, NotJudged

NO_FLOAT64_PATH = "forward computes in float32 inside, there is no float64 path to verify it by"
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
    wrong = wrong or wrong_where_tied(sample)
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
    compared = where_differentiable(sample, judged.comparison, judged.measured)
    judged = replace(judged, comparison=without_fast_parts(sample, compared, judged.measured))
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
    outcome, visible = outcome_of(findings), smallest_visible_error(judged.comparison)
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
    # Where a small fast part rides on f, every usual step leads over many of its periods.
    noise = own_noise(measured.centre, sample.problem.outputs)
    for step in NEAR_STEPS:
        near = sampler.sample(columns, step * size)
        same &= ~(((near.derivative - claimed).abs() <= off) & (near.amplified(noise) <= off))
    wrong = comparison.wrong.clone()
    wrong[:, columns] &= same.mT
    return replace(comparison, wrong=wrong)


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
    """GV407 where backward runs once every grad_output is defined, else GV102.

    Outputs are differentiated one at a time, so the others' grad_outputs may have been undefined.
    """
    outputs = sample.problem.outputs
    if len(outputs.blocks) > 1 and sample.subject.has_python_backward and not error.deliberate:
        defined = outputs.unflatten(torch.ones(outputs.size, dtype=torch.float64))
        if not isinstance(sample.problem.pull_back(sample.problem.primals, defined), Raised):
            return sample.finding(
                "GV407",
                f"backward raises {error.type} when a grad_output is undefined (None): "
                f"{first_line(error.message)}",
                hint=RETURN_NONE,
                raised=error,
            )
    return backward_raised(sample, error)


def backward_raised(sample: Sample, error: RaisedError, when: str = "") -> Finding:
    """GV102, with the commonest accident put into words: nothing was saved for backward.

    GV109 where it tells of this machine alone, GV001 where a package is missing.
    """
    said = f"backward raised {error.type}{when}: {first_line(error.message)}"
    missing = lacking(error, sample.subject.settings.device)
    if missing:
        code = "GV001" if missing_package(error) else "GV109"
        return sample.finding(code, said, hint=missing, raised=error)
    hint = ""
    last = error.frames[-1] if error.frames else None
    if last is not None and "saved_tensors" in last.source and "unpack" in error.message:
        if "got 0" in error.message:
            said = f"backward raised{when}: no saved tensors ({error.type}: {first_line(error.message)})"
            hint = (
                "forward never calls ctx.save_for_backward: call it with the tensors that backward unpacks."
            )
        else:
            hint = "Save as many tensors in forward as backward unpacks, in the same order."
    return sample.finding("GV102", said, hint=hint, raised=error)


def _of_single_precision(finding: Finding) -> Finding:
    """Where forward itself is float32, a backward that is float32 too is a fact and no mistake."""
    return replace(finding, severity=Severity.NOTE) if finding.code == "GV110" else finding


def smallest_visible_error(comparison: Comparison) -> float | None:
    """The relative error that every covered entry would have shown.

    None where nothing is covered, or where the derivative is zero everywhere: no error relative to that.
    """
    judged = comparison.covered & ~comparison.kinks & ~comparison.wrong
    visible = comparison.visible[judged & (comparison.visible > 0)]
    return visible.max().item() if visible.numel() else None


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
