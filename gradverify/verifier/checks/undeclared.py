"""First order at values that no spec declares: only what is certain there is reported.

No spec says that such values are valid, so an exception, a value that is not finite and everything that
could not be measured is silence. A confirmed difference from a derivative that exists is a mistake wherever
it shows.

First order at sizes that are not listed: those that symbolic shapes leave open, and invented 0 and 1.

Forward may refuse them: that is a note. What it accepts, backward must differentiate; at a size that is
invented against a list, what is wrong is a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.model import Case, Finding, Outcome, Point, RaisedError, Severity, tensors_of
from gradverify.model.case import EQUAL_INPUTS
from gradverify.verifier.checks.contract import contract
from gradverify.verifier.checks.equal_entries import adds_up, between_inputs, wrong_sum
from gradverify.verifier.checks.first_order import (
    backward_raised,
    refused_empty,
    seen_from_afar,
    where_differentiable,
)
from gradverify.verifier.checks.precision.alone import judged_alone
from gradverify.verifier.checks.precision.kinks import half_the_digits, with_backward_of
from gradverify.verifier.checks.precision.truth import exact_problem
from gradverify.verifier.checks.result import CheckResult, FirstOrder, outcome_of
from gradverify.verifier.checks.subject import NoSample, Sample, first_line
from gradverify.verifier.checks.wording import blocks, describe_block
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.compare import VAGUE, Comparison, compare
from gradverify.verifier.numerics.jacobian import NumericalJacobian, analytical_jacobian, natural_slope
from gradverify.verifier.numerics.large import LARGEST_JACOBIAN
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.sampling import typical_values
from gradverify.verifier.numerics.tolerance import EPSILON, Tolerance
from gradverify.verifier.numerics.verdict import Judged, judge

RTOL = 1e-6
"""Relative: extreme values are no place to argue about the last digits."""

NEGLIGIBLE = 1e-9
"""Differences below this share of the largest derivative, or of one where that is larger, count as none."""

ABSORBED = 1e-13
"""So do those below this, absolute: beside numbers of order one forward absorbs small terms that backward
still has (log(1 + exp(-40)) is exactly 0), and then its own values do not tell how large those were."""

STEEPEST = 1 / EPSILON
"""Where a derivative is larger, no digit of the input counts, and no computation is meaningful."""

JOINT_STEPS = (2.0**-20, 2.0**-24)
"""In units of the entry itself: how far all inputs move at once."""

JOINT = 1e-2
"""So much of the sum of all partial derivatives, and of the output, is no curvature over such a step."""

CERTAIN = frozenset({"GV101", "GV107", "GV108"})
"""Codes that need no declared input to be mistakes."""

LOST = "GV602"
"""What is not finite in a native dtype."""

CERTAIN_NATIVELY = CERTAIN | {"GV302"}
"""In a native dtype the reference is what says so. That forward overflows there is no mistake."""

HINTS = {
    Point.WIDE: "At moderate values it is right. Look for a branch or a clamp that backward does not share "
    "with forward. If such values are not valid, say so in the spec with `range` or `domain`.",
    Point.SPECIAL: "At ordinary values it is right: these hold zeros, ties or duplicates. If such values "
    "are not valid, say so in the spec with `avoid`, `domain` or `distinct`.",
}


@dataclass(frozen=True)
class AtUndeclared:
    """What came of one undeclared draw."""

    result: CheckResult
    judged: bool
    """Something of the Jacobian could be measured there."""
    raised: RaisedError | None = None
    """What backward raised."""

    @property
    def is_right(self) -> bool:
        """Something could be measured, and all of it is as it should be."""
        return self.judged and not self.result.findings


def natively(sample: Sample) -> AtUndeclared:
    """A target without a float64 path, in its own dtype: what is wrong beyond its rounding."""
    judged = judged_alone(sample)
    certain = (f for f in judged.findings if f.code in CERTAIN_NATIVELY)
    found = tuple(f for f in certain if f.severity is Severity.ERROR)
    if any(f.code == LOST and f.input is not None for f in judged.findings) and not found:
        found = tuple(_lost_natively(sample))
    if (sample.point, sample.draw) == (Point.SPECIAL, EQUAL_INPUTS):
        wrong = None if found else _wrong_sum_natively(sample)
        found = found if wrong is None else (wrong,)
    return AtUndeclared(CheckResult(found, outcome_of(found)), judged=bool(judged.swept.native))


def _wrong_sum_natively(sample: Sample) -> Finding | None:
    """What native gradients of equal entries of several inputs add up to, by the slopes of the composite."""
    exact = exact_problem(sample)
    lent = None if exact is None else with_backward_of(sample.problem, exact)
    if lent is None or sample.inputs.size * lent.outputs.size > LARGEST_JACOBIAN:
        return None
    moved = between_inputs(replace(sample, problem=lent, arguments=lent.arguments))
    rtol = half_the_digits(sample.problem)
    return None if moved is None or adds_up(moved) else wrong_sum(moved, rtol, _confirmed)


def _lost_natively(sample: Sample) -> list[Finding]:
    """NaN at zeros and ties in a native gradient, where the composite has finite slopes, as in float64."""
    exact = exact_problem(sample)
    if exact is None or sample.point is not Point.SPECIAL:
        return []
    claimed = analytical_jacobian(sample.problem)
    judged = judge(exact, Tolerance(RTOL))
    if isinstance(claimed, Raised) or not isinstance(judged, Judged):
        return []
    compared = compare(claimed.value, judged.measured, judged.inputs, judged.outputs, Tolerance(RTOL))
    nothing = torch.zeros_like(compared.wrong)
    nonfinite = replace(compared, wrong=nothing, imprecise=nothing)
    in_float64 = replace(sample, problem=exact, arguments=exact.arguments)
    return _reported(in_float64, replace(judged, comparison=nonfinite))


SILENCE = AtUndeclared(CheckResult(outcome=Outcome.NOT_RUN), judged=False)


def _reported(sample: Sample, judged: Judged) -> list[Finding]:
    """The certain mistakes; where there are none, NaN at zeros and ties as a warning."""
    found = _findings(sample, _confirmed(sample, judged))
    if found or sample.point is not Point.SPECIAL or not judged.comparison.nonfinite.any():
        return found
    nothing = torch.zeros_like(judged.comparison.wrong)
    nonfinite = replace(judged.comparison, wrong=nothing, imprecise=nothing)
    kept = where_differentiable(sample, nonfinite, judged.measured)
    severity = Severity.ERROR if _at_declared_zeros(sample, kept) else Severity.WARNING
    return [replace(one, severity=severity) for one in _findings(sample, kept)]


def _at_declared_zeros(sample: Sample, comparison: Comparison) -> bool:
    """Whether zeros alone get NaN, of inputs whose spec says that zeros are valid, as a structure does."""
    x, lost = sample.inputs.flatten(sample.problem.primals), comparison.nonfinite.any(dim=0)
    zeros = {t.name for i in sample.case.inputs for t in tensors_of(i) if 0.0 in t.special}
    structured = _structured(sample)
    for name, block in zip(sample.problem.input_names, sample.inputs.blocks, strict=True):
        part = slice(block.start, block.stop)
        if name not in structured and lost[part].any() and (name not in zeros or x[part][lost[part]].any()):
            return False
    return True


def _structured(sample: Sample) -> set[str]:
    """Inputs that a spec declares to be of a structure: so is their special point, as the identity."""
    return {t.name for i in sample.case.inputs for t in tensors_of(i) if t.structure}


def _findings(sample: Sample, comparison: Comparison) -> list[Finding]:
    names, positions = sample.problem.input_names, sample.problem.output_positions
    found = (
        describe_block(sample, comparison, positions[o], output, names[i], source)
        for o, output, i, source in blocks(sample.problem.outputs, sample.inputs)
    )
    return [
        replace(one, hint=f"{one.hint} {HINTS.get(sample.point, '')}".strip())
        for one in found
        if one is not None and one.code in CERTAIN
    ]


def _confirmed(sample: Sample, judged: Judged) -> Comparison:
    comparison = _certain(sample, judged)
    if not _structured(sample).issuperset(sample.problem.input_names):
        comparison = seen_from_afar(sample, comparison, judged.measured)
    return where_differentiable(sample, comparison, judged.measured)


def _certain(sample: Sample, judged: Judged) -> Comparison:
    """The comparison without what may have another explanation than a wrong backward."""
    comparison = judged.comparison
    difference = (comparison.analytical - comparison.numerical).abs()
    largest = torch.where(comparison.bound.isfinite(), comparison.numerical.abs(), 0.0)
    scale = min(1.0, largest.max().item()) if largest.numel() else 1.0
    wrong = comparison.wrong & (difference > max(ABSORBED, NEGLIGIBLE * scale))
    rough = _rough(sample, judged)
    # 0 · NaN is NaN: where one output has no derivative, the gradients of all of them are lost.
    without = rough.any(dim=1, keepdim=True)
    if comparison.nonfinite.any():
        without = without | _disagreeing(sample, judged.measured)[:, None]
    lost = without & ~comparison.analytical.isfinite()
    nonfinite = comparison.nonfinite & ~(rough | lost).any(dim=0, keepdim=True)
    nonfinite &= comparison.numerical.abs() <= STEEPEST
    if sample.point is Point.SPECIAL:
        wrong = wrong & ((judged.measured.kink > 0) | ~_beside(rough))
    return replace(
        comparison, wrong=wrong, nonfinite=nonfinite, imprecise=torch.zeros_like(comparison.imprecise)
    )


def _disagreeing(sample: Sample, measured: NumericalJacobian) -> Tensor:
    """Rows (bool, M) whose partial derivatives do not add up where all inputs move at once by a little.

    They have no derivative, though each input by itself has one. Where four atoms in a row lie on each
    other, none of them changes a thing by moving alone, and all together change everything: what forward
    gives there is a convention.
    """
    inputs, outputs, centre = sample.inputs, sample.problem.outputs, measured.centre
    x = inputs.flatten(sample.problem.primals)
    way = _sizes(sample, measured) * random_signs(inputs.size, sample.case.seed + 61)
    together, largest = measured.value @ way, measured.value.abs() @ way.abs()
    off = measured.error.isfinite().all(dim=1)
    for step in JOINT_STEPS:
        found = sample.problem.evaluate(inputs.unflatten(x + step * way))
        if isinstance(found, Raised):
            return torch.ones_like(off)
        slope = (outputs.flatten(found.value) - centre) / step
        off &= ~((slope - together).abs() <= JOINT * (largest + typical_values(centre, outputs)))
    return off


def _rough(sample: Sample, judged: Judged) -> Tensor:
    """Entries at a kink, and those that are not known well enough to say that a derivative exists."""
    measured = judged.measured
    slope = natural_slope(measured.centre, _sizes(sample, measured), sample.problem.outputs)
    vague = ~(measured.error <= VAGUE * torch.maximum(measured.value.abs(), slope))
    return (measured.kink > 0) | vague


def _sizes(sample: Sample, measured: NumericalJacobian) -> Tensor:
    """The size of each entry of the inputs; of one that is zero, the largest that its input has."""
    x = sample.inputs.flatten(sample.problem.primals).abs()
    sizes = measured.scale.clone()
    for block in sample.inputs.blocks:
        part = slice(block.start, block.stop)
        if block.stop > block.start:
            sizes[part] = torch.where(x[part] > 0, sizes[part], torch.maximum(sizes[part], x[part].max()))
    return sizes


def _beside(rough: Tensor) -> Tensor:
    """Entries in whose row another one has no derivative.

    Where an output has no derivative in some direction, a generalised gradient need not equal the slopes
    along the others.
    """
    return rough.sum(dim=1, keepdim=True) - rough.long() > 0


RETURNED = frozenset({"GV103", "GV105"})
"""Codes on what backward returned that hang on no value."""


def at_unlisted(
    sample: Sample | NoSample, judged: Callable[[Sample], AtUndeclared], *, open_sized: bool
) -> AtUndeclared:
    """Judge one typical draw. `open_sized`: symbolic shapes say that any size is valid, none is listed."""
    if isinstance(sample, NoSample):
        raises = [f for f in sample.findings if f.code in {"GV002", "GV412"}]
        return _refused([_refusal(f) for f in raises])
    if _without_values(sample):
        said = f"forward gives no finite value at {sample.case.id}, which no spec lists"
        return _refused([sample.finding("GV412", said, severity=Severity.NOTE)])
    empty = refused_empty(sample)
    found = AtUndeclared(empty.result, judged=True) if empty is not None else judged(sample)
    returned = contract(sample, FirstOrder(found.result)).findings
    irregular = [f for f in returned if f.code in RETURNED and f.severity is Severity.ERROR]
    replaced = {f.input for f in irregular}
    findings = [*irregular, *(f for f in found.result.findings if f.input not in replaced or f.input is None)]
    if found.raised is not None and not irregular:
        findings.append(_raised(sample, found.raised))
    reported = tuple(_reported_unlisted(f, sample.case, open_sized=open_sized) for f in findings)
    return AtUndeclared(CheckResult(reported, outcome_of(reported)), found.judged or bool(reported))


def _without_values(sample: Sample) -> bool:
    """Whether all that forward returns is NaN or infinite: it says no less than an exception does."""
    values = sample.problem.evaluate(sample.problem.primals)
    if isinstance(values, Raised):
        return False
    flat = sample.problem.outputs.flatten(values.value)
    return bool(flat.numel()) and not flat.isfinite().any()


def _refused(findings: list[Finding]) -> AtUndeclared:
    return AtUndeclared(CheckResult(tuple(findings), Outcome.NOT_RUN), judged=False)


def _refusal(finding: Finding) -> Finding:
    raised = finding.raised
    where = finding.case.id if finding.case is not None else ""
    said = f"{raised.type}: {first_line(raised.message)}" if raised is not None else finding.message
    message = f"forward refuses {where}, which no spec lists: {said}"
    return replace(finding, code="GV412", severity=Severity.NOTE, message=message, hint="")


def _raised(sample: Sample, error: RaisedError) -> Finding:
    finding = backward_raised(sample, error)
    return replace(finding, severity=Severity.NOTE) if error.deliberate else finding


def _reported_unlisted(finding: Finding, case: Case, *, open_sized: bool) -> Finding:
    """The finding, with what it has to do with sizes."""
    if finding.severity is not Severity.ERROR or not open_sized:
        severity = Severity.NOTE if finding.severity is Severity.NOTE else Severity.WARNING
        return replace(
            finding,
            code="GV412",
            severity=severity,
            message=f"at {case.id}, which no spec lists, {finding.message}",
            hint="If such sizes are valid, list them under `sizes:`; then this is an error.",
        )
    hint = (
        f"In the cases before it is right, at {case.id} it is not. If that is not valid, list the valid "
        "sizes under `sizes:`, or the valid combinations of options under `cases:`."
    )
    return replace(finding, hint=f"{finding.hint} {hint}".strip())
