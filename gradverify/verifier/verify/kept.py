"""What is kept of one target while it is verified, and how many calls its errors may cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradverify.model import Case, CasePoint, Finding, Point
from gradverify.model.words import Scalar
from gradverify.verifier import guard
from gradverify.verifier.questions.reading import Reader
from gradverify.verifier.questions.subject import Float64, Native, NoSample, Sample, Subject, prepare

if TYPE_CHECKING:  # the hypotheses are many modules, and most targets need none
    from gradverify.verifier.diagnose import evidence
    from gradverify.verifier.diagnose.edits.own_backward import Repairs
    from gradverify.verifier.diagnose.ladder import Diagnosis


TIMES = 8
"""Times the calls that verifying took: whoever has waited for that waits for so much more at most. Of 53
wrong backwards in `benchmarks/cases/wrong`, 2 lost their cause and 4 of 34 their fix at 2, and 2 their fix at
4; none at 6."""

LEAST = 8000
"""Calls that they may take in any case: a wrong gradient is found in fifty, and a change that explains it, of
a layer, in some five thousand (at 3000 three of `tests/zoo/authors` lost their cause)."""


@dataclass
class Allowance:
    """Calls that may still be made, one allowance for all that follows a failure."""

    calls: int = LEAST
    """As many as there were."""
    until: int = sys.maxsize
    """Nothing is begun once so many calls were made in this process; by default, always."""
    is_short: bool = False
    """Something was not looked for because it would take more."""

    @staticmethod
    def after(verifying: int) -> Allowance:
        """What errors may cost from now on, where verifying took so many calls."""
        return Allowance.of(max(LEAST, TIMES * verifying))

    @staticmethod
    def of(calls: int) -> Allowance:
        """So many calls from now on."""
        return Allowance(calls, guard.CALLS.made + calls)

    @property
    def left(self) -> int:
        """Calls that may still be made."""
        return max(0, self.until - guard.CALLS.made)

    def covers(self, calls: float) -> bool:
        """Whether so many may still be made; that they may not is noted."""
        is_covered = calls <= self.left
        self.is_short = self.is_short or not is_covered
        return is_covered


Build = Callable[[Case], tuple[Subject, Case] | Finding]
"""A case to the subject that it is verified with."""


@dataclass(frozen=True)
class Place:
    """A point of a case that was verified, or may be measured."""

    case: Case
    point: Point
    draw: int

    @property
    def where(self) -> CasePoint:
        """For a finding."""
        return CasePoint(self.case.id, self.case.sizes, self.case.options, self.point, self.draw)

    def is_of(self, found: CasePoint) -> bool:
        """Whether a finding was made there."""
        return (self.case.id, self.point, self.draw) == (found.id, found.point, found.draw)


@dataclass
class Kept:
    """Of one target, from its first sample to what is said of its findings."""

    allowance: Allowance = field(default_factory=Allowance)
    """Calls that its errors may cost."""
    samples: dict[Place, Sample | NoSample] = field(default_factory=dict)
    points: dict[tuple[Place, int], evidence.Point | None] = field(default_factory=dict)
    """What a diagnosis starts from, by the place and the order of the derivative."""
    causes: dict[tuple[str, int | None, str | None], Diagnosis] = field(default_factory=dict)
    """By code, output and input of a finding."""
    reader: Reader = field(default_factory=Reader)
    """What reads its backward: a sample holds it, whichever request asks for it again."""
    precision: dict[tuple[tuple[str, Scalar], ...], Float64 | Native] = field(default_factory=dict)
    """In what it is judged, by its options."""
    short: str = ""
    """The format of 16 bits or fewer in which it computes inside."""
    learnt: dict[object, object] = field(default_factory=dict)
    """What was learnt of it from sample to sample."""
    repairs: Repairs | None = None
    """Changes of its backward that make it right; made where a cause is looked for."""
    with_what_holds: Callable[[Finding, Place], Finding] | None = None
    """A finding with those of its changes that are right at a place; made where a cause is looked for."""

    def begin(self) -> None:
        """Forget everything: the target is verified anew."""
        for kept in (self.samples, self.points, self.causes, self.precision, self.learnt):
            kept.clear()
        self.repairs = self.with_what_holds = None
        self.short = ""
        self.reader.reset()

    def sample(self, place: Place, build: Build) -> Sample | NoSample | Finding:
        """What forward gives there, once: drawn where it has not been; a finding where it cannot be built."""
        if place not in self.samples:
            built = build(place.case)
            if isinstance(built, Finding):
                return built
            self.samples[place] = prepare(*built, place.point, place.draw)
        return self.samples[place]
