"""After a failure: why is the gradient wrong? Points are measured again, hypotheses tested on them.

A cause is named only if it holds at every entry of several points: where the gradient is wrong, at another
draw, at another size, and where it is right, if such a point was seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gradverify.model import Case, Finding, Point, SourceChange, TargetKind, TargetPlan
from gradverify.verifier.diagnose import DIAGNOSED, evidence, is_diagnosed, wants_a_change
from gradverify.verifier.diagnose.confirmation import (
    FurtherPlace,
    are_right_in_second_order,
    are_right_with_inputs_frozen,
    further_places,
    measured_point,
    measured_second_point,
    own_backward_of,
    repairs_of,
)
from gradverify.verifier.diagnose.edits.same_values import asked_of_each_input, out_of_place, recomputed_in
from gradverify.verifier.diagnose.edits.search import known_backwards, one_edit
from gradverify.verifier.diagnose.evidence import Cause, InBackward, Options, Pair, in_words
from gradverify.verifier.diagnose.ladder import diagnose, together
from gradverify.verifier.numerics.tracing import MOST_OPERATIONS
from gradverify.verifier.questions.findings import FIRST_ORDER_ONLY
from gradverify.verifier.questions.reference import composite_of
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.verify.kept import Build, Kept, Place
from gradverify.verifier.witnesses.rounding import operations

__all__ = ["causes_of"]


WRITES_GRAD_OUTPUT = "GV401"

OF_FROZEN_INPUTS = "GV406"

OF_SECOND_ORDER = frozenset({"GV201", "GV202"})

NOT_MEANT = "looks-surrogate"
"""The cause after which no derivative is meant."""

FACTOR_DIGITS = 8
"""Significant digits of a factor that is given: fewer than a measured derivative has."""

LARGEST_MEASURED = 250_000
"""Entries of a Jacobian that is still measured for a diagnosis."""

DRAWS = (0, 1)
"""Draws of a spare case that takes the place of one that is too large."""


@dataclass
class _Measurements:
    """Points that were measured for this diagnosis, as far as the allowance goes."""

    build: Build
    kept: Kept
    taken: float = 0.0
    """The largest share of its estimated cost that a point has taken so far; 0 before the first."""
    known: dict[tuple[Place, int], tuple[Sample, evidence.Point] | None] = field(default_factory=dict)

    def at(self, place: Place, order: int) -> tuple[Sample, evidence.Point] | None:
        """Both Jacobians there; None where they cannot be had or would cost too much."""
        if (place, order) not in self.known:
            self.known[place, order] = self._measure(place, order)
        return self.known[place, order]

    def samples(self) -> list[Sample]:
        """Those that were measured of first order."""
        return [found[0] for (_, order), found in self.known.items() if order == 1 and found]

    def _measure(self, place: Place, order: int) -> tuple[Sample, evidence.Point] | None:
        sample = self.kept.sample(place, self.build)
        if not isinstance(sample, Sample) or sample.disconnected:
            return None
        entries = sample.inputs.size * sample.problem.outputs.size
        cost = _cost(sample)
        if entries > LARGEST_MEASURED or not self.kept.allowance.covers(cost * (self.taken or 1.0)):
            return None
        counter = sample.problem.counter
        before = counter.forward + counter.backward
        if (place, order) not in self.kept.points:
            self.kept.points[place, order] = (
                measured_point(sample, repairs_of(self.kept)) if order == 1 else measured_second_point(sample)
            )
        taken = counter.forward + counter.backward - before
        self.taken = max(self.taken, taken / cost if cost else 0.0)
        point = self.kept.points[place, order]
        return None if point is None else (sample, point)


def causes_of(
    plan: TargetPlan,
    build: Build,
    kept: Kept,
    visited: Sequence[Place],
    findings: Sequence[Finding],
) -> Iterator[Finding]:
    """The worst finding of each failing (code, output, input) again, with its cause where one is found."""
    measurements = _Measurements(build, kept)
    kept.with_what_holds = partial(with_what_holds, kept=kept, build=build)
    repairs_of(kept).further = further_places(visited, kept, build)
    groups: dict[tuple[str, int | None, str | None], list[Finding]] = {}
    for finding in findings:
        if is_diagnosed(finding):
            groups.setdefault((finding.code, finding.output, finding.input), []).append(finding)
    earlier: dict[tuple[int, int | None, str | None], list[Pair]] = {}
    chosen = [min(group, key=_telling) for group in groups.values()]
    diagnosed: list[tuple[Finding, list[Pair], Cause | None]] = []
    for worst in sorted(chosen, key=lambda f: (_is_special(f), f.code)):
        pairs = _pairs(plan, measurements, visited, findings, worst)
        place = DIAGNOSED[worst.code], worst.output, worst.input
        # At large values little is left of a function: what explains them alone may be luck.
        pairs = _together(pairs, earlier.setdefault(place, pairs))
        named = diagnose(pairs) if pairs else None
        cause = None if named is None else named.cause
        if named is not None:
            kept.causes[worst.code, worst.output, worst.input] = named
        diagnosed.append((worst, pairs, cause))
    causes = together([cause for _, _, cause in diagnosed])
    for (worst, pairs, _), cause in zip(diagnosed, causes, strict=True):
        found = replace(worst, derivable=_is_derivable(measurements, worst, cause))
        if cause is not None:
            yield _reported(found, cause, pairs, _options_of(found, visited))
        elif found.derivable:
            yield found
    yield from _changed(plan, measurements, visited, findings)


def _changed(
    plan: TargetPlan, measurements: _Measurements, visited: Sequence[Place], findings: Sequence[Finding]
) -> Iterator[Finding]:
    """Findings that say the cause themselves, each once, with the change that takes the mistake back."""
    seen: set[tuple[str, int | None, str | None]] = set()
    for finding in sorted(filter(wants_a_change, findings), key=_telling):
        place = finding.code, finding.output, finding.input
        if place in seen:
            continue
        seen.add(place)
        if finding.code in OF_SECOND_ORDER | {WRITES_GRAD_OUTPUT, OF_FROZEN_INPUTS}:
            samples = _samples_beside(measurements, visited, finding)
            points, change = len(samples), _change_at(samples, measurements.kept, finding.code)
        else:
            pairs = _pairs_of_any(plan, measurements, visited, findings, finding)
            points = len(pairs)
            cause = one_edit(pairs) if pairs and all(pair.usable for pair in pairs) else None
            change = None if cause is None else cause.change
        if change is not None and change.patch is not None:
            yield replace(finding, changes=_changes(change, points))


def _change_at(samples: Sequence[Sample], kept: Kept, code: str) -> InBackward | None:
    """The change of backward that takes back at several samples what a code says; None for none."""
    owns = [own_backward_of(sample, repairs_of(kept)) for sample in samples]
    own = [one for one in owns if one is not None]
    if code == WRITES_GRAD_OUTPUT:
        return out_of_place(own)
    if code == OF_FROZEN_INPUTS:
        return asked_of_each_input(own, partial(are_right_with_inputs_frozen, samples))
    return recomputed_in(own, partial(are_right_in_second_order, samples))


def _pairs_of_any(
    plan: TargetPlan,
    measurements: _Measurements,
    visited: Sequence[Place],
    findings: Sequence[Finding],
    finding: Finding,
) -> list[Pair]:
    """The points of a finding; of one that is of no input alone, those of the first input that is wrong."""
    sample = _sample_at(measurements, visited, finding)
    names = () if sample is None else sample.problem.input_names
    asked = names if finding.input is None else (finding.input,)
    found = (_pairs(plan, measurements, visited, findings, replace(finding, input=name)) for name in asked)
    return next(filter(None, found), [])


def _sample_at(measurements: _Measurements, visited: Sequence[Place], finding: Finding) -> Sample | None:
    place = next((p for p in visited if finding.case is not None and p.is_of(finding.case)), None)
    sample = None if place is None else measurements.kept.sample(place, measurements.build)
    return sample if isinstance(sample, Sample) else None


def _samples_beside(measurements: _Measurements, visited: Sequence[Place], finding: Finding) -> list[Sample]:
    """The sample of a finding, and the first of every other case as far as the allowance goes."""
    first = _sample_at(measurements, visited, finding)
    places = [p for p in visited if p.point is Point.TYPICAL and p.draw == 0]
    others = (measurements.kept.sample(place, measurements.build) for place in places)
    found = [] if first is None else [first]
    for sample in others:
        calls = sum(map(_cost, found))
        if isinstance(sample, Sample) and found and sample.case.id != found[0].case.id:
            if not measurements.kept.allowance.covers(calls + _cost(sample)):
                break
            found.append(sample)
    return found


def _changes(one: InBackward, points: int) -> tuple[SourceChange, ...]:
    patch = None if one.patch is None else replace(one.patch, points=points)
    return (SourceChange(one.file, one.line, one.before, one.after, patch),)


def with_what_holds(reported: Finding, place: Place, kept: Kept, build: Build) -> Finding:
    """A finding with those of its changes that are right at a place; its cause is said without the others."""
    sample, repairs = kept.sample(place, build), repairs_of(kept)
    own = own_backward_of(sample, repairs) if reported.changes and isinstance(sample, Sample) else None
    if own is None:
        return reported
    there = FurtherPlace(own, {})
    wrong = frozenset(own.problem.input_names if reported.input is None else (reported.input,))
    changes = tuple(
        change
        for change in reported.changes
        if not any(there.refutes(backward, wrong) for backward in known_backwards(change.patch, repairs))
    )
    if changes == reported.changes:
        return reported
    found = replace(reported, changes=changes, cause="", hint="", factor=None)
    named = kept.causes.get((reported.code, reported.output, reported.input))
    if named is None or not named.cause.what:
        return found
    return _reported(found, replace(named.cause, change=None), named.pairs, ())


def _options_of(found: Finding, visited: Sequence[Place]) -> Options:
    """The options of the case, where others were verified as well: a cause is tested at these alone."""
    own = () if found.case is None else found.case.options
    return own if any(p.case.options != own for p in visited) else ()


def _reported(found: Finding, cause: Cause, pairs: Sequence[Pair], options: Options) -> Finding:
    said = in_words(cause, pairs, options)
    if DIAGNOSED[found.code] > 1:
        said = f"The first derivative is right. {said} {FIRST_ORDER_ONLY}"
    changes = () if cause.change is None else _changes(cause.change, len(pairs))
    whole = cause.factor if cause.name == "constant-factor" else None
    # Without its measured digits: 3 and not 2.999999999999425.
    factor = None if whole is None else float(f"{whole:.{FACTOR_DIGITS}g}")
    return replace(found, cause=cause.name, factor=factor, hint=said, changes=changes)


def _is_derivable(measurements: _Measurements, worst: Finding, cause: Cause | None) -> bool:
    """Whether a backward can be written from the reference, or forward itself: traced, and without a loop."""
    options = () if worst.case is None else worst.case.options
    samples = {s.case.sizes: s for s in measurements.samples() if s.case.options == options}
    own = {TargetKind.FUNCTION, TargetKind.CUSTOM_OP}
    is_meant = DIAGNOSED[worst.code] == 1 and (cause is None or cause.name != NOT_MEANT)
    unfit = any(s.is_native or s.subject.target.kind not in own for s in samples.values())
    if not samples or not is_meant or unfit:
        return False
    composites = {key: composite_of(sample) for key, sample in samples.items()}
    counts = [
        None if one is None else operations(partial(one.evaluate, samples[key].problem.primals))
        for key, one in composites.items()
    ]
    return len(set(counts)) == 1 and counts[0] is not None and counts[0] <= MOST_OPERATIONS


def _together(pairs: list[Pair], known: Sequence[Pair]) -> list[Pair]:
    """Points of one block, those that are wrong first; none where there is nothing to explain."""
    seen = {id(pair.point) for pair in pairs}
    both = [*pairs, *(p for p in known if id(p.point) not in seen)] if pairs else []
    return sorted(both, key=lambda pair: not pair.is_wrong)


def _is_special(finding: Finding) -> bool:
    return finding.case is not None and finding.case.point is not Point.TYPICAL


def _telling(finding: Finding) -> tuple[bool, float]:
    """As the report chooses among findings on the same input: ordinary values first, then the worst."""
    return _is_special(finding), -finding.badness


def _pairs(
    plan: TargetPlan,
    measurements: _Measurements,
    visited: Sequence[Place],
    findings: Sequence[Finding],
    worst: Finding,
) -> list[Pair]:
    """The block of a finding at the points that a cause must explain; empty if it is not to be seen there."""
    case = worst.case
    if case is None:
        return []
    own = [p for p in visited if p.case.options == case.options]
    here = [p for p in own if p.is_of(case)]
    draws = [p for p in own if p.case.id == case.id and p not in here and p.point is Point.TYPICAL]
    if case.point is not Point.TYPICAL:
        # Ordinary values may all be right there: the same regime once more.
        draws = [*(_drawn_again(p, k) for p in here for k in DRAWS), *draws]
    spares = [spare for spare in plan.spares if spare.options == case.options]
    pairs: list[Pair] = []
    # Where the case itself is too large to be measured, a spare one is small.
    for draw_places in ([*here, *draws], *([Place(s, Point.TYPICAL, d) for d in DRAWS] for s in spares)):
        found = [p for place in draw_places if (p := _pair(measurements, place, worst)) is not None]
        pairs = pairs or [p for p in found if not p.is_nothing]
    if not pairs or not pairs[0].is_wrong:
        return []
    there = [Place(s, case.point, case.draw) for s in spares] if case.point is not Point.TYPICAL else []
    others = [*there, *_of_other_sizes(spares, own, case.sizes)]
    pairs += _first_pair(measurements, others, worst, but=pairs)
    passed = [p for p in own if p not in here + draws and not _failed_at(findings, worst, p)]
    return pairs + _first_pair(measurements, passed, worst, but=pairs)


def _drawn_again(place: Place, number: int) -> Place:
    return replace(place, case=replace(place.case, seed=place.case.seed + 1 + number))


def _of_other_sizes(
    spares: Sequence[Case], own: Sequence[Place], sizes: tuple[tuple[str, int], ...]
) -> list[Place]:
    """Spare cases first: in them every size is another one."""
    others = [p for p in own if p.case.sizes != sizes and all(n > 1 for _, n in p.case.sizes)]
    return [Place(c, Point.TYPICAL, 0) for c in spares] + [p for p in others if p.point is Point.TYPICAL]


def _first_pair(
    measurements: _Measurements, places: Sequence[Place], worst: Finding, *, but: Sequence[Pair]
) -> list[Pair]:
    """The block at the first place where it can be measured, and has not been."""
    measured = {id(pair.point) for pair in but}
    shapes = {pair.point.shapes for pair in but}
    found: list[Pair] = []
    for place in places:
        pair = _pair(measurements, place, worst)
        if pair is None or not pair.usable or id(pair.point) in measured:
            continue
        # Another size first; at the sizes that are known already there is less to learn.
        if pair.point.shapes not in shapes or not pair.is_wrong:
            return [pair]
        found = found or [pair]
    return found


def _pair(measurements: _Measurements, place: Place, worst: Finding) -> Pair | None:
    order = DIAGNOSED.get(worst.code, 1)
    found = measurements.at(place, order)
    if found is None:
        return None
    sample, point = found
    # Of second order, there is one output for each input of the first.
    positions = sample.problem.output_positions if order == 1 else tuple(range(len(point.outputs.blocks)))
    output = positions[0] if worst.output is None else worst.output  # one that is of no output alone
    if worst.input not in point.input_names or output not in positions:
        return None
    if point.raises and worst.code != "GV102":  # at guessed sizes, as of an index that is beyond them
        return None
    return Pair(point, positions.index(output), point.input_names.index(worst.input))


def _failed_at(findings: Sequence[Finding], worst: Finding, place: Place) -> bool:
    """Whether the block was found wrong at a place."""
    return any(
        f.case is not None
        and place.is_of(f.case)
        and f.input in {worst.input, None}
        and f.output in {worst.output, None}
        for f in findings
    )


def _cost(sample: Sample) -> int:
    """About what both Jacobians and their confirmation take."""
    return 8 * sample.inputs.size + 2 * sample.problem.outputs.size
