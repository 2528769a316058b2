"""The judge between a claim and its witnesses: the only place where a gradient is found right or wrong.

The rules stand in `design.md`, *The one change*, and are applied in their order: proved by values, agreed
with derived, kinks and ties, loops, conflict. A proof or an agreement closes a sample; what stays open
is measured entry by entry, and between claim, derived and slope the table of conflicts decides. Differences
that rounding explains are no conflict; those within the tolerance that it does not explain are noted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import CallProblem
from gradverify.verifier.witnesses.answers import Asked, Judgement, Reason, Right, Wrong
from gradverify.verifier.witnesses.claim import rows_at, spread_of_rows
from gradverify.verifier.witnesses.kinks import (
    BESIDE,
    MOST_COLUMNS,
    TOGETHER,
    look_beside_kinks,
    see_a_tie_by_values,
    see_ties,
)
from gradverify.verifier.witnesses.open_entries import (
    BOTH,
    OPEN,
    RIGHT,
    TORN,
    UNSEEN,
    UNTRIED,
    WRONG,
    Open,
    answers,
)
from gradverify.verifier.witnesses.proof import DIGITS_LOST, Proof, compared, pairs_of, proved
from gradverify.verifier.witnesses.rounding import (
    DRAWS,
    EIGHT_BITS,
    OF_A_ROW,
    OF_FEW_BITS,
    OF_FLOAT32,
    SIXTEEN_BITS,
    Formats,
    explained,
    finite_part,
)
from gradverify.verifier.witnesses.values import EPSILON

BLUR = 0.1
"""A slope is seen if its error is within this share of the larger of slope and claim."""

OF_NOTHING = 1e-8
"""An absolute error of a slope that is zero in every row."""

SLIGHT_IN_SHORT = 1e-2
"""Relative error of a slope of few digits that has a limit all the same."""

SLIGHT = 1e-3
"""Share of the largest entry below which the end of a loop explains a difference."""

FINEST = 2.0**8
"""Roundings of an entry below which a step has too few digits to tell anything."""

OTHER_SHARE = 0.41421356237309515
"""The share of the usual steps at which a slope that refutes both witnesses is measured again."""

ROUNDINGS = 10.0
"""Spreads of both by which two right gradients may differ."""

MOST_ROUNDED = 3
"""Rows of which rounding is asked."""


def judge(asked: Asked, *, prove: bool) -> Judgement | Raised:  # noqa: PLR0911 - the rules in their order
    """Judge the claim; `prove` at the first draw of a listed case. What backward raises is handed back."""
    pairs = pairs_of(asked.problem)
    if not asked.values.x.numel() or not asked.problem.outputs.size:
        return Judgement(dict.fromkeys(pairs, Right()), frozenset(), closed=True)
    if (not prove or asked.wrong) and asked.witness is not None:
        differing = compared(asked)
        if isinstance(differing, Raised):
            return differing
        if differing == {} and asked.trust.confirmed and not asked.hides:
            return Judgement(dict.fromkeys(pairs, Right(asked.seen)), frozenset({"derived"}), closed=True)
        if differing and differing.keys() <= asked.wrong:  # no measurement would add to what is known
            return Judgement({**dict.fromkeys(pairs, Right(asked.seen)), **differing}, frozenset({"derived"}))
    proof = proved(asked)
    if isinstance(proof, Raised):
        return proof
    if proof.closed and not proof.differs:
        spoke = frozenset({"values", "derived"} if proof.confirms else {"values"})
        return Judgement(dict.fromkeys(pairs, Right(proof.visible)), spoke, closed=True)
    if asked.wrong.issuperset(pairs):
        return Judgement(
            dict.fromkeys(pairs, Wrong((), 0, 0, 0.0, both=False, again=True)), frozenset({"values"})
        )
    return decided(asked, proof)


def decided(asked: Asked, proof: Proof) -> Judgement | Raised:
    """Measure what is open, and decide. What backward raises is handed back."""
    c = Open(asked, proof)
    rows = c.rows()
    if isinstance(rows, Raised):
        return rows
    see_ties(c)
    _measure(c)
    look_beside_kinks(c)
    ask_for_rounding(c)
    doubt_short_formats(c)
    if c.asked.loops:
        _doubt_the_end_of_loops(c)
    look_for_lost_digits(c)
    c.asked.budget.left -= c.spent
    return Judgement(answers(c), frozenset(c.spoke), kink=bool(c.kinks.any()))


def _measure(c: Open) -> None:
    for column in _columns(c):
        if column in c.slopes:
            continue
        together = TOGETHER if c.theirs is None and (c.state == TORN).any() else 0
        if c.left < len(c.steps.levels) * 6 + together:
            break
        _decide(c, column)
        if c.theirs is None and (c.state[:, column] == WRONG).any():
            see_a_tie_by_values(c, column)
    if c.asked.trust.refuted:  # what it alone decided before is open again
        alone = (c.state == WRONG) & ((c.mine - c.value).abs() <= c.error)
        c.state[alone] = OPEN
    _carry_over(c)


def _columns(c: Open) -> Iterator[int]:
    """Columns worth measuring: those that differ; where none does, where the residual lies; or all."""
    if c.theirs is not None and c.apart.any():
        yield from _differing_columns(c)
        return
    for own in c.inputs.slices:
        yield from _located(c, own)
    if c.theirs is None:
        every = [k for k in range(len(c.values.x)) if c.values.scale[k] > 0]
        yield from every[:: max(1, len(every) // 16)]


def _differing_columns(c: Open) -> Iterator[int]:
    assert c.theirs is not None  # noqa: S101 - for the type checker
    off = (c.mine - c.theirs).abs() / (c.theirs.abs() + c.mine.abs())
    measured = c.apart & ~c.settled
    off = torch.where(measured, off.nan_to_num(2.0, 2.0, 2.0), 0.0)
    each = []
    for own in c.inputs.slices:
        here = [own.start + k for k in measured[:, own].any(dim=0).nonzero()[:, 0].tolist()]
        here.sort(key=lambda k: -float(off[:, k].max()))
        each.append([*here[:1], *here[1 :: max(1, len(here) // (MOST_COLUMNS - 1))]][:MOST_COLUMNS])
    for columns in zip_longest(*each):  # the worst of each input first
        yield from (k for k in columns if k is not None)


def _residual(c: Open, columns: slice) -> Tensor | None:
    """u·Jv - (Aᵀu)·v along some columns, for each grad_output of the proof; None where it is not finite."""
    difference = c.proof.difference
    if difference is None or not c.proof.gradients[:, columns].isfinite().all():
        return None
    v = c.values.direction(c.asked.key, columns)
    slope, taken = c.values.first_difference(v, c.steps.proofs[0][0])
    if not slope.isfinite().all():
        return None
    return difference.cotangents @ slope - c.proof.gradients[:, columns] @ taken[columns]


def _located(c: Open, own: slice) -> Iterator[int]:
    """One column of an input in which the residual lies, by halving; none where the test closes on it."""
    start, stop, residual = own.start, own.stop, _residual(c, own)
    limit = c.steps.proofs[0][1] * max(1, c.outputs.size) ** 0.5
    if residual is not None and (residual.abs() <= limit).all():
        return
    while stop - start > 1 and c.left >= 4 and residual is not None:
        middle = (start + stop) // 2
        first = _residual(c, slice(start, middle))
        if first is None:
            stop = middle
            continue
        second = residual - first
        low = float(first.abs().max()) >= float(second.abs().max())
        (start, stop), residual = ((start, middle), first) if low else ((middle, stop), second)
    if c.values.scale[start] > 0:
        yield start


def _decide(c: Open, column: int) -> None:
    """Measure one column, and decide its entries by the table of conflicts."""
    found = c.slope(column)
    c.slopes[column] = found
    value, error, low, high = c.weighed(found)
    error = _at_least_rounding(c, column, value, error)
    c.value[:, column], c.error[:, column] = value, error
    kink = c.kinks[:, column] = high > low
    for k in range(len(c.u)):
        if c.settled[k, column]:
            continue
        if kink[k] and c.mine[k, column].isfinite():
            c.state[k, column] = TORN if c.is_open(k, column) else RIGHT
        else:
            c.state[k, column] = _verdict(c, k, column)


def _at_least_rounding(c: Open, column: int, value: Tensor, error: Tensor) -> Tensor:
    """The error of slopes, at least as large as what rounding inside forward hides where forward is flat.

    Where torch sees no operation, numbers of order one may have been added and subtracted.
    """
    off = (c.mine[:, column] - value).abs()
    longest = c.values.unit(column).abs()[column] * max(c.steps.levels)
    slight = (off > error) & (off <= c.unseen()[column]) & (longest > 0)  # what is held has no error
    if not slight.any():
        return error
    theirs = c.mine[:, column] if c.theirs is None else c.theirs[:, column]
    flat = slight & (value == 0) & (theirs != 0)  # derived, if there is one, is not 0 either
    error, slight = torch.where(flat, 2 * off, error), slight & ~flat
    if c.theirs is None or not slight.any():
        return error
    if c.values.noise is None and c.left < DRAWS + 4:
        return torch.where(slight, torch.inf, error)
    c.values.know_noise()
    if c.values.noise is None:
        return error
    return torch.where(slight, torch.maximum(error, c.u.abs() @ c.values.noise / longest), error)


def _verdict(c: Open, k: int, column: int) -> int:  # noqa: PLR0911 - the table of conflicts, row by row
    asked, a, s, e = c.asked, c.mine[k, column], c.value[k, column], c.error[k, column]
    bar = c.bar(k, column)
    seen = bool(e <= max(BLUR * max(abs(float(s)), abs(float(a)) if a.isfinite() else 0.0), bar))
    if not a.isfinite():
        return _of_no_number(c, k, column)
    refuted = bool((a - s).abs() > max(float(e), bar))
    refuted &= bool(s) or not asked.sixteen  # on a step of a staircase nothing moves
    if c.theirs is None or not c.theirs[k, column].isfinite():
        if refuted and seen and bool(c.values.inward[column]):
            c.reasons[c.owner[k], c.inputs.block_of(column)] = Reason.END
            return OPEN if asked.declared else UNSEEN
        if refuted and seen:
            return OPEN if asked.sixteen else _if_it_stays(c, k, column)
        return RIGHT if seen and not refuted else (OPEN if refuted else UNSEEN)
    d = c.theirs[k, column]
    if not c.apart[k, column]:
        if refuted and seen:
            return RIGHT if _bends_at_an_end(c, k, column) else _nearby(c, k, column)
        return RIGHT if seen or not asked.hides else UNSEEN
    other = bool((d - s).abs() > max(float(e), bar))
    if refuted and other:
        return _if_it_stays(c, k, column) if seen and not asked.sixteen else OPEN
    if refuted:
        return BOTH
    if other:
        asked.trust.refuted |= seen
        return RIGHT if seen else OPEN
    return WRONG if asked.declared and asked.is_trusted else OPEN


def _of_no_number(c: Open, k: int, column: int) -> int:
    """Whether a claim that is no number is wrong: where forward has a slope, or derived goes on unbroken."""
    asked = c.asked
    finite = c.theirs is not None and bool(c.theirs[k, column].isfinite())
    if not c.values.centre.isfinite().all():  # forward is none itself
        return UNSEEN
    if _has_slopes(c, column):  # of a row without one NaN says so, and 0 * inf is NaN in the others
        return BOTH if finite else WRONG
    told = asked.declared and isinstance(asked.problem, CallProblem)
    if finite and asked.is_trusted and (told or not c.rough.any()):
        return WRONG
    return OPEN if finite and told else UNSEEN


def _has_slopes(c: Open, column: int) -> bool:
    """Whether every row has a finite slope along a coordinate, or of first order one on each side."""
    found = c.slopes[column]
    elsewhere = c.mine[c.mine.isfinite()].abs()
    size = found.value.abs() + found.value.abs().mean() + (elsewhere.max() if elsewhere.numel() else 0.0)
    known = found.error <= (SLIGHT_IN_SHORT if c.steps.is_short else SLIGHT) * size + OF_NOTHING
    kinks = isinstance(c.asked.problem, CallProblem)
    return bool((known | found.kink).all() if kinks else (known & ~found.kink).all())


def _if_it_stays(c: Open, k: int, column: int) -> int:
    """Wrong if another set of steps refutes the claim as well; open where it cannot be asked."""
    if column not in c.again:
        if c.left < DRAWS + len(c.steps.levels) * 6:
            return OPEN
        c.values.know_noise()
        c.again[column] = c.slope(column, OTHER_SHARE)
    value, error, low, high = c.weighed(c.again[column])
    if bool(high[k] > low[k]) or not error[k].isfinite():
        return OPEN
    off = abs(float(c.mine[k, column]) - float(value[k]))
    return WRONG if off > max(float(error[k]), c.bar(k, column)) else RIGHT


def _bends_at_an_end(c: Open, k: int, column: int) -> bool:
    """Whether derived has, beside the end of a declared range, the slope that refutes it at the end.

    Values show one side of it. So derived is theirs inside, and has its choice at a kink at the end.
    """
    if not bool(c.values.inward[column]) or c.asked.witness is None or c.left < 1:
        return False
    if column not in c.inside:
        x = c.values.x + BESIDE * c.values.unit(column)
        rows = rows_at(c.asked.witness.problem, x, c.u)
        c.inside[column] = torch.full((len(c.u),), torch.nan) if rows is None else rows[:, column]
    off = abs(float(c.inside[column][k] - c.value[k, column]))
    return off <= max(float(c.error[k, column]), c.bar(k, column))


def _nearby(c: Open, k: int, column: int) -> int:
    """What a short step says where claim and derived agree and wider ones refute both.

    A fast part of forward averages out over a wide step. One that cannot tell does not refute either.
    """
    step, claimed = _short_enough(c, column), float(c.mine[k, column])
    if column not in c.shortest:
        if c.left <= 2 * DRAWS:
            return OPEN
        c.values.know_noise()
        c.shortest[column] = c.slope(column, step=step)
    value, error, _, _ = c.weighed(c.shortest[column])
    measured, limit = float(value[k]), float(error[k])
    seen = step >= FINEST * c.steps.epsilon and limit < BLUR * max(abs(claimed), abs(measured))
    if not seen:
        return OPEN if c.asked.hides else RIGHT
    return RIGHT if abs(claimed - measured) <= limit else _if_it_stays(c, k, column)


def _short_enough(c: Open, column: int) -> float:
    """A step at which no row would move by more than a small share of the values, if the claim is right."""
    rises = c.values.unit(column).abs()[column] * c.mine[:, column].abs().nan_to_num(0.0, 0.0).max()
    size = c.values.centre.abs().nan_to_num(0.0, 0.0).mean().clamp_min(c.values.steps.smallest)
    few = math.floor(math.log2(max(BLUR * float(size / rises), c.values.steps.smallest))) if rises else 0
    return min(*c.values.steps.levels, 2.0**few)


def _carry_over(c: Open) -> None:
    """Entries that were not measured are as those of their pair that were, where derived decides."""
    untried = c.state == UNTRIED
    if not untried.any():
        return
    for pair in c.pairs():
        block = c.state[pair.at]
        left = block == UNTRIED
        if not left.any():
            continue
        if c.theirs is None or (c.asked.hides and not (left & c.apart[pair.at]).any()):
            new = UNSEEN
            c.reasons.setdefault(pair.place, Reason.BUDGET)
        elif c.wrong[pair.at].any():
            new = WRONG
        elif (block == TORN).any():
            new = TORN
        elif (c.state[:, pair.own] == OPEN).any() or not c.slopes:
            new = WRONG if c.asked.declared and c.asked.is_trusted else OPEN
        elif c.asked.trust.refuted:  # where it was measured: what it says of the others is nothing
            new = UNSEEN
            c.reasons.setdefault(pair.place, Reason.BUDGET)
        else:  # it differs by what cannot be seen
            new = OPEN
        block[left] = new
        neither = left & ~c.mine[pair.at].isfinite()
        if c.theirs is not None and c.asked.declared and c.values.centre.isfinite().all():
            neither &= ~c.theirs[pair.at].isfinite()
        block[neither] = UNSEEN
        c.state[pair.at] = block


def _doubt_the_end_of_loops(c: Open) -> None:
    """What the end of an iteration may explain is not decided."""
    slight_here = c.off < SLIGHT * c.value.abs().nan_to_num(0.0).max()
    for pair in c.pairs():
        wrong = c.wrong[pair.at]
        slight = wrong & slight_here[pair.at] if c.asked.declared else wrong
        if wrong.any() and (slight == wrong).all():
            c.state[pair.at] = torch.where(slight, OPEN, c.state[pair.at])
            c.reasons[pair.place] = Reason.LOOP


def ask_for_rounding(c: Open) -> None:
    """Take back what the rounding of backward explains, or of derived where no slope was measured."""
    suspect = (c.wrong | (c.state == OPEN)) & c.mine.isfinite()
    c.rounded = torch.zeros_like(suspect)
    expected = torch.where(c.value.isfinite(), c.value, 0.0)
    off = ((c.mine - expected).abs() * suspect).nan_to_num(0.0)
    if c.asked.limited:  # what is beyond any rounding needs no asking
        beyond = off > explained(torch.full_like(off, torch.inf), c.mine, c.unseen()) + c.error
        suspect &= ~beyond
    rows = suspect.any(dim=1).nonzero()[:, 0].tolist()
    if not rows:
        return
    rows.sort(key=lambda k: -float(off[k].max() / (c.mine[k].abs().max() + 1e-300)))
    chosen = rows[:MOST_ROUNDED]
    moved = spread_of_rows(c.asked.problem, c.u[chosen], c.steps.epsilon)
    if moved is None:
        return
    witness = c.asked.witness
    theirs = None if witness is None else spread_of_rows(witness.problem, c.u[chosen], EPSILON)
    if theirs is not None:
        seen = torch.zeros_like(suspect)
        seen[:, list(c.slopes)] = True
        theirs[(seen & (c.error < off))[chosen]] = 0.0
        moved = torch.maximum(moved, theirs)
    allowed = explained(moved, c.mine[chosen], c.unseen() if c.asked.limited else None)
    held = suspect[chosen] & (off[chosen] <= allowed + c.error[chosen])
    if (suspect[chosen] & ~held).any():
        c.rounded[chosen] = held
        if not c.asked.declared and held.any():  # rows that were not asked stay open
            others = suspect.clone()
            others[chosen] = False
            c.state[others] = OPEN
    else:  # what explains the worst rows explains the others
        c.rounded = suspect
    c.state[c.rounded] = UNSEEN
    if c.theirs is not None and c.asked.limited and not c.asked.hides:
        # Equal to derived within rounding: it is right as far as there are digits.
        c.state[c.rounded & _within(c, chosen, allowed)] = RIGHT
    c.rounded &= off > c.unseen()


def _within(c: Open, chosen: Sequence[int], allowed: Tensor) -> Tensor:
    """Entries that are derived's, to what is allowed, or its share of their row."""
    assert c.theirs is not None  # noqa: S101 - for the type checker
    size = finite_part(c.mine.abs()).amax(dim=1, keepdim=True)
    share = min(OF_A_ROW, float((allowed / size[list(chosen)].clamp_min(1e-300)).max()))
    return (c.mine - c.theirs).abs() <= (share * size).clamp_min(float(allowed.max()))


def look_for_lost_digits(c: Open) -> None:
    """Note what agrees with derived within the tolerance, and by more than the rounding of both does not."""
    c.lost = torch.zeros_like(c.apart)
    if c.theirs is None or c.asked.hides or c.steps.is_short or not c.asked.declared or c.asked.loops:
        return
    off = (c.mine - c.theirs).abs()
    middle = c.theirs.abs().median(dim=1, keepdim=True).values
    bar = c.asked.atol + c.steps.smallest + DIGITS_LOST * (c.theirs.abs() + middle)
    lost = (off > bar) & ~c.apart & c.theirs.isfinite()
    rows = lost.any(dim=1).nonzero()[:, 0].tolist()[:MOST_ROUNDED]
    witness = c.asked.witness
    if not rows or witness is None or c.wrong.any():
        return
    allowed = torch.zeros(len(rows), len(c.values.x), dtype=torch.float64)
    for problem in (c.asked.problem, witness.problem):
        moved = spread_of_rows(problem, c.u[rows], c.steps.epsilon)
        allowed += torch.inf if moved is None else ROUNDINGS * moved
    c.lost[rows] = lost[rows] & (off[rows] > allowed)


def doubt_short_formats(c: Open) -> None:
    """Leave open what numbers that were kept in few bits on the way may be off by."""
    suspect = c.wrong
    if not suspect.any():
        return
    short = c.asked.formats | _formats_of_backward(c)
    few = bool(short & SIXTEEN_BITS)
    if not few and not (c.asked.kept_short and torch.float32 in short):
        return
    off, size = c.off, finite_part(torch.maximum(c.mine.abs(), c.value.abs()))
    for pair in c.pairs():
        slight = suspect[pair.at]
        # Numbers kept in 8 bits have one scale for a whole tensor.
        largest = size[pair.at].max() if short & EIGHT_BITS else size[pair.at].amax(dim=1, keepdim=True)
        if not c.asked.formats & EIGHT_BITS:  # else forward is a staircase, which has no slope
            slight = slight & (off[pair.at] <= (OF_FEW_BITS if few else OF_FLOAT32) * largest)
        if slight.any():
            c.state[pair.at] = torch.where(slight, OPEN, c.state[pair.at])
            c.reasons[pair.place] = Reason.SIXTEEN_BITS if few else Reason.FLOAT32


def _formats_of_backward(c: Open) -> frozenset[torch.dtype]:
    """Short formats that some gradient has gone through."""
    with Formats() as seen:
        made = c.asked.problem.graph(c.asked.problem.primals)
        if isinstance(made, Raised):
            return frozenset()
        found = c.asked.problem.back_each(made.value, [c.outputs.unflatten(c.u[-1])])
    if isinstance(found, Raised):
        return frozenset()
    return frozenset(f for each in found.value for g in each if g is not None for f in seen.of(g))
