"""One finding at other inputs: the same mistake with the same cause, or nothing."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from gradverify.events import Retried, Retry
from gradverify.model import Finding, Point, RaisedError, Severity
from gradverify.model.case import is_declared
from gradverify.rules import Family, rule
from gradverify.verifier.building import Live
from gradverify.verifier.checks.kept import Build, Kept, Place
from gradverify.verifier.checks.subject import NoSample
from gradverify.verifier.diagnose import is_diagnosed
from gradverify.verifier.diagnose.findings import is_of_its_cause, with_what_holds
from gradverify.verifier.guard import NotJudgedError
from gradverify.verifier.ranks.world import OutOfStepError
from gradverify.verifier.verify.results import at_undeclared, forget_findings
from gradverify.verifier.verify.table import ask
from gradverify.verifier.verify.verification import verifying

SAME_FACTOR = 1e-6
"""Relative: two measurements of one factor agree to more."""

FAINT = 1e-2
"""Share of the reported difference below which another place is not reported instead: two numbers that are
normalised are -1 and 1 whatever they are, so that an error in that is 1e-6 there instead of 0.3."""


def retry(request: Retry, live: Live) -> Retried:
    """Judge the one case of a request at one point, as its target was judged, and look for the finding."""
    try:
        return _retried(request, live)
    except (OutOfStepError, NotJudgedError):  # another mistake than the one that is looked for
        return Retried(None)


def _retried(request: Retry, live: Live) -> Retried:
    reported, kept = request.finding, live.kept
    place = Place(request.verified.plan.cases[0], request.point, request.draw)
    family = rule(reported.code).family
    if not kept.allowance.covers(1):
        return Retried(None, spent=kept.allowance.calls)
    with verifying(request.verified, live) as asked:
        if (place, family) not in kept.findings:
            kept.findings[place, family] = _findings(place, family, kept, asked.build)
        found = next((f for f in kept.findings[place, family] if _is_the_same(f, reported)), None)
        if found is not None and request.with_cause and not _has_the_same_cause(found, reported):
            same = is_diagnosed(found) and is_of_its_cause(reported, place, kept, asked.build)
            found = found if same else None
        if found is not None and request.with_cause and reported.changes:
            found = with_what_holds(found, reported, place, kept, asked.build)
        return Retried(found)


def _findings(place: Place, family: Family, kept: Kept, build: Build) -> tuple[Finding, ...]:
    """What a family of checks says at a place, by what was measured there already, if it was."""
    sample = kept.sample(place, build)
    if isinstance(sample, Finding):
        return ()
    if isinstance(sample, NoSample):
        return sample.findings
    forget_findings(sample)
    if not is_declared(place.point, place.draw):
        return at_undeclared(sample).result.findings
    judged = sample
    if place.point is Point.PLAIN:
        # They are ordinary values: what is checked at the first typical draw alone is checked here.
        judged = replace(sample, point=Point.TYPICAL, draw=0)
    results, _ = ask(judged, frozenset({family}))
    # What was reported as an error is one whatever was guessed, so no guard is asked here.
    return tuple(f for result in results.values() for f in result.findings)


def _is_the_same(found: Finding, reported: Finding) -> bool:
    """Whether it is the mistake that was reported: where only a part was wrong, a part is."""
    if found.severity is not Severity.ERROR:
        return False
    if (found.code, found.input, found.output) != (reported.code, reported.input, reported.output):
        return False
    if _couples(reported) and not _couples(found):
        return False
    if rule(reported.code).family is Family.CONTRACT and _words(found.message) != _words(reported.message):
        return False  # another layout, another call
    if _size(found) < FAINT * _size(reported):
        return False
    return _place_of(found.raised) == _place_of(reported.raised) and _is_whole(found) <= _is_whole(reported)


def _size(finding: Finding) -> float:
    """The largest difference among the entries that it shows; 0 where it shows none."""
    worst = finding.entries.worst if finding.entries is not None else ()
    return max((abs(e.actual - e.expected) for e in worst), default=0.0)


def _words(message: str) -> str:
    """A message without its numbers, indices and shapes."""
    return re.sub(r"\[[^\]]*\]|[-+]?\d[\d.e+-]*|\s+", " ", message)


def _couples(finding: Finding) -> bool:
    """Whether an entry is wrong by which two places interact: that shows nowhere where there is one place."""
    worst = finding.entries.worst if finding.entries is not None else ()
    return any(e.input is not None and len(e.input) == len(e.output) and e.input != e.output for e in worst)


def _is_whole(finding: Finding) -> bool:
    """Whether every entry that was compared is wrong."""
    return finding.entries is not None and finding.entries.wrong == finding.entries.checked


def _place_of(raised: RaisedError | None) -> tuple[str, int] | None:
    if raised is None:
        return None
    return raised.type, raised.frames[-1].line if raised.frames else 0


def _has_the_same_cause(found: Finding, reported: Finding) -> bool:
    if found.cause != reported.cause or (found.factor is None) != (reported.factor is None):
        return False
    if found.factor is None or reported.factor is None:
        return True
    return math.isclose(found.factor, reported.factor, rel_tol=SAME_FACTOR)
