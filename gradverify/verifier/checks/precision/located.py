"""A gradient that is grossly wrong in a native dtype: which entries of the Jacobian, as in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradverify.model import Finding, Severity
from gradverify.verifier.checks.jacobians import judged_jacobians
from gradverify.verifier.checks.mismatch import describe_block
from gradverify.verifier.checks.precision.messages import OF_A_GRADIENT, OF_AN_OUTPUT
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import blocks
from gradverify.verifier.numerics.verdict import Judged


def located(sample: Sample, findings: Sequence[Finding]) -> list[Finding]:
    """The findings of a native sample, grossly wrong gradients with their place in the Jacobian.

    Where forward already gives other values than the reference, its gradients say nothing.
    """
    if any(f.code == OF_AN_OUTPUT for f in findings):
        return [f for f in findings if f.code not in OF_A_GRADIENT or f.severity is not Severity.ERROR]
    wrong = {f.input for f in findings if f.code in OF_A_GRADIENT and f.severity is Severity.ERROR}
    judged = judged_jacobians(sample, sample.problem) if wrong else None
    if not isinstance(judged, Judged):
        return list(findings)
    names, positions = sample.problem.input_names, sample.problem.output_positions
    found = [
        describe_block(sample, judged.comparison, positions[o], output, names[i], source)
        for o, output, i, source in blocks(judged.outputs, judged.inputs)
        if names[i] in wrong
    ]
    placed = [_beside_composite(f) for f in found if f is not None and f.severity is Severity.ERROR]
    reported = {f.input for f in placed}
    return [*placed, *(f for f in findings if f.code not in OF_A_GRADIENT or f.input not in reported)]


def _beside_composite(finding: Finding) -> Finding:
    entries = finding.entries
    return (
        finding if entries is None else replace(finding, entries=replace(entries, compared_with="reference"))
    )
