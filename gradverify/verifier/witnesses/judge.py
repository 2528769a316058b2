"""The judge between a claim and its witnesses: the only place where a gradient is found right or wrong.

The rules stand in `design.md`, *The one change*, and are applied in their order: proved by values, agreed with
derived, kinks and ties, loops, conflict. A proof or an agreement closes a sample; what stays open is measured
entry by entry, and between claim, derived and slope the table of conflicts decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import Counter, Layout, Problem
from gradverify.verifier.witnesses.claim import Claim, units
from gradverify.verifier.witnesses.rounding import FACTOR, explained, spread
from gradverify.verifier.witnesses.values import Difference, Slope, Values, differences, probe

MOST_ROWS = 32
"""Rows up to which a Jacobian is built row by row; of more, grad_outputs of random entries stand for them."""

MOST_ENTRIES = 2**22
"""Entries of such a Jacobian."""

CALLS_OF_A_SAMPLE = 100
"""Calls that a conflict may cost at one sample."""

CALLS_OF_A_TARGET = 400
"""The same of one target."""

MOST_COLUMNS = 3
"""Columns measured of one input: the worst, and others spread over it."""

BLUR = 0.1
"""A slope is seen if its error is within this share of the larger of slope and claim."""

OF_NOTHING = 1e-8
"""An absolute error of a slope that is zero in every row."""

SLIGHT = 1e-3
"""Share of the largest entry below which the end of a loop explains a difference."""

BESIDE = 2.0**-20
"""Points beside a kink, in units of each entry's scale."""

NEARER = 256.0
"""Nearer points at which a kink's gradients are as far apart, and a curve's are not."""

SHRINKS = 8.0
"""By how much a curve's come together at least."""

MOST_ALONE = 8
"""Entries that move alone beside a kink."""

MORE_WAYS = 8
"""Ways that are tried before a claim is found to be none of the gradients beside a kink."""

FEWEST_WAYS = 3
"""Ways to both sides of a kink without which nothing is said."""

ROOM = 1e-5
"""By how much gradients change between such points where nothing has a kink, as a share of the largest."""

OTHER_SHARE = 0.41421356237309515
"""The share of the usual steps at which a slope that refutes both witnesses is measured again."""

FINEST = 1e-6
"""Tolerances up to which digits below them are looked at."""

DIGITS_LOST = 1e-11
"""A relative deviation from derived that is worth asking for rounding."""

ROUNDINGS = 10.0
"""Spreads of both by which two right gradients may differ."""

MOST_ROUNDED = 3
"""Rows of which rounding is asked."""


class Reason(StrEnum):
    """Why an entry could not be judged."""

    NOISE = "noise"
    NO_VALUE = "no-value"
    DIVERGES = "diverges"
    KINK = "kink"
    BUDGET = "budget"
    LOOP = "loop"
    ROUNDING = "rounding"
    HIDDEN = "hidden"
    SIXTEEN_BITS = "sixteen-bits"


@dataclass(frozen=True)
class Entry:
    """One entry of the Jacobian of one (output, input), by places in the flat output and input."""

    row: int | None
    """None: a weighted sum over all rows of the output."""
    column: int
    claimed: float
    expected: float
    bound: float


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
    rounded: bool = False
    """What rounding of backward explains: the formula is right, and unstable."""
    missing: bool = False
    """The claim is zero at every entry of the pair."""
    again: bool = False
    """It was measured at another sample, and differs here too."""
    matrices: tuple[Tensor, Tensor, Tensor] | None = field(default=None, compare=False)
    """Claimed, expected, and which are wrong, where the whole pair is known (rows × columns)."""

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
    """No entry of the pair was judged."""


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


@dataclass
class Asked:
    """A claim at one point, with its witnesses."""

    problem: Problem
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
    wrong: frozenset[tuple[int, int]] = frozenset()
    """(output, input) pairs that were wrong at another sample: what differs there again is not measured."""
    loops: bool = False
    iterates: bool = False
    """Backward repeats a step until it converges."""
    sixteen: bool = False
    """Forward computes in 16 bits inside."""
    key: int = 0

    @property
    def witness(self) -> Claim | None:
        """The derived witness, unless values have refuted it."""
        return None if self.trust.refuted else self.derived


@dataclass(frozen=True)
class Judgement:
    """An answer for each (output, input), and which witnesses spoke."""

    answers: dict[tuple[int, int], Answer]
    witnesses: frozenset[str]


def judge(asked: Asked, *, prove: bool) -> Judgement | Raised:
    """Judge the claim; `prove` at the first draw of a listed case. What backward raises is handed back."""
    pairs = _pairs(asked.problem)
    if not asked.values.x.numel() or not asked.problem.outputs.size:
        return Judgement(dict.fromkeys(pairs, Right()), frozenset())
    if (not prove or asked.wrong) and asked.witness is not None:
        differing = _compared(asked)
        if isinstance(differing, Raised):
            return differing
        if differing == {} and asked.trust.confirmed and not asked.hides:
            return Judgement(dict.fromkeys(pairs, Right(asked.rtol)), frozenset({"derived"}))
        if differing and differing.keys() <= asked.wrong:  # no measurement would add to what is known
            answers = {pair: differing.get(pair, Right(asked.rtol)) for pair in pairs}
            return Judgement(answers, frozenset({"derived"}))
    proof = _proof(asked)
    if isinstance(proof, Raised):
        return proof
    if proof.closed and not proof.differs:
        spoke = frozenset({"values", "derived"} if proof.confirms else {"values"})
        return Judgement(dict.fromkeys(pairs, Right(proof.visible)), spoke)
    if asked.wrong.issuperset(pairs):
        return Judgement(dict.fromkeys(pairs, Wrong((), 0, 0, 0.0, both=False, again=True)), frozenset({"values"}))
    return _Conflict(asked, proof).judgement()


def _pairs(problem: Problem) -> list[tuple[int, int]]:
    outputs, inputs = len(problem.outputs.blocks), len(problem.primals)
    return [(o, i) for o in range(outputs) for i in range(inputs)]


def _compared(asked: Asked) -> dict[tuple[int, int], Wrong] | Raised | None:
    """Pairs in which claim and derived differ, for one dense grad_output of each output; None without derived."""
    outputs, witness = asked.problem.outputs, asked.witness
    if witness is None:
        return None
    u = probe(outputs.size, asked.key + 5)
    cotangents = torch.stack([_alone(u, rows) for rows in outputs.slices])
    cotangents = cotangents if len(cotangents) < 2 else torch.cat([cotangents, u[None]])
    mine, theirs = asked.claim.rows(cotangents), witness.rows(cotangents)
    if isinstance(mine, Raised):
        return mine
    if isinstance(theirs, Raised):
        return None
    off = _differing(asked, mine, theirs, cotangents)
    found: dict[tuple[int, int], Wrong] = {}
    full = [o for o, b in enumerate(outputs.blocks) if b.stop > b.start]
    for k, row in enumerate(off):
        for i, own in enumerate(asked.values.inputs.blocks):
            here = row[own.start : own.stop].nonzero()[:, 0].tolist()
            if here and k < len(full):
                j = own.start + here[0]
                entry = Entry(None, j, float(mine[k, j]), float(theirs[k, j]), torch.inf)
                found[full[k], i] = Wrong((entry,), len(here), own.stop - own.start, 0.0, both=False, again=True)
            elif here and not any(pair[1] == i for pair in found):
                found[-1, i] = Wrong((), 0, 0, 0.0, both=False)  # of all outputs together: nobody's yet
    return found


def _alone(u: Tensor, rows: slice) -> Tensor:
    alone = torch.zeros_like(u)
    alone[rows] = u[rows]
    return alone


def _bars(asked: Asked, rows: Tensor, cotangents: Tensor) -> Tensor:
    """What two gradients for the same grad_outputs may differ by (K × N): the tolerance, scaled by the row."""
    size = rows.abs().nan_to_num(0.0, 0.0, 0.0)
    floor = torch.zeros_like(size)
    for own in asked.values.inputs.slices:
        part = size[:, own]
        middle, most = part.median(dim=1, keepdim=True).values, part.amax(dim=1, keepdim=True)
        floor[:, own] = torch.where(middle > 0, middle, SLIGHT * most)
    moves = (size * asked.values.scale).amax(dim=1, keepdim=True)  # numbers of that size may have cancelled
    rounding = FACTOR * asked.values.steps.epsilon * moves / asked.values.scale.clamp_min(1e-300)
    return asked.rtol * (size + floor) + rounding + asked.atol * cotangents.abs().sum(dim=1, keepdim=True)


def _differing(asked: Asked, mine: Tensor, theirs: Tensor, cotangents: Tensor) -> Tensor:
    """Entries in which they differ beyond tolerance; NaN of the witness is no claim (bool, K × N)."""
    apart = ~((mine - theirs).abs() <= _bars(asked, theirs, cotangents)) & (mine != theirs)
    return apart & ~(theirs.isnan() & mine.isfinite())


@dataclass(frozen=True)
class _Proof:
    """What the dot-product test said."""

    closed: bool
    confirms: bool
    """It closes for derived, too."""
    visible: float
    differs: bool
    """Claim and derived differ in some entry although both close: a row far below the mean."""
    difference: Difference | None
    """The last attempt, where it did not close."""
    gradients: Tensor
    """Aᵀu for its grad_outputs (K × N)."""


def _proof(asked: Asked) -> _Proof | Raised:
    """Prove the claim along one random direction; the same values confirm derived."""
    gradients = theirs = None
    closed = confirms = False
    held = asked.values.held
    last: Difference | None = None
    limit = 0.0
    for attempt in differences(asked.values, asked.key, asked.values.direction(asked.key)):
        made = attempt()
        if made is None:
            continue
        last = made
        if gradients is None:
            sizes = torch.tensor([size for _, size in made.cotangents], dtype=torch.float64)[:, None]
            cotangents = torch.stack([u for u, _ in made.cotangents]) * sizes
            found = asked.claim.rows(cotangents)
            if isinstance(found, Raised):
                return found
            gradients = found / sizes
            given = asked.witness.rows(cotangents) if asked.witness is not None else None
            theirs = None if given is None or isinstance(given, Raised) else given / sizes
        confirms = confirms or (theirs is not None and _closes(made, theirs))
        if _closes(made, gradients) and not (held is not None and bool(gradients[:, held].any())):
            closed, limit = True, made.limit
            break
    if gradients is None:  # no attempt gave a finite number
        return _Proof(False, False, 0.0, False, None, torch.zeros(0, len(asked.values.x)))
    if confirms:
        asked.trust.confirmed = True
    elif closed and theirs is not None:
        asked.trust.refuted = True
    differs = False
    if closed and confirms and theirs is not None and last is not None:
        u = torch.stack([u for u, _ in last.cotangents])
        differs = bool(_differing(asked, gradients, theirs, u).any())
    return _Proof(closed, confirms, limit, differs, last, gradients)


def _closes(made: Difference, gradients: Tensor) -> bool:
    if made.is_flat:
        return bool((gradients[:, made.taken != 0] == 0).all())
    return all(made.residual(k, g) <= made.limit for k, g in enumerate(gradients))


RIGHT, WRONG, BOTH, OPEN, UNSEEN, TORN, UNTRIED = range(7)
"""What is known of an entry: right; wrong by one witness or by both; a mismatch that nothing decides; not
measurable; at a kink; not looked at."""


class _Conflict:
    """One claim that neither a proof nor an agreement closes."""

    def __init__(self, asked: Asked, proof: _Proof) -> None:
        self.asked, self.proof, self.values = asked, proof, asked.values
        self.inputs, self.outputs = asked.values.inputs, asked.problem.outputs
        self.before = _calls(asked)
        self.reasons: dict[tuple[int, int], Reason] = {}
        self.spoke = {"values"}
        self.single: dict[int, int] = {}
        """Rows of the output that were asked for alone, by their place in `u`."""

    @property
    def left(self) -> int:
        """Calls that may still be made here."""
        spent = _calls(self.asked) - self.before
        return min(CALLS_OF_A_SAMPLE, self.asked.budget.left) - spent

    def judgement(self) -> Judgement | Raised:
        """Measure what is open, and decide."""
        rows = self._rows()
        if isinstance(rows, Raised):
            return rows
        self._see_ties()
        self._measure()
        self._look_beside_kinks()
        self._ask_for_rounding()
        if self.asked.loops:
            self._doubt_the_end_of_loops()
        self._look_for_lost_digits()
        self.asked.budget.left -= _calls(self.asked) - self.before
        return Judgement(self._answers(), frozenset(self.spoke))

    # Claim and derived, for rows or for grad_outputs that stand for them

    def _rows(self) -> None | Raised:
        """Both gradients for unit rows, as far as these are few, and for a dense grad_output of each output.

        A backward that is not linear agrees at one kind and not at the other.
        """
        size, width = self.outputs.size, len(self.values.x)
        self.count = size if size <= MOST_ROWS and size * width <= MOST_ENTRIES else 0
        dense = probe(size, self.asked.key + 5)
        if not self.count and self.proof.difference is not None:
            dense = self.proof.difference.cotangents[0][0]
        alone = torch.stack([_alone(dense, rows) for rows in self.outputs.slices])
        self.u = torch.cat([units(size), alone]) if self.count else alone
        self.owner = self._owners()
        mine = self.asked.claim.afresh().rows(self.u)
        if isinstance(mine, Raised):
            return mine
        self.mine = mine
        witness = self.asked.witness
        theirs = witness.rows(self.u) if witness is not None else None
        self.theirs = None if theirs is None or isinstance(theirs, Raised) else theirs
        if self.theirs is not None:
            self.spoke.add("derived")
            self.apart = _differing(self.asked, self.mine, self.theirs, self.u)
        else:
            self.apart = torch.zeros_like(self.mine, dtype=torch.bool)
        self.state = torch.full(self.mine.shape, UNTRIED)
        if self.theirs is not None and not self.asked.hides:
            self.state[~self.apart] = RIGHT
        self.value = self.mine.new_full(self.mine.shape, torch.nan) if self.theirs is None else self.theirs.clone()
        self.error = torch.zeros_like(self.mine)
        self.ways: list[Tensor] = []
        self.nearby: list[Tensor] = []
        self.settled = torch.zeros_like(self.apart)
        """Entries at a tie, which no slope along one coordinate decides."""
        self.slopes: dict[int, Slope] = {}
        self.again: dict[int, Slope] = {}
        return None

    def _owners(self) -> list[int]:
        full = [o for o, b in enumerate(self.outputs.blocks) if b.stop > b.start]
        return [*(self.outputs.block_of(k) for k in range(self.count)), *full]

    # Slopes

    def _measure(self) -> None:
        for column in self._columns():
            if column in self.slopes:
                continue
            if self.left < len(self.values.steps.levels) * 6:
                self.reasons.setdefault((-1, -1), Reason.BUDGET)
                break
            self._decide(column)
        self._prove_the_rest()
        self._carry_over()

    def _columns(self) -> Iterator[int]:
        """Columns worth measuring: those that differ; where none does, where the residual lies; or all."""
        if self.theirs is not None and bool(self.apart.any()):
            yield from self._differing_columns()
            return
        for own, residual in self._open_inputs():
            yield from self._located(own, residual)
        if self.theirs is None:
            every = [k for k in range(len(self.values.x)) if self.values.scale[k] > 0]
            yield from every[:: max(1, len(every) // 16)]

    def _differing_columns(self) -> Iterator[int]:
        assert self.theirs is not None  # noqa: S101 - for the type checker
        off = (self.mine - self.theirs).abs() / (self.theirs.abs() + self.mine.abs())
        measured = self.apart & ~self.settled
        off = torch.where(measured, off.nan_to_num(2.0, 2.0, 2.0), 0.0)
        each = []
        for own in self.inputs.slices:
            here = [own.start + k for k in measured[:, own].any(dim=0).nonzero()[:, 0].tolist()]
            here.sort(key=lambda k: -float(off[:, k].max()))
            each.append([here[0], *here[1:: max(1, len(here) // (MOST_COLUMNS - 1))]][:MOST_COLUMNS] if here else [])
        for rank in range(MOST_COLUMNS):
            yield from (columns[rank] for columns in each if len(columns) > rank)

    def _open_inputs(self) -> list[tuple[slice, Tensor]]:
        """Inputs along which alone the test does not close, with the residuals; of others every entry is right."""
        found = []
        for own in self.inputs.slices:
            residual = self._residual(own)
            if residual is None or bool((residual.abs() > self._limit()).any()):
                found.append((own, residual if residual is not None else torch.zeros(0)))
            elif self.theirs is None or self.asked.hides:
                self.state[:, own] = RIGHT
        return found

    def _limit(self) -> float:
        return self.values.steps.proofs[0][1] * max(1, self.outputs.size) ** 0.5

    def _residual(self, columns: slice) -> Tensor | None:
        """u·Jv - (Aᵀu)·v along some columns, for each grad_output of the proof; None where it is not finite."""
        difference = self.proof.difference
        if difference is None or not bool(self.proof.gradients[:, columns].isfinite().all()):
            return None
        v = self.values.direction(self.asked.key, columns)
        slope, taken = self.values.first_difference(v, self.values.steps.proofs[0][0])
        if not bool(slope.isfinite().all()):
            return None
        u = torch.stack([u for u, _ in difference.cotangents])
        return u @ slope - self.proof.gradients[:, columns] @ taken[columns]

    def _located(self, own: slice, residual: Tensor) -> Iterator[int]:
        """One column of an input in which the residual lies, by halving."""
        start, stop = own.start, own.stop
        while stop - start > 1 and self.left >= 4 and residual.numel():
            middle = (start + stop) // 2
            first = self._residual(slice(start, middle))
            if first is None:
                stop = middle
                continue
            second = residual - first
            low = float(first.abs().max()) >= float(second.abs().max())
            (start, stop), residual = ((start, middle), first) if low else ((middle, stop), second)
        if self.values.scale[start] > 0:
            yield start

    def _decide(self, column: int) -> None:
        """Measure one column, and decide its entries by the table of conflicts."""
        found = self._slope(column)
        self.slopes[column] = found
        value, error, low, high = self._weighed(found)
        self.value[:, column], self.error[:, column] = value, error
        kink = high > low
        for k in range(len(self.u)):
            if self.settled[k, column]:
                continue
            if kink[k] and bool(self.mine[k, column].isfinite()):
                self.state[k, column] = TORN if self._is_open(k, column) else RIGHT
            else:
                self.state[k, column] = self._verdict(k, column)

    def _is_open(self, k: int, column: int) -> bool:
        return self.theirs is None or bool(self.apart[k, column])

    def _slope(self, column: int, share: float = 1.0) -> Slope:
        """Per unit of the coordinate."""
        v = self.values.unit(column)
        size = float(v[column].abs())
        if not size:  # held where it is, and its gradient must be zero; or not finite
            nothing = torch.zeros(self.outputs.size, dtype=torch.float64)
            is_held = bool(self.values.held[column]) if self.values.held is not None else False
            return Slope(nothing, nothing if is_held else nothing + torch.inf, nothing, nothing)
        found = self.values.slope(v, share).times(1 / size)
        if float(v[column]) < 0:
            found = Slope(-found.value, found.error, -found.high, -found.low)
        return found

    def _weighed(self, found: Slope) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Value, error, low and high of each row of `u`."""
        finite = found.error.isfinite()
        value, error = self.u @ torch.where(finite, found.value, 0.0), torch.zeros(len(self.u)).double()
        error = self.u.abs() @ torch.where(finite, found.error, 0.0)
        unknown = ((self.u != 0) & ~finite).any(dim=1)
        half = self.u.abs() @ torch.where(found.kink, (found.high - found.low) / 2, 0.0)
        return value, torch.where(unknown, torch.inf, error), value - half, value + half

    def _verdict(self, k: int, column: int) -> int:  # noqa: C901, PLR0911 - the table of conflicts, row by row
        asked, a, s, e = self.asked, self.mine[k, column], self.value[k, column], self.error[k, column]
        bar = self._bar(k, column)
        seen = bool(e <= max(BLUR * max(abs(float(s)), abs(float(a)) if bool(a.isfinite()) else 0.0), bar))
        if not bool(a.isfinite()):
            if not self._has_slopes(column):  # of a row without one NaN says so, and 0 * inf is NaN in the others
                return UNSEEN
            return WRONG if self.theirs is None or not bool(self.theirs[k, column].isfinite()) else BOTH
        refuted = bool((a - s).abs() > max(float(e), bar))
        if self.theirs is None or not bool(self.theirs[k, column].isfinite()):
            if refuted and seen:
                return OPEN if asked.sixteen else WRONG
            return RIGHT if seen and not refuted else (OPEN if refuted else UNSEEN)
        d = self.theirs[k, column]
        if not bool(self.apart[k, column]):
            if refuted and seen:
                return self._if_it_stays(k, column)
            return RIGHT if seen or not asked.hides else UNSEEN
        other = bool((d - s).abs() > max(float(e), bar))
        if refuted and not other:
            return BOTH
        if other and not refuted:
            return RIGHT if seen else OPEN
        if refuted and other:
            return self._if_it_stays(k, column) if seen and not asked.sixteen else OPEN
        decided = asked.declared and asked.trust.confirmed and not asked.hides
        return WRONG if decided else OPEN

    def _bar(self, k: int, column: int) -> float:
        """The tolerance at an entry, scaled by its row."""
        rows = self.mine[k : k + 1] if self.theirs is None else self.theirs[k : k + 1]
        own = next(s for s in self.inputs.slices if s.start <= column < s.stop)
        size = rows[0, own].abs().nan_to_num(0.0, 0.0, 0.0)
        middle = float(size.median()) or SLIGHT * float(size.max())
        here = max(abs(float(self.value[k, column])), 0.0)
        return self.asked.rtol * (here + middle) + self.asked.atol * float(self.u[k].abs().sum())

    def _has_slopes(self, column: int) -> bool:
        """Whether every row has a finite slope along a coordinate, and where nobody declared it, one alone."""
        found = self.slopes[column]
        known = found.error <= SLIGHT * (found.value.abs() + found.value.abs().mean()) + OF_NOTHING
        return bool((known & ~found.kink).all() if not self.asked.declared else (known | found.kink).all())

    def _if_it_stays(self, k: int, column: int) -> int:
        """Wrong if another set of steps refutes the claim as well; open where it cannot be asked."""
        if column not in self.again:
            if self.left < len(self.values.steps.levels) * 6:
                return OPEN
            self.again[column] = self._slope(column, OTHER_SHARE)
        value, error, low, high = self._weighed(self.again[column])
        if bool(high[k] > low[k]) or not bool(error[k].isfinite()):
            return OPEN
        off = abs(float(self.mine[k, column]) - float(value[k]))
        return WRONG if off > max(float(error[k]), self._bar(k, column)) else RIGHT

    def _prove_the_rest(self) -> None:
        """Where a claim has no derived to lean on: what was not measured is right if the test closes on it."""
        if self.theirs is not None and not self.asked.hides:
            return
        for own in self.inputs.slices:
            rest = (self.state[:, own] == UNTRIED).any(dim=0)
            if not bool(rest.any()) or self.left < 4 or self.proof.difference is None:
                continue
            columns = own.start + rest.nonzero()[:, 0]
            if not bool(self.proof.gradients[:, columns].isfinite().all()):
                continue
            for step, limit in self.values.steps.proofs:
                slope, taken = self.values.first_difference(self.values.direction(self.asked.key, columns), step)
                u = torch.stack([u for u, _ in self.proof.difference.cotangents])
                residual = u @ slope - self.proof.gradients[:, columns] @ taken[columns]
                if bool((residual.abs() <= limit * max(1, self.outputs.size) ** 0.5).all()):
                    untried = self.state[:, columns] == UNTRIED
                    self.state[:, columns] = torch.where(untried, RIGHT, self.state[:, columns])
                    break
                if self.left < 4:
                    break

    def _carry_over(self) -> None:
        """Entries that were not measured are as those of their pair that were, where derived decides."""
        untried = self.state == UNTRIED
        if not bool(untried.any()):
            return
        for o, rows, own in self._blocks():
            block = self.state[rows][:, own]
            left = block == UNTRIED
            if not bool(left.any()):
                continue
            if self.theirs is None or (self.asked.hides and not bool((left & self.apart[rows][:, own]).any())):
                new = UNSEEN
                self.reasons.setdefault((o, own.start), Reason.BUDGET)
            elif bool(((block == BOTH) | (block == WRONG)).any()):
                new = WRONG
            elif bool((block == TORN).any()):
                new = TORN
            elif bool((self.state[:, own] == OPEN).any()) or not self.slopes:
                decided = self.asked.declared and self.asked.trust.confirmed and not self.asked.hides
                new = WRONG if decided else OPEN
            else:  # derived was refuted where it was measured, or differs by what cannot be seen
                new = OPEN if not bool((block == RIGHT).any()) else RIGHT
            block[left] = new
            neither = left & ~self.mine[rows][:, own].isfinite()
            if self.theirs is not None:
                neither &= ~self.theirs[rows][:, own].isfinite()
            block[neither] = UNSEEN
            self._put(rows, own, block)

    def _put(self, rows: Tensor, own: slice, block: Tensor) -> None:
        self.state[rows.nonzero()[:, 0, None], torch.arange(own.start, own.stop)[None]] = block

    def _blocks(self) -> Iterator[tuple[int, Tensor, slice]]:
        owners = torch.tensor(self.owner)
        for o in sorted(set(self.owner)):
            for own in self.inputs.slices:
                yield o, owners == o, own

    # Rounding

    def _ask_for_rounding(self) -> None:
        """Take back what the rounding of backward, or of derived, explains."""
        suspect = (self.state == WRONG) | (self.state == BOTH) | (self.state == OPEN)
        suspect &= self.mine.isfinite()
        self.rounded = torch.zeros_like(suspect)
        expected = torch.where(self.value.isfinite(), self.value, 0.0)
        off = ((self.mine - expected).abs() * suspect).nan_to_num(0.0)
        if self.asked.declared:  # what is beyond any rounding needs no asking
            beyond = off > explained(torch.full_like(off, torch.inf), self.mine, self._unseen()) + self.error
            suspect &= ~beyond
        rows = suspect.any(dim=1).nonzero()[:, 0].tolist()
        if not rows:
            return
        rows.sort(key=lambda k: -float(off[k].max() / (self.mine[k].abs().max() + 1e-300)))
        chosen = rows[:MOST_ROUNDED]
        moved = spread(lambda x: self._rows_at(self.asked.problem, x, chosen), self.values.x, self.values.steps.epsilon)
        if moved is None:
            return
        width = len(self.values.x)
        limit = self._unseen() if self.asked.declared else None
        allowed = explained(moved.view(len(chosen), width), self.mine[chosen], limit)
        held = suspect[chosen] & (off[chosen] <= allowed + self.error[chosen])
        if bool((suspect[chosen] & ~held).any()):
            for place, k in enumerate(chosen):
                self.rounded[k] = held[place]
        else:  # what explains the worst rows explains the others
            self.rounded = suspect
        self.state[self.rounded] = UNSEEN
        self.rounded &= off > self._unseen()

    def _unseen(self) -> Tensor:
        """What moves no output by more than the rounding of numbers of its size and of the input's (N)."""
        size = self.values.centre.abs().nan_to_num(0.0, 0.0, 0.0).max()
        scale = self.values.scale.clamp_min(1e-300)
        return FACTOR * self.values.steps.epsilon * (1 + size / scale)

    def _rows_at(self, problem: Problem, x: Tensor, rows: Sequence[int]) -> Tensor | None:
        made = problem.graph(self.inputs.unflatten(x))
        if isinstance(made, Raised):
            return None
        found = problem.back_each(made.value, [self.outputs.unflatten(self.u[k]) for k in rows])  # type: ignore[attr-defined]
        if isinstance(found, Raised):
            return None
        return torch.cat([self.inputs.flatten(g) for g in found.value])

    # Kinks and ties

    def _see_ties(self) -> None:
        """Mark where derived is another beside the point: a tie may have the same slope from every side."""
        witness, apart = self.asked.witness, self.apart & self.mine.isfinite()
        rows = apart.any(dim=1).nonzero()[:, 0].tolist()
        if witness is None or self.theirs is None or not rows:
            return
        ways = [probe(len(self.values.x), self.asked.key + 31 + k) for k in range(2)]
        found = self._beside(ways, BESIDE)
        if found is None or not bool(self._moved(found)[apart].any()):
            return
        near = self._beside(ways, BESIDE / NEARER)
        if near is None:
            return
        stays = (near - self.theirs).abs().amax(dim=0) > (found - self.theirs).abs().amax(dim=0) / SHRINKS
        torn, several = self._moved(found) & stays & apart, False
        self.ways, self.nearby = ways, [*found]
        for k in torn.any(dim=1).nonzero()[:, 0].tolist():
            self.state[k, apart[k]] = TORN if k < self.count else RIGHT
            self.settled[k] |= apart[k]
            several |= k >= self.count
        if several and not self.count:
            self._ask_for_rows(apart)

    def _moved(self, nearby: Tensor) -> Tensor:
        """Entries that are not what they are at the point (bool, K × N)."""
        assert self.theirs is not None  # noqa: S101 - for the type checker
        largest = nearby.abs().amax(dim=(0, 2))[:, None]
        return (nearby - self.theirs).abs().amax(dim=0) > ROOM * largest

    def _beside(self, ways: Sequence[Tensor], share: float) -> Tensor | None:
        """Derived's gradients on both sides of the point along some ways (2 · ways × K × N)."""
        witness, found = self.asked.witness, []
        for way in ways:
            for sign in (1.0, -1.0):
                if self.left < 1 or witness is None:
                    return None
                x = self.values.x + sign * share * self.values.scale * way
                made = self._rows_at(witness.problem, x, range(len(self.u)))
                if made is None:
                    return None
                found.append(made.view(len(self.u), -1))
        return torch.stack(found)

    def _ask_for_rows(self, apart: Tensor) -> None:
        """Rows of their own where many tie at once: no few points show all that their sum may be."""
        witness = self.asked.witness
        assert witness is not None and self.theirs is not None  # noqa: S101, PT018 - for the type checker
        columns, rows = apart.any(dim=0).nonzero()[:, 0].tolist(), dict[int, None]()
        for column in columns[:: max(1, len(columns) // MOST_COLUMNS)][:MOST_COLUMNS]:
            along = torch.zeros_like(self.values.x)
            along[column] = 1.0
            slopes = witness.jvp(along)
            if slopes is not None:
                rows |= dict.fromkeys(slopes.abs().nan_to_num(0.0).argsort(descending=True)[:2].tolist())
        chosen = units(self.outputs.size, list(rows))
        mine, theirs = self.asked.claim.rows(chosen), witness.rows(chosen)
        if isinstance(mine, Raised) or isinstance(theirs, Raised) or not rows:
            self.state[apart] = OPEN
            return
        self.single = {len(self.u) + k: row for k, row in enumerate(rows)}
        self.u = torch.cat([self.u, chosen])
        self.owner += [self.outputs.block_of(row) for row in rows]
        off = _differing(self.asked, mine, theirs, chosen)
        self.mine, self.theirs = torch.cat([self.mine, mine]), torch.cat([self.theirs, theirs])
        self.apart = torch.cat([self.apart, off])
        self.state = torch.cat([self.state, torch.where(off, TORN, RIGHT)])
        self.settled = torch.cat([self.settled, torch.ones_like(off)])
        self.value, self.error = torch.cat([self.value, theirs]), torch.cat([self.error, torch.zeros_like(theirs)])

    def _look_beside_kinks(self) -> None:
        """At a kink the claim must lie in the hull of the gradients nearby.

        Along a direction the ends of the hull are found on both sides of the point in that very direction.
        """
        torn = self.state == TORN
        if not bool(torn.any()):
            return
        if self.asked.witness is None or self.theirs is None:
            self._one_sided(torn)
            return
        if len(self.nearby) and self.nearby[0].shape != self.mine.shape:
            self.ways, self.nearby = [], []  # rows were added
        ways = self.ways or [probe(len(self.values.x), self.asked.key + 31 + k) for k in range(2)]
        columns = torn.any(dim=0).nonzero()[:, 0].tolist()
        together = torch.zeros_like(self.values.x)
        together[columns] = 1.0
        if self.nearby:
            together[self._moved(torch.stack(self.nearby)).any(dim=0)] = 1.0
        step = max(1, len(columns) // MOST_ALONE)
        alone = [units(len(self.values.x), [k])[0] for k in columns[::step][:MOST_ALONE]]
        more = [together, *alone, *(probe(len(self.values.x), self.asked.key + 41 + k) * together for k in range(2))]
        tried = [*ways] if self.nearby else []
        for way in more if self.nearby else [*ways, *more]:
            found = self._beside([way], BESIDE)
            if found is None:
                break
            tried.append(way)
            self.nearby += [*found]
        if len(tried) < FEWEST_WAYS:
            self.state[torn] = OPEN
            return
        outside = self._outside(tried)
        if bool((outside & torn.any(dim=1)).any()):  # a few points may have missed a piece
            for k in range(MORE_WAYS):
                found = self._beside([probe(len(self.values.x), self.asked.key + 61 + k)], BESIDE)
                if found is None:
                    break
                self.nearby += [*found]
            outside = self._outside(tried)
        nearby = torch.stack(self.nearby)
        finite = nearby.isfinite().all(dim=2).all(dim=0)
        for k in torn.any(dim=1).nonzero()[:, 0].tolist():
            self.state[k, torn[k]] = (BOTH if outside[k] else RIGHT) if finite[k] else UNSEEN
            self.value[k, torn[k]] = nearby[:, k, torn[k]].mean(dim=0)

    def _outside(self, ways: Sequence[Tensor]) -> Tensor:
        """Rows whose claim is no mean of the gradients nearby along some of the ways (bool, K)."""
        nearby, directions = torch.stack(self.nearby), torch.stack([*ways]) * self.values.scale
        seen, said = nearby @ directions.T, self.mine.nan_to_num(0.0, 0.0, 0.0) @ directions.T
        size = (nearby.abs().amax(dim=0) @ directions.abs().T).clamp_min(1e-300)
        room = (ROOM + self.asked.rtol) * size
        return ((said < seen.amin(dim=0) - room) | (said > seen.amax(dim=0) + room)).any(dim=1)

    def _one_sided(self, torn: Tensor) -> None:
        """Without derived: inside the one-sided slopes is right, outside of them beyond their errors wrong."""
        for k, column in torn.nonzero().tolist():
            value, error, low, high = (t[k] for t in self._weighed(self.slopes[column])) if column in self.slopes else (None,) * 4  # noqa: E501
            if value is None:
                self.state[k, column] = UNSEEN
                continue
            room = float(error) + self._bar(k, column)
            a = float(self.mine[k, column])
            self.state[k, column] = RIGHT if float(low) - room <= a <= float(high) + room else BOTH

    # Loops

    def _doubt_the_end_of_loops(self) -> None:
        """What the end of an iteration may explain is not decided."""
        off = (self.mine - self.value).abs().nan_to_num(torch.inf, torch.inf, torch.inf)
        size = self.value.abs().nan_to_num(0.0)
        for _, rows, own in self._blocks():
            block = self.state[rows][:, own]
            wrong = (block == WRONG) | (block == BOTH)
            if not bool(wrong.any()):
                continue
            small = off[rows][:, own] < SLIGHT * size.max()
            slight = wrong & (small if self.asked.declared else torch.ones_like(small))
            if bool((slight == wrong).all()):
                block[slight] = OPEN
                self._put(rows, own, block)
                self.reasons[self.owner[int(rows.nonzero()[0])], own.start] = Reason.LOOP

    # Digits

    def _look_for_lost_digits(self) -> None:
        """Note what agrees with derived within the tolerance, and by more than the rounding of both does not."""
        self.lost = torch.zeros_like(self.apart)
        if self.theirs is None or self.asked.hides or self.asked.rtol > FINEST or not self.asked.declared:
            return
        off = (self.mine - self.theirs).abs()
        middle = self.theirs.abs().median(dim=1, keepdim=True).values
        lost = (off > DIGITS_LOST * (self.theirs.abs() + middle)) & ~self.apart & self.theirs.isfinite()
        rows = lost.any(dim=1).nonzero()[:, 0].tolist()[:MOST_ROUNDED]
        witness = self.asked.witness
        if not rows or witness is None or bool(((self.state == WRONG) | (self.state == BOTH)).any()):
            return
        allowed = torch.zeros(len(rows), len(self.values.x), dtype=torch.float64)
        for problem in (self.asked.problem, witness.problem):
            moved = spread(lambda x, p=problem: self._rows_at(p, x, rows), self.values.x, self.values.steps.epsilon)  # type: ignore[misc]
            allowed += torch.inf if moved is None else ROUNDINGS * moved.view(len(rows), -1)
        kept = lost[rows] & (off[rows] > allowed)
        self.lost[rows] = kept

    def _imprecise(self, rows: Tensor, own: slice) -> Imprecise | None:
        lost = self.lost[rows][:, own]
        if not bool(lost.any()):
            return None
        assert self.theirs is not None  # noqa: S101 - for the type checker
        mine, theirs = self.mine[rows][:, own], self.theirs[rows][:, own]
        share = ((mine - theirs).abs() / theirs.abs().clamp_min(1e-300))[lost]
        survive = mine.to(torch.float32).to(torch.float64) == mine
        needs = theirs.to(torch.float32).to(torch.float64) != theirs
        told = (mine != 0) & needs
        unit = (torch.arange(len(self.u))[rows] < self.count)[:, None]
        short = bool(survive[told & unit].all()) and int((told & unit).sum()) > 1
        return Imprecise(float(share.max()), self._entries(rows, own, lost), int(lost.sum()), lost.numel(), short)

    # Answers

    def _answers(self) -> dict[tuple[int, int], Answer]:
        found: dict[tuple[int, int], Answer] = {pair: Right() for pair in _pairs(self.asked.problem)}
        numbers = {b.start: n for n, b in enumerate(self.inputs.blocks) if b.stop > b.start}
        for o, rows, own in self._blocks():
            found[o, numbers[own.start]] = self._answer(o, rows, own)
        return found

    def _answer(self, o: int, rows: Tensor, own: slice) -> Answer:
        block = self.state[rows][:, own]
        wrong = (block == WRONG) | (block == BOTH)
        if bool(wrong.any()):
            return self._wrong(rows, own, block, wrong)
        rounded = self.rounded[rows][:, own]
        if bool((block == OPEN).any()):
            reason = self.reasons.get((o, own.start)) or self._reason(rows, own, block == OPEN)
            entry = self._entries(rows, own, block == OPEN)[:1]
            return Unknown(reason, mismatch=True, entry=entry[0] if entry else None)
        unseen = block == UNSEEN
        if bool(unseen.any()):
            if not self.asked.declared and bool(rounded.any()):
                marked = self._wrong(rows, own, block, rounded)
                return Wrong(**{**_fields(marked), "rounded": True})
            reason = Reason.ROUNDING if bool(rounded.any()) else self._reason(rows, own, unseen)
            reason = self.reasons.get((o, own.start), reason)
            if reason is Reason.BUDGET or (self.theirs is None and bool(unseen.all())):
                return Unknown(reason, mismatch=False)
            return NotJudged(reason, int(unseen.sum()), whole=bool(unseen.all()))
        return self._imprecise(rows, own) or Right(self._visible(rows, own))

    def _visible(self, rows: Tensor, own: slice) -> float | None:
        measured = [k for k in self.slopes if own.start <= k < own.stop]
        if not measured:
            return self.asked.rtol
        size, error = self.value[rows][:, measured].abs(), self.error[rows][:, measured]
        known = (size > SLIGHT * size.nan_to_num(0.0).max()) & error.isfinite()
        return max(float((error / size)[known].median()), self.asked.rtol) if bool(known.any()) else None

    def _reason(self, rows: Tensor, own: slice, at: Tensor) -> Reason:
        if not bool(self.values.centre.isfinite().all()):
            return Reason.NO_VALUE
        if self.asked.sixteen:
            return Reason.SIXTEEN_BITS
        error = self.error[rows][:, own][at]
        if error.numel() and not bool(error.isfinite().any()):
            return Reason.DIVERGES
        return Reason.HIDDEN if self.asked.hides else Reason.NOISE

    def _wrong(self, rows: Tensor, own: slice, block: Tensor, wrong: Tensor) -> Wrong:
        expected = self.value[rows][:, own]
        looked_at = int((block != UNTRIED).sum())
        known = expected.abs()[expected.isfinite()]
        nonfinite = ~self.mine[rows][:, own].isfinite() & wrong
        unit = torch.arange(len(self.u))[rows] < self.count
        whole = bool(unit.any()) and self.theirs is not None and bool(wrong[unit].any())
        shown = wrong & unit[:, None] if bool(wrong[unit].any()) else wrong
        return Wrong(
            self._entries(rows, own, shown),
            int(shown.sum()),
            looked_at if not bool(unit.any()) else int((block[unit] != UNTRIED).sum()),
            float(known.max()) if known.numel() else 0.0,
            both=bool((block == BOTH).any()),
            nonfinite=bool(nonfinite.sum() == wrong.sum()),
            missing=not bool(self.mine[rows][:, own].any()),
            matrices=(self.mine[rows][:, own][unit], expected[unit], wrong[unit]) if whole else None,
        )

    def _entries(self, rows: Tensor, own: slice, at: Tensor) -> tuple[Entry, ...]:
        """The worst of some entries, those that were measured first."""
        mine, value, error = (t[rows][:, own] for t in (self.mine, self.value, self.error))
        numbers = rows.nonzero()[:, 0].tolist()
        off = (mine - value).abs().nan_to_num(torch.inf, torch.inf, torch.inf)
        places = at.nonzero().tolist()
        places.sort(key=lambda p: -float(off[p[0], p[1]]))
        return tuple(
            Entry(
                numbers[i] if numbers[i] < self.count else self.single.get(numbers[i]),
                own.start + j,
                float(mine[i, j]),
                float(value[i, j]),
                float(error[i, j].nan_to_num(0.0, 0.0)),
            )
            for i, j in places[:5]
        )


def _fields(one: Wrong) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def _calls(asked: Asked) -> int:
    return asked.counter.forward + asked.counter.backward


__all__ = [
    "Answer", "Asked", "Budget", "Entry", "Judgement", "Layout", "NotJudged", "Reason", "Right", "Trust", "Unknown",
    "Wrong", "judge",
]  # fmt: skip
