"""Where a change of backward is confirmed before it is offered: at every case, and at larger values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradverify.model import Case, Point, tensors_of
from gradverify.verifier.checks.kept import Build, Kept, Place
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.diagnose.edits.further import FurtherPlace
from gradverify.verifier.diagnose.measured import own_backward_of, repairs_of, with_primals

LARGER = 5.0
"""Times as large as drawn: past most thresholds of clamps and branches that ordinary values stay below."""


def further_places(visited: Sequence[Place], kept: Kept, build: Build) -> tuple[FurtherPlace, ...]:
    """One place for each case that was verified, then one at larger values, as many as may be asked."""
    first = [place for place in visited if place.point is Point.TYPICAL and place.draw == 0]
    samples = [kept.sample(place, build) for place in first[: kept.allowed.confirmed]]
    judged = [one for one in samples if isinstance(one, Sample) and not one.disconnected]
    larger = [_larger(one) for one in judged if _unbounded(one.case) & {*one.problem.input_names}]
    owns = (own_backward_of(one, repairs_of(kept)) for one in (*judged, *larger)[: kept.allowed.confirmed])
    return tuple(FurtherPlace(own) for own in owns if own is not None)


def _larger(sample: Sample) -> Sample:
    """The same call at larger values of the inputs that may have them."""
    free, problem = _unbounded(sample.case), sample.problem
    values = zip(problem.input_names, problem.primals, strict=True)
    primals = tuple(LARGER * value if name in free else value for name, value in values)
    return replace(sample, problem=with_primals(problem, primals))


def _unbounded(case: Case) -> set[str]:
    """Inputs of which nothing is said that larger values may contradict."""
    given = [t for one in case.inputs for t in tensors_of(one)]
    return {
        t.name
        for t in given
        if t.range is None and t.value is None and not t.structure and not t.make and t.domain != "unit"
    }
