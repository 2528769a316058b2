"""What one of torch's transforms answers: a line of the capability table, and the findings behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradverify.model import Finding, RaisedError, Severity
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.numerics.calling import Tensors, returned_tensors
from gradverify.verifier.questions.verified import Verified


@dataclass(frozen=True)
class Answer:
    """`yes`, `no`, `wrong` or `not-run`, and why."""

    capability: str = "not-run"
    findings: tuple[Finding, ...] = ()

    @staticmethod
    def of(*found: Finding | None) -> Answer:
        """A transform that is asked is right, refuses (notes), or is wrong."""
        findings = tuple(one for one in found if one is not None)
        refuses = all(one.severity is Severity.NOTE for one in findings)
        return Answer(("no" if refuses else "wrong") if findings else "yes", findings)


NOT_RUN = Answer()
UNSUPPORTED = Answer("no")


def refusal(base: Verified, code: str, what: str, error: RaisedError) -> Finding:
    """The note that a transform raises, which users see anyway."""
    return base.finding(
        code,
        f"{what} raises {error.type}: {first_line(error.message)}",
        hint="If it is meant to be supported, see the traceback with -vv; else nothing need be done.",
        severity=Severity.NOTE,
        raised=error,
    )


def outputs_of(sample: Sample, result: Any) -> Tensors:  # noqa: ANN401 - what user code returned
    """What forward returned, of it the outputs that are differentiated."""
    returned = returned_tensors(result)
    return tuple(returned[p] for p in sample.problem.output_positions)
