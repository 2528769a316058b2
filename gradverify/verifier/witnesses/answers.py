"""What the judge is asked, and what it answers for each (output, input)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import Counter
from gradverify.verifier.witnesses.claim import Claim, Map
from gradverify.verifier.witnesses.rounding import FACTOR, SIXTEEN_BITS, finite_part
from gradverify.verifier.witnesses.values import Values

Numbers = tuple[int, int]
"""(output, input), by number."""

WORST = 5
"""Entries that are kept of an answer or a comparison."""

CALLS_OF_A_SAMPLE = 150
"""Calls that a conflict may cost at one sample."""

CALLS_OF_A_TARGET = 400
"""Calls that all conflicts of one target may cost."""


class Reason(StrEnum):
    """Why an entry could not be judged."""

    NOISE = "noise"
    NO_VALUE = "no-value"
    DIVERGES = "diverges"
    KINK = "kink"
    END = "end"
    BUDGET = "budget"
    LOOP = "loop"
    ROUNDING = "rounding"
    HIDDEN = "hidden"
    SIXTEEN_BITS = "sixteen-bits"
    FLOAT32 = "float32"


@dataclass(frozen=True)
class Entry:
    """One entry of the Jacobian of one (output, input), by places in the flat output and input."""

    row: int | None
    """None: a weighted sum over all rows of the output."""
    column: int
    claimed: float
    expected: float
    bound: float


def worst_of(off: Tensor, at: Tensor) -> list[tuple[int, int]]:
    """Where the largest of some entries are (row, column), worst first."""
    order = torch.where(at, off, -1.0).reshape(-1).argsort(descending=True, stable=True)
    return [divmod(place, at.shape[1]) for place in order[: min(WORST, int(at.sum()))].tolist()]


def largest_of(derivatives: Tensor) -> float:
    """The largest finite one, absolute."""
    return float(finite_part(derivatives.abs()).max())


@dataclass(frozen=True)
class Right:
    """The claim is the derivative."""

    visible: float | None = None
    """The smallest relative error that would have been seen."""


@dataclass(frozen=True)
class Wrong:
    """The claim is not the derivative."""

    entries: tuple[Entry, ...]
    """Worst first."""
    wrong: int
    checked: int
    largest: float
    """The largest absolute derivative of the pair."""
    both: bool
    """Derived and values refute it."""
    nonfinite: bool = False
    smooth: bool = False
    """Derived is the same beside the point."""
    kink: bool = False
    """Forward has one slope on each side there, and the claim is no mean of them."""
    rounded: bool = False
    """Rounding of backward explains it."""
    missing: bool = False
    """The claim is zero at every entry of the pair."""
    again: bool = False
    """It was measured at another sample, and differs here too."""
    matrices: tuple[Tensor, Tensor, Tensor] | None = field(default=None, compare=False)
    """Claimed, expected, and which are wrong, where the whole pair is known (rows × columns)."""

    @staticmethod
    def of(claimed: Tensor, expected: Tensor, error: Tensor, at: Tensor, row: int, column: int) -> Wrong:
        """The answer for a pair whose entries are all known, from its first row and column; `at` are off."""
        entries = (
            Entry(row + r, column + c, float(claimed[r, c]), float(expected[r, c]), float(error[r, c]))
            for r, c in worst_of((claimed - expected).abs().nan_to_num(torch.inf), at)
        )
        return Wrong(
            tuple(entries),
            int(at.sum()),
            at.numel(),
            largest_of(expected),
            both=True,
            nonfinite=not claimed[at].isfinite().any(),
            missing=not claimed.any(),
            matrices=(claimed, expected, at),
        )

    @property
    def is_flat(self) -> bool:
        """Whether forward does not move where the claim says that it does."""
        return all(e.expected == 0 for e in self.entries)


@dataclass(frozen=True)
class Unknown:
    """The numbers cannot tell."""

    reason: Reason
    mismatch: bool
    """The claim differs from a witness, and nothing decides between them."""
    entry: Entry | None = None


@dataclass(frozen=True)
class NotJudged:
    """Nobody could measure these entries, and nothing speaks against them."""

    reason: Reason
    count: int
    whole: bool
    """No entry of the pair was judged, but for zeros beside those that are claimed."""
    visible: float | None
    """The smallest error that would have been seen at the others, relative."""


@dataclass(frozen=True)
class Imprecise:
    """The claim is the derivative to within the tolerance, and off by more than rounding explains."""

    share: float
    """The largest relative deviation."""
    entries: tuple[Entry, ...]
    count: int
    of: int
    short: bool
    """It has the digits of float32 alone."""


Answer = Right | Wrong | Unknown | NotJudged | Imprecise


@dataclass
class Trust:
    """What is known of a derived witness at one combination of options."""

    confirmed: bool = False
    refuted: bool = False


@dataclass
class Budget:
    """Calls that conflicts may still cost a target."""

    left: int = CALLS_OF_A_TARGET
    of_a_sample: int = CALLS_OF_A_SAMPLE


@dataclass
class Asked:
    """A claim at one point, with its witnesses."""

    problem: Map
    claim: Claim
    values: Values
    derived: Claim | None
    hides: bool
    """Something hides in the derived witness that is used."""
    trust: Trust
    rtol: float
    atol: float
    declared: bool
    budget: Budget
    counter: Counter
    wrong: frozenset[Numbers] = frozenset()
    """(output, input) pairs that were wrong at another sample: what differs there again is not measured."""
    loops: bool = False
    iterates: bool = False
    """Backward repeats a step until it converges."""
    formats: frozenset[torch.dtype] = frozenset()
    """Short ones that forward's numbers go through."""
    kept_short: bool = False
    """Forward, which takes float64, keeps numbers in float32 that it made without a dtype."""
    limited: bool = True
    """Rounding explains no more than a small share of a row: at declared values, and typical ones."""
    key: int = 0

    @property
    def seen(self) -> float:
        """The relative error that agreement with derived would not have missed."""
        return max(self.rtol, FACTOR * self.values.steps.epsilon)

    @property
    def sixteen(self) -> bool:
        """Whether forward computes in 16 bits or fewer inside."""
        return bool(self.formats & SIXTEEN_BITS)

    @property
    def witness(self) -> Claim | None:
        """The derived witness, unless values have refuted it."""
        return None if self.trust.refuted else self.derived

    def derived_rows(self, cotangents: Tensor) -> Tensor | None:
        """Derived's gradients; None without it, or where it raises."""
        found = None if self.witness is None else self.witness.rows(cotangents)
        return None if isinstance(found, Raised) else found

    @property
    def is_trusted(self) -> bool:
        """Whether derived decides where values cannot tell."""
        return self.trust.confirmed and not self.trust.refuted and not self.hides


@dataclass(frozen=True)
class Judgement:
    """An answer for each (output, input), and which witnesses spoke."""

    answers: dict[Numbers, Answer]
    witnesses: frozenset[str]
    closed: bool = False
    """By proof or agreement: nothing had to be measured, as at a kink or where digits are lost."""
    kink: bool = False
    """Forward has one where it was measured."""
