"""What the points of one case add up to, and how that is told when its last point is judged."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

from gradverify.events import CaseVerified
from gradverify.model import Case, Evaluations, Finding, Outcome, Point, Swept
from gradverify.rules import Family
from gradverify.verifier.checks.branches import branches_seen
from gradverify.verifier.checks.not_verified import family_of, in_every, not_verified
from gradverify.verifier.checks.result import CheckResult, Uncovered
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.interpreting import launches

CHECK_FAMILIES = (
    Family.GRADCHECK,
    Family.GRADGRADCHECK,
    Family.REFERENCE,
    Family.CONTRACT,
    Family.PRECISION,
)

_WORSE = (Outcome.NOT_RUN, Outcome.PASSED, Outcome.INCONCLUSIVE, Outcome.FAILED)
"""Outcomes from the least to the most telling: a case has that of its worst point."""


@dataclass
class CaseState:
    """What the points of one case add up to."""

    outcomes: dict[Family, Outcome] = field(
        default_factory=lambda: dict.fromkeys(CHECK_FAMILIES, Outcome.NOT_RUN)
    )
    evaluations: Evaluations = field(default_factory=Evaluations)
    points: int = 0
    visible: float | None = None
    not_judged: int = 0
    capability: str = ""
    transforms: dict[str, str] = field(default_factory=dict)
    uncovered: list[dict[tuple[int, str], Uncovered]] = field(default_factory=list)
    """For each typical draw."""
    entries: bool = False
    """Some Jacobian had entries."""
    remarks: list[str] = field(default_factory=list)
    last: Sample | None = None
    swept: Swept = field(default_factory=Swept)
    judged: dict[tuple[int, str], bool] = field(default_factory=dict)
    """By (output position, input name): whether some entry, if there is any, was judged at some point."""
    launches_before: int = field(default_factory=launches)

    def add(self, family: Family, result: CheckResult) -> None:
        """Add what one family of checks says of a point."""
        self.outcomes[family] = max(self.outcomes[family], result.outcome, key=_WORSE.index)
        self.swept = self.swept.joined(result.swept)
        self.not_judged += result.not_judged

    def add_point(self, sample: Sample, results: dict[Family, CheckResult]) -> None:
        """Add a judged point."""
        self.swept = self.swept.joined(branches_seen(sample))
        counter = sample.problem.counter
        self.evaluations += Evaluations(counter.forward, counter.backward)
        self.points += 1
        self.entries |= has_entries(sample)
        self._add_pairs(sample, results)
        for family in (Family.CONTRACT, Family.PRECISION):
            self.transforms |= dict(results[family].capabilities)
        self.capability = results[Family.GRADGRADCHECK].capability or self.capability
        if sample.point is not Point.TYPICAL:
            return
        self.uncovered.append({k: v for result in results.values() for k, v in result.uncovered.items()})
        visible = results[Family.GRADCHECK].smallest_visible_error
        if visible is not None:
            self.visible = visible if self.visible is None else min(self.visible, visible)

    def _add_pairs(self, sample: Sample, results: dict[Family, CheckResult]) -> None:
        ran = any(results[family].outcome is not Outcome.NOT_RUN for family in Family if family in results)
        uncovered = results[Family.GRADCHECK].uncovered
        for pair in itertools.product(sample.problem.output_positions, sample.problem.input_names):
            unknown = uncovered.get(pair)
            judged = ran and (unknown is None or not (unknown.mask.numel() and unknown.mask.all()))
            self.judged[pair] = self.judged.get(pair, False) or judged


def has_entries(sample: Sample) -> bool:
    """Whether its Jacobian has any."""
    return bool(sample.inputs.size and sample.problem.outputs.size)


def case_verified(case: Case, state: CaseState, *, no_gradient: bool = False) -> CaseVerified:
    """Tell of a case whose last point is judged."""
    return CaseVerified(
        case_id=case.id,
        checks=tuple((family.value, state.outcomes[family]) for family in CHECK_FAMILIES),
        evaluations=state.evaluations,
        points=state.points,
        smallest_visible_error=state.visible,
        not_judged=state.not_judged,
        capabilities=(
            ("double_backward", state.capability or "not-run"),
            *((("contract", "partial"),) if state.last is not None and _is_compiled(state.last) else ()),
            *state.transforms.items(),
        ),
        no_gradient=no_gradient,
        empty=state.last is not None and not state.entries,
        unjudged=tuple(pair for pair, judged in state.judged.items() if not judged),
        remarks=tuple(state.remarks),
        swept=replace(state.swept, interpreted=launches() > state.launches_before),
    )


def _is_compiled(sample: Sample) -> bool:
    """Whether an operator's backward is no Python function that could be read inside."""
    return sample.subject.operator is not None and sample.subject.reader is None


def never_judged(state: CaseState) -> list[Finding]:
    """GV109 for every pair some entry of which was judged at no typical draw."""
    if state.last is None or not state.uncovered:
        return []
    findings = []
    for key in sorted(set.intersection(*(set(u) for u in state.uncovered))):
        found = [u[key] for u in state.uncovered]
        shapes = {tuple(f.mask.shape) for f in found}
        mask = found[0].mask if len(shapes) > 1 else in_every([f.mask for f in found])
        if not mask.any():
            continue
        position, name = key
        findings.append(not_verified(state.last, position, name, replace(found[-1], mask=mask)))
        family = family_of(name)
        if state.outcomes[family] is not Outcome.FAILED:
            state.outcomes[family] = Outcome.INCONCLUSIVE
    return findings
