"""What the samples of one case add up to, pair by pair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gradverify.events import CaseVerified
from gradverify.model import Case, Evaluations, Finding, Outcome, Swept
from gradverify.rules import CHECK_FAMILIES, Family
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.verify.words import not_known
from gradverify.verifier.witnesses.answers import Imprecise, Judgement, NotJudged, Right, Unknown, Wrong

WORSE = (Outcome.NOT_RUN, Outcome.PASSED, Outcome.INCONCLUSIVE, Outcome.FAILED)
"""From the least to the most telling."""

Pair = tuple[int, str]
"""(output position, input name)."""


@dataclass
class CaseState:
    """One case while its samples are asked."""

    outcomes: dict[Family, Outcome] = field(
        default_factory=lambda: dict.fromkeys(CHECK_FAMILIES, Outcome.NOT_RUN)
    )
    evaluations: Evaluations = field(default_factory=Evaluations)
    points: int = 0
    visible: float | None = None
    not_judged: int = 0
    double_backward: str = ""
    judged: dict[Pair, bool] = field(default_factory=dict)
    """Whether a pair was right at some typical sample."""
    unknown: dict[Pair, tuple[Sample, Unknown | NotJudged]] = field(default_factory=dict)
    """The last answer that tells nothing, of a typical sample."""
    witnesses: set[str] = field(default_factory=set)
    """Those that spoke."""
    has_entries: bool = False
    compiled: bool = False
    swept: Swept = field(default_factory=Swept)
    no_gradient: bool = False
    """It declares none."""
    is_over: bool = False
    """There is no sample to go on with."""
    applied: set[tuple[str, str]] = field(default_factory=set)

    def worsen(self, family: Family, outcome: Outcome) -> None:
        """A family's outcome is its worst."""
        self.outcomes[family] = max(self.outcomes[family], outcome, key=WORSE.index)

    def add(self, sample: Sample, judgement: Judgement, *, typical: bool) -> None:
        """Add the first order of a sample."""
        names, positions = sample.problem.input_names, sample.problem.output_positions
        for (o, i), answer in judgement.answers.items():
            pair = positions[o], names[i]
            self.judged.setdefault(pair, False)
            if isinstance(answer, Right | Wrong | Imprecise):
                self.judged[pair] |= typical or isinstance(answer, Wrong)
            elif typical:
                self.unknown[pair] = sample, answer
            if isinstance(answer, NotJudged):
                self.not_judged += answer.count
            if isinstance(answer, Right) and answer.visible is not None and typical:
                self.visible = min(
                    answer.visible, self.visible if self.visible is not None else answer.visible
                )
        self.witnesses |= judgement.witnesses
        self.has_entries |= bool(sample.inputs.size and sample.problem.outputs.size)

    def count(self, sample: Sample) -> None:
        """Add the calls that were made of a sample."""
        counter = sample.problem.counter
        self.evaluations += Evaluations(counter.forward, counter.backward)
        counter.forward = counter.backward = 0

    def never_judged(self) -> Iterator[Finding]:
        """GV109 for each pair that was right at no typical sample."""
        for pair, right in sorted(self.judged.items()):
            if not right and pair in self.unknown:
                sample, answer = self.unknown[pair]
                self.worsen(Family.GRADCHECK, Outcome.INCONCLUSIVE)
                yield not_known(sample, *pair, answer)

    def verified(self, case: Case) -> CaseVerified:
        """Tell of the case once its last sample is asked."""
        return CaseVerified(
            case_id=case.id,
            checks=tuple((family.value, self.outcomes[family]) for family in CHECK_FAMILIES),
            evaluations=self.evaluations,
            points=self.points,
            smallest_visible_error=self.visible,
            witnesses=tuple(sorted(self.witnesses)),
            not_judged=self.not_judged,
            capabilities=(
                ("double_backward", self.double_backward or "not-run"),
                *((("contract", "partial"),) if self.compiled else ()),
            ),
            no_gradient=self.no_gradient,
            empty=self.points > 0 and not self.has_entries,
            unjudged=tuple(
                pair for pair, right in self.judged.items() if not right and pair not in self.unknown
            ),
            swept=self.swept,
            applied=tuple(sorted(self.applied)),
        )
