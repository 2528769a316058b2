"""What was drawn and measured of one target: while it is judged, nothing is measured twice.

How many calls the errors of a target may cost: causes, changes of backward, smaller inputs.

Both Jacobians of a sample, measured once whoever asks for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from gradverify.model import Case, CasePoint, Effort, Finding, Point, Target
from gradverify.model.words import Scalar
from gradverify.rules import Family
from gradverify.verifier import guard
from gradverify.verifier.checks.reading import Reader
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import Float64, Native, NoSample, Sample, Subject
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.jacobian import KnownColumns
from gradverify.verifier.numerics.large import LARGEST_JACOBIAN, Certificate, judge_any_size
from gradverify.verifier.numerics.problem import CallProblem, Layout, VjpProblem
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, NotJudged

if TYPE_CHECKING:  # the hypotheses are many modules, and most targets need none
    from gradverify.verifier.diagnose import evidence
    from gradverify.verifier.diagnose.edits.own_backward import Repairs
    from gradverify.verifier.diagnose.ladder import Diagnosis


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
        return NotJudged("there is no float64 path")
    settings = sample.subject.settings
    tolerance = Tolerance(settings.rtol, settings.atol)
    judged = judge_any_size(problem, tolerance, noise=noise, known=known, largest=largest)
    if isinstance(judged, Judged) and judged.inputs.size == Layout.of(problem.primals).size:
        sample.judged[order] = judged
    return judged


TIMES = 8
"""Times the calls that verifying took: whoever has waited for that waits for so much more at most. Of 53
wrong backwards in `benchmarks/cases/wrong`, 2 lost their cause and 4 of 34 their fix at 2, and 2 their fix at
4; none at 6, where 52 of 60 findings keep the smaller inputs that they had without any limit. At 8 five wrong
gradients of one mistake are still shown at the smallest inputs."""

TIMES_IF_THOROUGH = 10
"""The same with `--effort thorough`."""

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
    def after(verifying: int, effort: Effort) -> Allowance:
        """What errors may cost from now on, where verifying took so many calls."""
        times = TIMES_IF_THOROUGH if effort is Effort.THOROUGH else TIMES
        calls = max(LEAST, times * verifying)
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


MOST_ENTRIES = 2_000_000
"""Entries of Jacobians that are kept of one target: with what was measured of each, some 100 MB."""

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
    """Of one target, from the request that verifies it to the last one about its findings."""

    target: Target | None = None
    allowance: Allowance = field(default_factory=Allowance)
    """Calls that its errors may cost."""
    samples: dict[Place, Sample | NoSample] = field(default_factory=dict)
    points: dict[tuple[Place, int], evidence.Point | None] = field(default_factory=dict)
    """What a diagnosis starts from, by the place and the order of the derivative."""
    findings: dict[tuple[Place, Family], tuple[Finding, ...]] = field(default_factory=dict)
    """What a family of checks said where it was asked alone."""
    causes: dict[tuple[str, int | None, str | None], Diagnosis] = field(default_factory=dict)
    """By code, output and input of a finding."""
    reader: Reader = field(default_factory=Reader)
    """What reads its backward: a sample holds it, whichever request asks for it again."""
    entries: int = 0
    """Of the Jacobians that are kept."""
    precision: dict[tuple[tuple[str, Scalar], ...], Float64 | Native] = field(default_factory=dict)
    """In what it is judged, by its options."""
    short: str = ""
    """The format of 16 bits or fewer in which it computes inside."""
    learnt: dict[object, object] = field(default_factory=dict)
    """What was learnt of it from sample to sample."""
    repairs: Repairs | None = None
    """Changes of its backward that make it right; made where a cause is looked for."""

    def begin(self) -> None:
        """Forget everything: the target is verified anew."""
        for kept in (self.samples, self.points, self.findings, self.causes, self.precision, self.learnt):
            kept.clear()
        self.repairs, self.entries = None, 0
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

    def note(self, place: Place, sample: Sample) -> None:
        """Keep a sample that was judged, and what was measured of it as far as there is room."""
        self.samples[place] = sample
        entries = sum(judged.comparison.analytical.numel() for judged in sample.judged.values())
        if self.entries + entries > MOST_ENTRIES:
            sample.judged.clear()
            return
        self.entries += entries
