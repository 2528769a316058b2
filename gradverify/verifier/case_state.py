"""What the points of one case add up to, and how that is reported when its last point is judged."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import torch

from gradverify.events import CaseVerified
from gradverify.model import Case, Evaluations, Finding, Outcome, Point, Swept
from gradverify.rules import CHECK_FAMILIES, Family
from gradverify.verifier.checks.branches import branches_seen
from gradverify.verifier.checks.result import WORSE, CheckResult, Uncovered
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.unknown import family_of, not_verified
from gradverify.verifier.interpreter.launches import interpreted

BAD = ("wrong", "no", "partial", "yes", "not-run")
"""What is known of a capability, the worst first: it is no better than at its worst point."""


def _worse(one: str, other: str) -> str:
    """Of two words for what a Function is capable of the worse one; an empty one says nothing."""
    return min((w for w in (one, other) if w), key=BAD.index, default="")


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
    """Of the double backward."""
    capabilities: dict[str, str] = field(default_factory=dict)
    """Others, by name."""
    uncovered: list[dict[tuple[int, str], Uncovered]] = field(default_factory=list)
    """For each typical draw."""
    entries: bool = False
    """Some Jacobian had entries."""
    remarks: dict[str, None] = field(default_factory=dict)
    last: Sample | None = None
    swept: Swept = field(default_factory=Swept)
    judged: dict[tuple[int, str], bool] = field(default_factory=dict)
    """By (output position, input name): whether some entry, if there is any, was judged at some point."""
    applied: set[tuple[str, str]] = field(default_factory=set)
    """(file, qualified name) of the Functions that its calls apply."""
    interpreted_before: int = field(default_factory=interpreted)

    def add(self, family: Family, result: CheckResult) -> None:
        """Add what one family of checks says of a point."""
        self.outcomes[family] = max(self.outcomes[family], result.outcome, key=WORSE.index)
        self.swept = self.swept.joined(result.swept)
        self.not_judged += result.not_judged

    def count_calls(self, sample: Sample) -> None:
        """Add the calls that were made of a sample."""
        counter = sample.problem.counter
        self.evaluations += Evaluations(counter.forward, counter.backward)
        self.entries |= bool(sample.inputs.size and sample.problem.outputs.size)

    def add_point(self, sample: Sample, results: dict[Family, CheckResult]) -> None:
        """Add a judged point."""
        self.swept = self.swept.joined(branches_seen(sample))
        self.count_calls(sample)
        self.points += 1
        self._add_pairs(sample, results)
        for family in (Family.CONTRACT, Family.PRECISION):
            for name, said in results[family].capabilities:
                self.capabilities[name] = _worse(self.capabilities.get(name, ""), said)
        self.capability = _worse(self.capability, results[Family.GRADGRADCHECK].capability)
        if sample.point is not Point.TYPICAL:
            return
        self.uncovered.append({k: v for result in results.values() for k, v in result.uncovered.items()})
        visible = results[Family.GRADCHECK].smallest_visible_error
        self.visible = min((v for v in (visible, self.visible) if v is not None), default=None)

    def _add_pairs(self, sample: Sample, results: dict[Family, CheckResult]) -> None:
        ran = any(result.outcome is not Outcome.NOT_RUN for result in results.values())
        uncovered = results[Family.GRADCHECK].uncovered
        for pair in itertools.product(sample.problem.output_positions, sample.problem.input_names):
            unknown = uncovered.get(pair)
            judged = ran and (unknown is None or not (unknown.mask.numel() and unknown.mask.all()))
            self.judged[pair] = self.judged.get(pair, False) or judged

    def never_judged(self) -> list[Finding]:
        """GV109 for every pair some entry of which was judged at no typical draw."""
        if self.last is None or not self.uncovered:
            return []
        findings = []
        for position, name in sorted(set.intersection(*map(set, self.uncovered))):
            found = [u[position, name] for u in self.uncovered]
            mask = found[0].mask
            if len({f.mask.shape for f in found}) == 1:
                mask = torch.stack([f.mask for f in found]).all(dim=0)
            if not mask.any():
                continue
            findings.append(not_verified(self.last, position, name, replace(found[-1], mask=mask)))
            family = family_of(name)
            if self.outcomes[family] is not Outcome.FAILED:
                self.outcomes[family] = Outcome.INCONCLUSIVE
        return findings

    def verified(self, case: Case, *, no_gradient: bool = False) -> CaseVerified:
        """Tell of a case whose last point is judged."""
        # An operator's backward may be no Python function that could be read inside.
        compiled = self.last and self.last.subject.operator is not None and self.last.subject.reader is None
        return CaseVerified(
            case_id=case.id,
            checks=tuple((family.value, self.outcomes[family]) for family in CHECK_FAMILIES),
            evaluations=self.evaluations,
            points=self.points,
            smallest_visible_error=self.visible,
            not_judged=self.not_judged,
            capabilities=(
                ("double_backward", self.capability or "not-run"),
                *((("contract", "partial"),) if compiled else ()),
                *self.capabilities.items(),
            ),
            no_gradient=no_gradient,
            empty=self.last is not None and not self.entries,
            unjudged=tuple(pair for pair, judged in self.judged.items() if not judged),
            remarks=tuple(self.remarks),
            swept=replace(self.swept, interpreted=interpreted() > self.interpreted_before),
            applied=tuple(sorted(self.applied)),
        )
