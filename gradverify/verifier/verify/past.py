"""A case past a constant of the source: a block, a chunk, a limit that sizes are compared with.

No spec says that such a size is valid. What forward refuses, and what cannot be measured there, is no
finding: the report names the size as not verified. A gradient that is wrong is a finding, and where the
spec lists the values of that size it makes the target inconclusive, no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradverify.events import BeyondDoubted, BeyondJudged, BeyondStarted, Event, Found
from gradverify.model import ALIGNED, Beyond, Case, Engine, Finding, Outcome, Point, Severity
from gradverify.rules import rule
from gradverify.verifier.interpreter.launches import programs
from gradverify.verifier.neighbours.guesses import Excuses, guarded
from gradverify.verifier.questions.again import overlapping, read_unwritten
from gradverify.verifier.questions.contract import RETURNED, contract
from gradverify.verifier.questions.findings import FirstOrder
from gradverify.verifier.questions.results import beyond as judged_beyond
from gradverify.verifier.questions.results import judged_alone
from gradverify.verifier.questions.subject import NoSample, Sample, prepare
from gradverify.verifier.questions.verified import verified
from gradverify.verifier.verify.verification import Verification

MOST_PROGRAMS = 512
"""Programs of interpreted kernels in a forward from which on a size is not tried: some 2 ms each."""


def past_constants(asked: Verification) -> Iterator[Event]:
    """Judge cases past constants until backward is wrong at one, the plainest: another adds nothing.

    After one that no spec says to be valid come those alone that no spec speaks against: they are mistakes.
    """
    found: list[Finding] = []
    for beyond in asked.request.plan.beyond:
        if any(map(_is_error, found)):
            return
        if not (found and beyond.declared):
            for event in _judged(asked, beyond):
                found += [event.finding] if isinstance(event, Found) else []
                yield event


def _judged(asked: Verification, beyond: Beyond) -> Iterator[Event]:
    """Judge a case past a constant."""
    yield BeyondStarted(beyond)
    sample = _sample(asked, beyond)
    if isinstance(sample, str):
        yield BeyondJudged(sample)
        return
    first = judged_alone(sample) if sample.is_native else judged_beyond(sample)
    if any(f.code in RETURNED and _is_error(f) for f in contract(sample, first).findings):
        yield BeyondJudged("torch refuses the gradients that backward returns there")
        return
    if first.result.outcome is Outcome.FAILED:
        yield BeyondDoubted()
    errors = _errors(sample, first, beyond)
    if not errors and first.result.outcome is not Outcome.PASSED:
        yield BeyondJudged("its gradient could not be measured there")
        return
    base = None if errors else verified(sample)
    # A buffer may be kept from some size on.
    errors = errors if base is None else [*filter(_is_error, overlapping(base).findings)]
    # What was guessed of sizes that are to agree is said already.
    is_told = beyond.constant == ALIGNED and not any(map(_is_error, errors))
    told = (f if is_told else _told(f, beyond, asked.request.plan.cases) for f in errors)
    yield from asked.reported(told)
    yield BeyondJudged()


def _sample(asked: Verification, beyond: Beyond) -> Sample | str:
    """The sample there, or why none is judged."""
    if asked.request.settings.engine is Engine.TORCH:
        return "--engine torch would build its whole Jacobian"
    built = asked.build(beyond.case)
    if isinstance(built, Finding):
        return "the module cannot be built"
    before = programs()
    sample = prepare(*built, Point.TYPICAL, 0)
    if isinstance(sample, NoSample):
        raised = sample.raised
        return f"forward raises {raised.type}" if raised is not None else "it has no gradient"
    if programs() - before > MOST_PROGRAMS:
        return "a call of it takes too long there"
    if sample.disconnected or sample.subject.surrogate is not None:
        return "its gradient is not meant to be the derivative of all it returns"
    return sample


def _errors(sample: Sample, first: FirstOrder, beyond: Beyond) -> list[Finding]:
    """What is wrong there; inconclusive where that may come from what was guessed of inferred inputs."""
    found = replace(first.result, findings=tuple(filter(_is_error, first.result.findings)))
    # Whatever else was guessed: what no spec says to be valid is inconclusive in any case, see `_told`.
    if not beyond.declared or beyond.constant == ALIGNED:
        # Smaller sizes, even ones or not, say nothing of what is wrong past a constant.
        found = guarded(replace(sample, subject=replace(sample.subject, spares=())), found, Excuses())
    return [*found.findings, *read_unwritten(sample)]


def _is_error(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR


def _told(finding: Finding, beyond: Beyond, listed: Sequence[Case]) -> Finding:
    """The finding with the words that it is right at the sizes asked for."""
    where = beyond.case.id
    if not beyond.declared:
        hint = (
            f"At other sizes it is right; this is {where}: look at a branch, a last block that is not full."
        )
        return replace(finding, hint=f"{finding.hint} {hint}".strip())
    sizes, known = dict(beyond.case.sizes), [dict(case.sizes) for case in listed]
    unlisted = [n for n, size in sizes.items() if all(one.get(n) != size for one in known)] or [beyond.size]
    conditions = " or ".join(f"`{name} != {sizes[name]}`" for name in unlisted)
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=f"{finding.message}; but no spec says that {where} is valid",
        hint=f"If it is, list such a value of {' and '.join(f'`{name}`' for name in unlisted)} in the spec's "
        f"sizes, and this is a mistake; if not, forbid it with `where:`, as in {conditions}.",
    )
