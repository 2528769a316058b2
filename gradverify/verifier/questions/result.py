"""What one family of checks says about one sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradverify.model import Finding, Outcome, RaisedError, Severity, Swept
from gradverify.verifier.witnesses.answers import Asked, Imprecise, Judgement, Right

OTHER_VALUES = "Try other values: a narrower `range`, `avoid` for a kink, another `domain`."
"""What to try where values are to blame."""

SAME_NUMBERS = (
    "Draw random numbers from torch's, NumPy's or Python's global generator, which are replayed for each "
    "call, or take them as an input. What it reads beside its inputs must not change from call to call."
)
"""What to try where forward gives other values at the same inputs."""


NOT_REPEATED = "not-repeated"
"""The cause of a gradient that is another one each time, forward and every random state being the same."""


WORSE = (Outcome.NOT_RUN, Outcome.PASSED, Outcome.INCONCLUSIVE, Outcome.FAILED)
"""Outcomes from the least to the most telling: what has several has its worst."""


@dataclass(frozen=True)
class Uncovered:
    """Why one (output, input) pair could not be judged at this point."""

    reason: str
    hint: str = OTHER_VALUES


@dataclass(frozen=True)
class CheckResult:
    """Findings and the outcome of one family at one point."""

    findings: tuple[Finding, ...] = ()
    outcome: Outcome = Outcome.PASSED
    uncovered: dict[tuple[int, str], Uncovered] = field(default_factory=dict)
    """By (output position, input name)."""
    smallest_visible_error: float | None = None
    capability: str = ""
    """`yes`, `no`, `wrong` or `not-run`: of a double backward, or of one of torch's transforms."""
    capabilities: tuple[tuple[str, str], ...] = ()
    """What torch's transforms made of it: (name, `yes` | `no` | `wrong` | `not-run`) pairs."""
    swept: Swept = field(default_factory=Swept)
    """What the questions about a verified case went over."""
    not_judged: int = 0
    """Entries that differ by what the rounding of the target's own operations explains."""
    witnesses: frozenset[str] = frozenset()
    """Those that spoke."""

    @staticmethod
    def of(*found: Finding | None, calls: Sequence[str] = (), **fields: Any) -> CheckResult:  # noqa: ANN401
        """Of the findings that there are, failed with an error; the names of the calls that gave them."""
        findings = tuple(one for one in found if one is not None)
        return CheckResult(
            findings, outcome_of(findings), swept=Swept(calls=tuple(dict.fromkeys(calls))), **fields
        )

    def beside(self, other: CheckResult) -> CheckResult:
        """Both results of one family as one: the worse outcome, and all that they say."""
        return replace(
            self,
            findings=(*self.findings, *other.findings),
            outcome=max(self.outcome, other.outcome, key=WORSE.index),
            capabilities=(*self.capabilities, *other.capabilities),
            swept=self.swept.joined(other.swept),
            witnesses=self.witnesses | other.witnesses,
        )


@dataclass(frozen=True)
class FirstOrder:
    """What is known of the gradient: later checks build on it."""

    result: CheckResult
    single_precision: bool = False
    """Forward computes in float32 inside, so backward may."""
    proven: bool = False
    """By the witnesses, or by torch under `--engine torch`."""
    judged: bool = True
    """Something of the Jacobian could be measured."""
    raised: RaisedError | None = None
    """What backward raised."""
    asked: Asked | None = None
    """The claim with its witnesses; None where nothing could be asked."""
    judgement: Judgement | None = None
    """None where backward raised."""

    @property
    def verified(self) -> bool:
        """Backward gives the derivative at this point, as far as it could be measured."""
        return self.proven and self.result.outcome is Outcome.PASSED

    @property
    def whole(self) -> Asked | None:
        """The claim with its witnesses where every entry is right: what builds on it may be asked."""
        answers = {} if self.judgement is None else self.judgement.answers
        right = all(isinstance(a, Right | Imprecise) for a in answers.values())
        return self.asked if self.judgement is not None and right else None

    @property
    def closed(self) -> bool:
        """Proof or agreement closed it: there is no kink, and no digits are lost."""
        return self.judgement is not None and self.judgement.closed


def errors_of(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The errors among some findings."""
    return tuple(f for f in findings if f.severity is Severity.ERROR)


def outcome_of(findings: Iterable[Finding]) -> Outcome:
    """Failed with an error among the findings, else passed."""
    return Outcome.FAILED if errors_of(findings) else Outcome.PASSED


NOT_RUN = CheckResult(outcome=Outcome.NOT_RUN)
"""What was not asked."""
