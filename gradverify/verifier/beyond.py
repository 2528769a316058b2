"""A case past a constant of the source: the first order and the reference, and what memory was read.

No spec says that such a size is valid. What forward refuses, and what cannot be measured there, is
silence that the report tells; a gradient that is wrong is a finding, and where the spec lists the values of
that size it makes the target inconclusive, no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import lt

from gradverify.events import BeyondDoubted, BeyondJudged, BeyondStarted, Event, Found
from gradverify.model import (
    ALIGNED,
    OTHER_VALUES,
    Beyond,
    Case,
    CasePoint,
    Engine,
    Finding,
    Outcome,
    Point,
    Severity,
)
from gradverify.rules import Family, rule
from gradverify.verifier.checks.first_order import measured_first_order
from gradverify.verifier.checks.precision.alone import judged_alone
from gradverify.verifier.checks.reference import reference
from gradverify.verifier.checks.result import CheckResult, FirstOrder
from gradverify.verifier.checks.samples import arguments_at, prepare, prepared
from gradverify.verifier.checks.subject import NoSample, Sample, Subject
from gradverify.verifier.doubt.inferred_inputs import guarded
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.interpreter.launches import programs
from gradverify.verifier.numerics.proof import certify
from gradverify.verifier.variations.uninitialized import read_unwritten

MOST_PROGRAMS = 512
"""Programs of interpreted kernels in a forward from which on a size is not tried: some 2 ms each."""

TOO_SLOW = "a call of it takes too long there"

LEAST = 1e-4
"""Relative difference from which on a gradient is wrong at a size that nobody listed."""

SLIGHT = "its gradient differs there by less than a path of its own would make"

LARGEST_JACOBIAN = 1_000
"""Entries of a Jacobian that is built there: a larger one is only followed to what is wrong."""


def judge_beyond(
    subject: Subject, case: Case, beyond: Beyond, wanted: frozenset[Family], usual: Case
) -> Iterator[Event]:
    """Verify one such case; `usual` is one of those asked for, at which what is wrong is tried first."""
    yield BeyondStarted(beyond)
    if subject.settings.engine is Engine.TORCH:
        yield BeyondJudged("--engine torch would build its whole Jacobian")
        return
    before = programs()
    sample = prepare(subject, case, Point.TYPICAL, 0)
    if isinstance(sample, Sample) and programs() - before > MOST_PROGRAMS:
        yield BeyondJudged(TOO_SLOW)
        return
    if isinstance(sample, NoSample):
        raised = sample.raised
        yield BeyondJudged(f"forward raises {raised.type}" if raised is not None else "it has no gradient")
        return
    if sample.disconnected or subject.surrogate is not None:
        yield BeyondJudged("its gradient is not meant to be the derivative of all it returns")
        return
    settings = subject.settings
    certificate = None if sample.is_native else certify(sample.problem, rtol=settings.rtol, key=sample.key)
    if sample.is_native:
        first = FirstOrder(judged_alone(sample), single_precision=True)
    elif certificate is None:
        yield BeyondDoubted()
        first = measured_first_order(sample, largest=LARGEST_JACOBIAN)
    else:
        first = FirstOrder(CheckResult(smallest_visible_error=certificate.visible), proven=True)
    errors = _errors(sample, first, wanted)
    if errors and beyond.constant == ALIGNED and all(f.severity is not Severity.ERROR for f in errors):
        # Nothing speaks of this size, and what was guessed of the inputs may not allow it.
        yield BeyondJudged("what differs there may come from what was guessed of the inputs")
        return
    if not errors and first.result.outcome is not Outcome.PASSED:
        slight = any(f.severity is Severity.ERROR for f in first.result.findings)
        yield BeyondJudged(SLIGHT if slight else "its gradient could not be measured there")
        return
    at_usual = _at_its_values(sample, errors, usual, wanted) if errors else []
    for finding in at_usual or (_past(one, beyond) for one in errors):
        yield Found(finding)
    yield BeyondJudged()


def _at_its_values(
    sample: Sample, errors: Sequence[Finding], usual: Case, wanted: frozenset[Family]
) -> list[Finding]:
    """What is wrong at a size asked for, at values that the case past the constant has where it is wrong."""
    drawn = arguments_at(sample.subject, usual, Point.TYPICAL, 0)
    if isinstance(drawn, Raised) or [a.name for a in drawn] != [a.name for a in sample.arguments]:
        return []
    cut = _cut(sample.arguments, drawn, errors[0])
    where = CasePoint(usual.id, usual.sizes, usual.options, Point.TYPICAL, 0)
    there = None if cut is None else prepared(sample.subject, usual, where, cut)
    if not isinstance(there, Sample):
        return []
    hint = f"The values are some of those at {sample.case.id}."
    return [
        replace(one, part=OTHER_VALUES, hint=f"{one.hint} {hint}".strip())
        for one in _errors(there, measured_first_order(there), wanted)
    ]


def _cut(
    large: Sequence[Argument], small: Sequence[Argument], finding: Finding
) -> tuple[Argument, ...] | None:
    """The small arguments with values of the large ones, the worst entry's among them.

    None where they have no such values: in some dimension the small one is longer.
    """
    shape = next((a.value.shape for a in large if a.name == finding.input), ())
    worst = finding.entries.worst[:1] if finding.entries is not None else ()
    # So far from the start of every dimension of that length.
    starts = {n: k for entry in worst for n, k in zip(shape, entry.input or (), strict=False)}
    made = []
    for a, b in zip(large, small, strict=True):
        sizes = tuple(b.value.shape) if b.differentiable else ()
        if b.differentiable and (a.value.dim() != len(sizes) or any(map(lt, a.value.shape, sizes))):
            return None
        value = a.value if b.differentiable else b.value
        for dim, n in enumerate(sizes):
            length = value.shape[dim]
            value = value.narrow(dim, min(starts.get(length, 0), length - n), n)
        made.append(replace(b, value=value.clone() if b.differentiable else value))
    return tuple(made)


def _errors(sample: Sample, first: FirstOrder, wanted: frozenset[Family]) -> list[Finding]:
    """What is wrong there; inconclusive where that may come from what was guessed of inferred inputs."""
    results = {Family.GRADCHECK: first.result}
    if Family.REFERENCE in wanted and not sample.is_native:
        results[Family.REFERENCE] = reference(sample, first, None)
    # Smaller sizes, even ones or not, say nothing of what is wrong past a constant.
    here = replace(sample, subject=replace(sample.subject, spares=()))
    found = [
        judged
        for family, result in guarded(here, results).items()
        for f, judged in zip(results[family].findings, result.findings, strict=True)
        if f.severity is Severity.ERROR and _is_gross(f)
    ]
    return [*found, *read_unwritten(sample)]


def _is_gross(finding: Finding) -> bool:
    """Whether a gradient is off by what a path of its own makes, not an iteration that ends early."""
    worst = finding.entries.worst if finding.entries is not None and finding.code == "GV101" else ()
    sizes = ((abs(e.actual - e.expected), max(abs(e.actual), abs(e.expected))) for e in worst)
    return not worst or any(not off <= LEAST * size for off, size in sizes)


def _past(finding: Finding, beyond: Beyond) -> Finding:
    """The finding with the words that it is right at the sizes asked for."""
    where = beyond.case.id
    if not beyond.declared:
        hint = (
            f"At other sizes it is right; this is {where}: look at a branch, a last block that is not full."
        )
        return replace(finding, hint=f"{finding.hint} {hint}".strip())
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=f"{finding.message}; but no spec says that {where} is valid",
        hint=f"If it is, list such a value of `{beyond.size}` in the spec's sizes, and this is a mistake; if "
        f"not, forbid it with `where:`, as in `{beyond.size} <= {dict(beyond.case.sizes)[beyond.size] - 1}`.",
    )
