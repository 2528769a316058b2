"""What a gradient is asked at a sample once its first order is judged: one row for each question."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from gradverify.model import Finding, Outcome, Point, Severity
from gradverify.model.case import is_declared
from gradverify.rules import Family
from gradverify.verifier.checks.contract import contract, old_style, stops_judgement
from gradverify.verifier.checks.result import CheckResult, FirstOrder
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.numerics.problem import Graph
from gradverify.verifier.verification import Verification
from gradverify.verifier.verify.orders import First, ask_second
from gradverify.verifier.verify.reference import ask_reference
from gradverify.verifier.verify.samples import Kind, Planned
from gradverify.verifier.verify.state import CaseState
from gradverify.verifier.verify.structured import wrong_with_structure
from gradverify.verifier.verify.witnessing import Witnesses


@dataclass
class At:
    """One sample while it is asked."""

    verification: Verification
    witnesses: Witnesses
    planned: Planned
    sample: Sample
    graph: Graph
    state: CaseState
    first: First
    held: CheckResult = field(default_factory=CheckResult)
    """What the contract says."""

    @property
    def is_declared(self) -> bool:
        """Whether its values are what the spec says is valid."""
        return is_declared(self.sample.point, self.sample.draw)

    @property
    def is_listed(self) -> bool:
        """Whether the spec declares it, case and values."""
        return self.planned.kind is Kind.LISTED and self.is_declared

    @property
    def is_first_draw(self) -> bool:
        """Whether it is the first typical one of its case."""
        return (self.sample.point, self.sample.draw) == (Point.TYPICAL, 0)

    @property
    def is_once(self) -> bool:
        """Whether what is asked once for each combination of options is asked here."""
        return self.is_listed and self.planned.is_first and self.is_first_draw

    @property
    def is_afar(self) -> bool:
        """Whether it is at special values, or at the ends of a range, where a branch may begin."""
        afar = self.sample.point is not Point.TYPICAL and not self.sample.draw
        return self.is_listed and self.planned.is_first and afar

    @property
    def is_verified(self) -> bool:
        """Whether the gradient is right, and backward returns as many as forward takes."""
        return self.first.verified and not stops_judgement(self.held)


@dataclass(frozen=True)
class Question:
    """One row."""

    name: str
    codes: tuple[str, ...]
    """One of them must be wanted."""
    when: Callable[[At], bool]
    ask: Callable[[At], Iterator[Finding]]


def _contract(at: At) -> Iterator[Finding]:
    known = at.witnesses.of(at.sample)
    first = FirstOrder(
        CheckResult(at.first.findings, at.first.outcome),
        proven=at.first.verified,
        single_precision=known.is_short,
    )
    at.held = contract(at.sample, first)
    at.state.worsen(Family.CONTRACT, at.held.outcome)
    yield from at.held.findings
    asked = at.verification
    if asked.is_old_style and asked.is_first(at.sample.case) and not at.state.points:
        yield old_style(at.sample)


def _reference(at: At) -> Iterator[Finding]:
    known = at.witnesses.of(at.sample)
    yield from ask_reference(at.sample, at.graph, at.state, known, at.first.visible)


def _grad_outputs(at: At) -> Iterator[Finding]:
    if at.first.asked is None:
        return
    surrogate = at.sample.subject.surrogate
    for finding in wrong_with_structure(at.sample, at.first.asked, smooth=at.is_once):
        if surrogate is not None and surrogate.covers(finding.input):
            continue
        failed = finding.severity is Severity.ERROR
        at.state.worsen(Family.GRADCHECK, Outcome.FAILED if failed else Outcome.NOT_RUN)
        yield finding


def _second_order(at: At) -> Iterator[Finding]:
    known = at.witnesses.of(at.sample)
    found = ask_second(at.sample, at.graph, at.first, at.witnesses, prove=at.is_once)
    said = found.findings
    if at.is_once:
        at.state.double_backward = found.double_backward
        known.twice = found.double_backward == "yes"
    else:
        said = tuple(f for f in said if f.severity is Severity.ERROR or (at.is_listed and f.code == "GV109"))
        known.twice = not said  # one sample says it
    if at.is_once or said:
        at.state.worsen(Family.GRADGRADCHECK, found.outcome)
    yield from (as_kind(f, at.planned.kind) for f in said)


def _is_twice(at: At) -> bool:
    """Whether a second derivative is meant, and was seen where it was asked first."""
    ranks = at.verification.request.plan.ranks
    meant = at.sample.subject.surrogate is None and (ranks is None or ranks.second_order)
    return meant and (at.is_once or at.witnesses.of(at.sample).twice)


QUESTIONS = (
    Question("contract", ("GV103", "GV104", "GV105", "GV407", "GV810"), lambda at: at.is_listed, _contract),
    Question(
        "grad_outputs",
        ("GV106",),
        lambda at: (at.is_once or (at.is_afar and at.sample.point is Point.SPECIAL)) and at.is_verified,
        _grad_outputs,
    ),
    Question(
        "second order",
        ("GV201", "GV202", "GV203"),
        lambda at: _is_twice(at) and at.is_verified and (at.is_once or at.first.closed),
        _second_order,
    ),
    Question(
        "reference",
        ("GV301", "GV302", "GV303"),
        lambda at: at.is_listed and at.is_verified and at.sample.subject.reference is not None,
        _reference,
    ),
)


def asked_at(at: At) -> Iterator[Finding]:
    """What every question that applies finds."""
    for question in QUESTIONS:
        if question.when(at) and any(map(at.verification.wants, question.codes)):
            yield from question.ask(at)


def as_kind(finding: Finding, kind: Kind) -> Finding:
    """A finding as it counts at a case of this kind: nobody listed a size of 0 or 1 that was invented."""
    invented = kind is Kind.DEGENERATE and finding.severity is Severity.ERROR
    return replace(finding, severity=Severity.WARNING) if invented else finding
