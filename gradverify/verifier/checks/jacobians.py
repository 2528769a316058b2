"""Both Jacobians of a sample, measured once whoever asks for them."""

from __future__ import annotations

from torch import Tensor

from gradverify.verifier.checks.precision.truth import native_jacobians
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.jacobian import KnownColumns
from gradverify.verifier.numerics.large import LARGEST_JACOBIAN, judge_any_size
from gradverify.verifier.numerics.problem import CallProblem, Layout, VjpProblem
from gradverify.verifier.numerics.proof import Certificate
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, NotJudged


def judged_jacobians(
    sample: Sample,
    problem: CallProblem | VjpProblem,
    *,
    largest: int = LARGEST_JACOBIAN,
    noise: Tensor | None = None,
    known: KnownColumns | None = None,
) -> Judged | Certificate | NotJudged | Raised:
    """Judge the problem of a sample, or its second-order problem; see `judge_any_size`.

    Whole Jacobians are kept with the sample: the next one who asks for this order gets the same.
    """
    order = 1 if isinstance(problem, CallProblem) else 2
    if order in sample.judged:
        return sample.judged[order]
    if sample.is_native:
        found = native_jacobians(sample) if order == 1 else NotJudged("there is no float64 path")
        if isinstance(found, Judged):
            sample.judged[order] = found
        return found
    settings = sample.subject.settings
    tolerance = Tolerance(settings.rtol, settings.atol)
    judged = judge_any_size(problem, tolerance, noise=noise, known=known, largest=largest)
    if isinstance(judged, Judged) and judged.inputs.size == Layout.of(problem.primals).size:
        sample.judged[order] = judged
    return judged
