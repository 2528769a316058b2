"""What the points of one case add up to, and how that is reported when its last point is judged."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch

from gradverify.events import CaseVerified
from gradverify.model import Case, Evaluations, Finding, Outcome, Point, Swept
from gradverify.rules import CHECK_FAMILIES, Family
from gradverify.verifier.guard import Raised
from gradverify.verifier.interpreter.launches import interpreted
from gradverify.verifier.questions.findings import WORSE, CheckResult, Uncovered, count_of, not_verified
from gradverify.verifier.questions.results import values_at
from gradverify.verifier.questions.subject import Sample

NEXT = 2.0**-12
"""How far values are moved, relative, to see whether forward has none but at one point."""

DECLARE = "Declare values at which forward has one (`range:`, `domain:`), or correct forward."

BAD = ("wrong", "no", "partial", "yes", "not-run")
"""What is known of a capability, the worst first: it is no better than at its worst point."""


def _entries_of(sample: Sample, pairs: Iterable[tuple[int, str]]) -> int:
    """How many entries the Jacobians of some (output position, input name) have."""
    problem = sample.problem
    rows = dict(zip(problem.output_positions, problem.outputs.blocks, strict=True))
    columns = dict(zip(problem.input_names, sample.inputs.blocks, strict=True))
    return sum(rows[o].size * columns[i].size for o, i in pairs)


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
    capabilities: dict[str, str] = field(default_factory=lambda: {"double_backward": ""})
    unknown: list[dict[tuple[int, str], Uncovered]] = field(default_factory=list)
    """For each typical draw."""
    entries: bool = False
    """Some Jacobian had entries."""
    remarks: dict[str, None] = field(default_factory=dict)
    last: Sample | None = None
    swept: Swept = field(default_factory=Swept)
    judged: dict[tuple[int, str], bool] = field(default_factory=dict)
    """By (output position, input name): whether it was judged at some point."""
    applied: set[tuple[str, str]] = field(default_factory=set)
    """(file, qualified name) of the Functions that its calls apply."""
    witnesses: set[str] = field(default_factory=set)
    """Those that spoke."""
    finite: list[tuple[Sample, torch.Tensor]] = field(default_factory=list)
    """Of each declared sample: whether forward has a value, for each entry of its outputs."""
    interpreted_before: int = field(default_factory=interpreted)

    def add(self, family: Family, result: CheckResult) -> None:
        """Add what one family of checks says of a point."""
        self.outcomes[family] = max(self.outcomes[family], result.outcome, key=WORSE.index)
        self.swept = self.swept.joined(result.swept)
        self.not_judged += result.not_judged
        self.witnesses |= result.witnesses
        for name, said in (("double_backward", result.capability), *result.capabilities):
            self.capabilities[name] = _worse(self.capabilities.get(name, ""), said)

    def add_point(self, sample: Sample, results: dict[Family, CheckResult]) -> None:
        """Add all that was found at a declared point."""
        self.last = sample
        for family, result in results.items():
            if result.uncovered and not result.findings:
                # What nobody could measure at one point is counted; at no typical one, it is told at the end.
                several = max(result.not_judged, _entries_of(sample, result.uncovered))
                result = replace(result, outcome=Outcome.NOT_RUN, not_judged=several)  # noqa: PLW2901
            self.add(family, result)
        self.count_calls(sample)
        self.points += 1
        first = results[Family.GRADCHECK]
        ran = any(result.outcome is not Outcome.NOT_RUN for result in results.values())
        for pair in itertools.product(sample.problem.output_positions, sample.problem.input_names):
            self.judged[pair] = self.judged.get(pair, False) or (ran and pair not in first.uncovered)
        if sample.point is Point.TYPICAL:
            self.unknown.append({k: v for one in results.values() for k, v in one.uncovered.items()})
            seen = (v for v in (first.smallest_visible_error, self.visible) if v is not None)
            self.visible = min(seen, default=None)

    def count_calls(self, sample: Sample) -> None:
        """Add the calls that were made of a sample."""
        counter = sample.problem.counter
        self.evaluations += Evaluations(counter.forward, counter.backward)
        self.entries |= bool(sample.inputs.size and sample.problem.outputs.size)

    def note_values(self, sample: Sample) -> None:
        """Note where forward has values, where no mask or index may take them."""
        masked = any(isinstance(a.value, torch.Tensor) and not a.differentiable for a in sample.arguments)
        values = None if masked else values_at(sample)
        if values is not None:
            self.finite.append((sample, values.isfinite()))

    def without_value(self) -> Iterator[Finding]:
        """GV109 where forward is not finite at declared values, and next to them, and finite at others.

        An entry that has a value next to these has none at a single point, as a quotient at a tie.
        """
        for sample, found in self.finite:
            lost = ~found & torch.stack([other for _, other in self.finite if len(other) == len(found)]).any(
                0
            )
            x = sample.inputs.flatten(sample.problem.primals)
            near = sample.inputs.unflatten(x * (1 + NEXT * torch.linspace(1, 2, len(x))))
            beside = sample.problem.evaluate(near) if lost.any() else None
            if beside is None or isinstance(beside, Raised):
                continue
            lost &= ~sample.problem.outputs.flatten(beside.value).isfinite()
            if lost.any():
                said = f"forward has no value at {count_of(int(lost.sum()), lost.numel())} (nan or inf)"
                self.add(Family.GRADCHECK, CheckResult(outcome=Outcome.INCONCLUSIVE))
                yield sample.finding("GV109", f"{said}, as it has at other declared values", hint=DECLARE)
                return

    def never_judged(self) -> list[Finding]:
        """GV109 for every pair that was judged at no typical draw; one for all that share a reason."""
        if self.last is None or not self.unknown:
            return []
        *_, last = self.unknown
        never = {pair: last[pair] for pair in sorted(set.intersection(*map(set, self.unknown)))}
        if never:
            self.add(Family.GRADCHECK, CheckResult(outcome=Outcome.INCONCLUSIVE))
        problem, reasons = self.last.problem, {unknown.reason for unknown in never.values()}
        every = set(itertools.product(problem.output_positions, problem.input_names))
        if len(every) > 1 and set(never) == every and len(reasons) == 1:
            said = f"no gradient could be verified: {reasons.pop()}"
            return [self.last.finding("GV109", said, hint=next(iter(never.values())).hint)]
        return [not_verified(self.last, *pair, unknown) for pair, unknown in never.items()]

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
            witnesses=tuple(sorted(self.witnesses)),
            capabilities=(
                *((("contract", "partial"),) if compiled else ()),
                *((name, said or "not-run") for name, said in self.capabilities.items()),
            ),
            no_gradient=no_gradient,
            empty=self.last is not None and not self.entries,
            unjudged=tuple(pair for pair, judged in self.judged.items() if not judged),
            remarks=tuple(self.remarks),
            swept=replace(self.swept, interpreted=interpreted() > self.interpreted_before),
            applied=tuple(sorted(self.applied)),
        )
