"""A slow target's first evidence, in some 25 calls. It counts where time runs out before the checks end."""

from __future__ import annotations

from gradverify.model import Finding, Severity
from gradverify.verifier.checks.composite import reference_problem
from gradverify.verifier.checks.precision.alone import surely_wrong
from gradverify.verifier.checks.reference import reference
from gradverify.verifier.checks.result import CheckResult, FirstOrder
from gradverify.verifier.checks.subject import NoSample, Sample
from gradverify.verifier.checks.wording import number
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.contradiction import contradiction

GIVE_TIME = "A longer --timeout, or smaller sizes, shows which entries are wrong, and why."


def contradicted(sample: Sample | NoSample) -> Finding | None:
    """What is certainly wrong, by the cheapest evidence there is.

    In a native dtype that is the composite; in float64 a reference, which takes a few calls, then two random
    directions (GV101 without a place).
    """
    if isinstance(sample, NoSample) or sample.disconnected or sample.subject.surrogate is not None:
        return None
    if sample.is_native:
        return surely_wrong(sample)
    unlike = reference(sample, FirstOrder(CheckResult()), None).findings
    error = next((f for f in unlike if f.severity is Severity.ERROR), None)
    if error is not None and _is_consistent(sample):
        return error
    size = contradiction(sample.problem)
    if size is None:
        return None
    message = (
        f"backward is not the derivative of forward: along two random directions it is off by {number(size)} "
        "of its size or more; which entries are wrong was not found before it was stopped"
    )
    return sample.finding("GV101", message, hint=GIVE_TIME)


def _is_consistent(sample: Sample) -> bool:
    """Whether the reference's own gradient is its derivative: one that detaches something is no evidence."""
    function, names = sample.subject.reference, sample.subject.reference_arguments
    built = None if function is None else reference_problem(sample, function, names)
    return built is not None and not isinstance(built, Raised) and contradiction(built.value) is None
