"""The verdict at guessed or undeclared values: a mismatch fails only if the guess cannot explain it.

All of inferred inputs is a guess; of a spec, the values that it does not declare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from gradverify.model import Doubt, Finding, Outcome, Point, Severity
from gradverify.rules import Family
from gradverify.verifier.checks.result import NOT_REPEATED, CheckResult
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import invented
from gradverify.verifier.doubt.accidents import hangs_on_no_guess
from gradverify.verifier.doubt.inventions import OF_THE_COUNT, inventions_of
from gradverify.verifier.doubt.neighbours import Neighbours
from gradverify.verifier.doubt.nothing_seen import HIDDEN, NOTHING, depends_on_nothing, hidden_inputs
from gradverify.verifier.doubt.reasons import (
    AT_DECLARED,
    AT_UNDECLARED,
    UNDER_A_SPEC,
    UNDER_A_SPEC_AT_UNDECLARED,
    Reason,
    guess_behind,
)

CERTAIN = ("GV105", "GV4", "GV502", "GV503", "GV505")
"""Codes that do not hang on the values of the inputs: no guess can have made them."""

OF_THE_MATRIX = frozenset({"GV410"})
"""Codes that are certain no more where something was invented: LAPACK gives anything for singular ones."""


def guarded(
    sample: Sample, results: dict[Family, CheckResult], reported: Iterable[Finding] = ()
) -> dict[Family, CheckResult]:
    """Turn errors that a guess may have made into inconclusive findings.

    An error that was `reported` at another point of the target remains: no guess made it there, and the
    target fails by it whatever is found here.
    """
    near = Neighbours(sample)
    if not sample.subject.inferred:
        typical = sample.point is Point.TYPICAL
        return {f: _excused(near, r, UNDER_A_SPEC) for f, r in results.items()} if typical else results
    certain_elsewhere = {_mistake(f) for f in reported if f.severity is Severity.ERROR}

    def is_certain(finding: Finding) -> bool:
        return _mistake(finding) in certain_elsewhere or _is_certain(near, finding)

    kept = {family: _excused(near, result, AT_DECLARED, is_certain) for family, result in results.items()}
    first, doubts = kept.get(Family.GRADCHECK), inventions_of(sample)
    unseen = _unseen(sample, doubts) if first and first.outcome is Outcome.PASSED and doubts else None
    if first and unseen:
        findings = (*first.findings, unseen)
        kept[Family.GRADCHECK] = replace(first, findings=findings, outcome=Outcome.INCONCLUSIVE)
    return kept


def guarded_at_undeclared(sample: Sample, result: CheckResult) -> CheckResult:
    """The same of findings at undeclared values."""
    reasons = AT_UNDECLARED if sample.subject.inferred else UNDER_A_SPEC_AT_UNDECLARED
    return _excused(Neighbours(sample), result, reasons)


def guarded_at_unlisted(sample: Sample, result: CheckResult) -> CheckResult:
    """The same for findings at unlisted sizes."""
    return _excused(Neighbours(sample), result, AT_DECLARED if sample.subject.inferred else UNDER_A_SPEC)


def _excused(
    near: Neighbours,
    result: CheckResult,
    reasons: Sequence[Reason],
    is_certain: Callable[[Finding], bool] = lambda _: False,
) -> CheckResult:
    """The result with errors as inconclusive findings, each by the first reason that there is."""
    reader = near.sample.subject.reader

    def judged(finding: Finding) -> Finding:
        certain = hangs_on_no_guess(near.sample, finding.raised) or is_certain(finding)
        if finding.severity is not Severity.ERROR or certain:
            return finding
        # What backward returns at inputs that are tried here is no news of the sample's own.
        with nullcontext() if reader is None else reader.without_new_remarks():
            return next(filter(None, (reason(near, finding) for reason in reasons)), finding)

    findings = tuple(map(judged, result.findings))
    failed = any(f.severity is Severity.ERROR for f in findings)
    excused = result.outcome is Outcome.FAILED and not failed
    return replace(result, findings=findings, outcome=Outcome.INCONCLUSIVE if excused else result.outcome)


def _unseen(sample: Sample, doubts: Sequence[Doubt]) -> Finding | None:
    """What keeps a gradient that is right from saying anything: zeros, by what was made up."""
    what = tuple(d.what for d in doubts)
    if depends_on_nothing(sample):
        return invented(sample.finding("GV109", NOTHING), what)
    hidden = hidden_inputs(sample, [d.name for d in doubts])
    message = HIDDEN.format(", ".join(f"`{name}`" for name in hidden))
    return invented(sample.finding("GV109", message, input=hidden[0]), what) if hidden else None


def _mistake(finding: Finding) -> tuple[str, str | None, int | None]:
    return finding.code, finding.input, finding.output


def _is_certain(near: Neighbours, finding: Finding) -> bool:
    """Whether no guess can have made it: what raises may do so because of what was invented.

    Where two sizes were guessed to differ nothing is certain: what backward does not write of the longer
    one holds anything. Another case has them equal, and shows what hangs on neither.
    """
    doubts = inventions_of(near.sample)
    if finding.cause == NOT_REPEATED:
        return False
    if any(d.differ for d in doubts) or guess_behind(near.sample, finding):
        return False
    if finding.code == OF_THE_COUNT and any(_may_make_another_count(d, finding) for d in doubts):
        return False
    hangs_on_them = finding.raised is not None or finding.code in OF_THE_MATRIX
    return finding.code.startswith(CERTAIN) and not (hangs_on_them and doubts)


def _may_make_another_count(doubt: Doubt, finding: Finding) -> bool:
    """Whether an input was meant to be something else, or an invented module lacks parameters."""
    return doubt.name == finding.input or doubt.what.endswith(("(callable)", "(object)"))
