"""Kinks and ties: where forward has no one gradient, the hull of the gradients beside the point decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.witnesses.answers import Reason
from gradverify.verifier.witnesses.claim import rows_at, units
from gradverify.verifier.witnesses.open_entries import BOTH, OPEN, RIGHT, TORN, UNSEEN, WRONG, Open
from gradverify.verifier.witnesses.proof import differing
from gradverify.verifier.witnesses.rounding import finite_part
from gradverify.verifier.witnesses.values import SAFETY, SHRINKS

BESIDE = 2.0**-20
"""Points beside a kink, in units of each entry's scale."""

NEARER = 256.0
"""Nearer points at which a kink's gradients are as far apart, and a curve's are not."""

SAME_SIDE = 0.25
"""By how much gradients on one side may differ, as a share of their distance to that at the point."""

MOST_ALONE = 8
"""Entries that move alone beside a kink."""

MORE_WAYS = 8
"""Ways that are tried before a claim is found to be none of the gradients beside a kink."""

FEWEST_WAYS = 3
"""Ways to both sides of a kink without which nothing is said."""

ROOM = 1e-5
"""By how much gradients change between such points where nothing has a kink, as a share of the largest."""

OF_A_SLOPE = 1e-3
"""Relative difference of two slopes beside each other that no curvature makes at so small a distance."""

TOGETHER = 24
"""Calls that it takes to look at the columns of a kink together: four values at each of six points."""

MOST_COLUMNS = 3
"""Columns of one input that are measured, or whose rows are asked for: the worst, others spread over it."""


def see_ties(c: Open) -> None:
    """Mark where derived is another beside the point: a tie may have the same slope from every side."""
    witness, apart = c.asked.witness, c.apart & c.mine.isfinite()
    if witness is None or c.theirs is None or not c.apart.any():
        return
    ways = [c.way(31 + k) for k in range(2)]
    found = _beside(c, ways, BESIDE)
    if found is None:
        return
    # An entry that differs is another beside the point, or one is no number.
    may_tie = bool((_moved(c, found) & c.apart).any()) or not c.mine.isfinite().all()
    near = _beside(c, ways, BESIDE / NEARER) if may_tie else None
    if may_tie and near is None:
        return
    torn = other = torch.zeros_like(apart)
    if near is not None:
        before = (found - c.theirs).abs().amax(dim=0)
        stays = (near - c.theirs).abs().amax(dim=0) > before / SHRINKS
        # On one side of a kink there is one gradient; that of numbers which cancel is another everywhere.
        other = _moved(c, found) & stays
        torn = other & ((near - found).abs().amax(dim=0) <= SAME_SIDE * before)
    c.rough = other.any(dim=1) | ~found.isfinite().all(dim=2).all(dim=0)
    c.ways, c.nearby = ways, [*found]
    tied = apart & (torn & apart).any(dim=1, keepdim=True)
    c.state[tied] = TORN
    c.state[c.count :][tied[c.count :]] = RIGHT
    c.settled |= tied
    if tied.any() and not c.count:
        _ask_for_rows(c, apart)


def see_a_tie_by_values(c: Open, column: int) -> None:
    """Mark a column of three equal entries or more whose slope is another where they are in some order.

    What sorts has slope 0 along each of them in the middle, and gradient 1 for one of them. Of two, both
    sides tell.
    """
    equal = ((c.values.x == c.values.x[column]) & (c.values.scale > 0)).nonzero()[:, 0].tolist()
    others = [k for k in equal if k != column]
    v, found = c.values.unit(column), c.slopes[column]
    towards = v[column].sign()
    for place in range(len(equal)) if len(others) > 1 else ():
        wrong = c.state[:, column] == WRONG
        if c.left < 7 or c.steps.is_short:  # of few digits none are left so near
            c.state[wrong, column] = OPEN
            return
        way, ranks = torch.zeros_like(c.values.x), torch.arange(len(others), dtype=torch.float64)
        way[others], way[column] = (ranks + (ranks >= place)) * towards, place * towards
        near = c.values.beside(BESIDE * way).at_level(v, c.steps.levels[2])
        d, s, room = near.value, found.value * float(v[column]), near.error(near.noise)
        room = room + found.error * float(v[column].abs()) + OF_A_SLOPE * (d.abs() + s.abs())
        c.state[wrong & (c.u.abs() @ ((d - s).abs() > room).double() > 0), column] = TORN


def _moved(c: Open, nearby: Tensor) -> Tensor:
    """Entries that are not what they are at the point (bool, K × N)."""
    assert c.theirs is not None  # noqa: S101 - for the type checker
    largest = nearby.abs().amax(dim=(0, 2))[:, None]
    return (nearby - c.theirs).abs().amax(dim=0) > ROOM * largest


def _beside(c: Open, ways: Sequence[Tensor], share: float) -> Tensor | None:
    """Derived's gradients on both sides of the point along some ways (2 · ways × K × N)."""
    witness, found = c.asked.witness, []
    for way in ways:
        for sign in (1.0, -1.0):
            if c.left < 1 or witness is None:
                return None
            x = c.values.x + sign * share * c.values.scale * way
            made = rows_at(witness.problem, x, c.u)
            if made is None:
                return None
            found.append(made if witness.held is None else torch.where(witness.held, 0.0, made))
    return torch.stack(found)


def _ask_for_rows(c: Open, apart: Tensor) -> None:
    """Rows of their own where many tie at once: no few points show all that their sum may be."""
    assert c.theirs is not None  # noqa: S101 - for the type checker
    columns, rows = apart.any(dim=0).nonzero()[:, 0].tolist(), dict[int, None]()
    for column in columns[:: max(1, len(columns) // MOST_COLUMNS)][:MOST_COLUMNS]:
        change = c.values.at(c.values.x + BESIDE * c.values.unit(column)) - c.values.centre
        rows |= dict.fromkeys(change.abs().nan_to_num(0.0).argsort(descending=True)[:2].tolist())
    chosen = units(c.outputs.size, list(rows))
    mine, theirs = c.asked.claim.rows(chosen), c.asked.derived_rows(chosen)
    if isinstance(mine, Raised) or theirs is None:
        c.state[apart] = OPEN
        return
    c.single = {len(c.u) + k: row for k, row in enumerate(rows)}
    c.u = torch.cat([c.u, chosen])
    c.owner += [c.outputs.block_of(row) for row in rows]
    off = differing(c.asked, mine, theirs, chosen)
    c.mine, c.theirs = torch.cat([c.mine, mine]), torch.cat([c.theirs, theirs])
    c.apart = torch.cat([c.apart, off])
    c.state = torch.cat([c.state, torch.where(off, TORN, RIGHT)])
    c.settled = torch.cat([c.settled, torch.ones_like(off)])
    c.kinks = torch.cat([c.kinks, torch.zeros_like(off)])
    c.value, c.error = (
        torch.cat([c.value, theirs]),
        torch.cat([c.error, torch.zeros_like(theirs)]),
    )


def look_beside_kinks(c: Open) -> None:
    """At a kink the claim must lie in the hull of the gradients nearby.

    Along a direction the ends of the hull are found on both sides of the point in that very direction.
    """
    torn = c.state == TORN
    if not torn.any():
        return
    if c.asked.witness is None or c.theirs is None:
        _one_sided(c, torn)
        return
    if c.nearby and c.nearby[0].shape != c.mine.shape:
        c.ways, c.nearby = [], []  # rows were added
    tried = [*c.ways]
    for way in _ways(c, torn):
        if not _looked(c, way):
            break
        tried.append(way)
    if len(tried) < FEWEST_WAYS:
        c.state[torn] = OPEN
        return
    outside = _outside(c, tried)
    if (outside & torn.any(dim=1)).any():  # a few points may have missed a piece
        for k in range(MORE_WAYS):
            _looked(c, c.way(61 + k))
        outside = _outside(c, tried)
    nearby = torch.stack(c.nearby)
    finite = nearby.isfinite().all(dim=2).all(dim=0)
    for k in torn.any(dim=1).nonzero()[:, 0].tolist():
        c.state[k, torn[k]] = (BOTH if outside[k] else RIGHT) if finite[k] else UNSEEN
        c.value[k, torn[k]] = nearby[:, k, torn[k]].mean(dim=0)
        c.kinks[k, torn[k]] = True


def _ways(c: Open, torn: Tensor) -> Iterator[Tensor]:
    """Random ones, all that differ or vary together, some of them alone, and random ones of these."""
    if not c.nearby:
        yield from (c.way(31 + k) for k in range(2))
    columns = torn.any(dim=0).nonzero()[:, 0].tolist()
    together = torch.zeros_like(c.values.x)
    together[columns] = 1.0
    together[_moved(c, torch.stack(c.nearby)).any(dim=0)] = 1.0
    yield together
    step = max(1, len(columns) // MOST_ALONE)
    yield from (units(len(together), [k])[0] for k in columns[::step][:MOST_ALONE])
    yield from (c.way(41 + k) * together for k in range(2))


def _looked(c: Open, way: Tensor) -> bool:
    """Whether derived could be had on both sides of the point along a way."""
    found = _beside(c, [way], BESIDE)
    c.nearby += [] if found is None else [*found]
    return found is not None


def _outside(c: Open, ways: Sequence[Tensor]) -> Tensor:
    """Rows whose claim is no mean of the gradients nearby along some of the ways (bool, K)."""
    nearby, directions = torch.stack(c.nearby), torch.stack([*ways]) * c.values.scale
    seen, said = nearby @ directions.T, finite_part(c.mine) @ directions.T
    size = (nearby.abs().amax(dim=0) @ directions.abs().T).clamp_min(1e-300)
    room = (ROOM + c.asked.rtol) * size
    return ((said < seen.amin(dim=0) - room) | (said > seen.amax(dim=0) + room)).any(dim=1)


def _one_sided(c: Open, torn: Tensor) -> None:
    """Without derived: inside the one-sided slopes is right, and outside nothing says what is a gradient.

    A middle order statistic of equal values has slope 0 along every coordinate, and gradient 1 for one. What
    is inside for each alone may be too much for all: a maximum gives its gradient to equal entries once.
    """
    unsure = OPEN if c.asked.declared else UNSEEN
    for k, column in torn.nonzero().tolist():
        found = c.slopes.get(column)
        inside = False
        if found is not None:
            _, error, low, high = (t[k] for t in c.weighed(found))
            room, a = float(error) + c.bar(k, column), float(c.mine[k, column])
            inside = float(low) - room <= a <= float(high) + room
        c.state[k, column] = RIGHT if inside else unsure
        c.reasons.setdefault((c.owner[k], c.inputs.block_of(column)), Reason.KINK)
    c.state[torn & _beyond_together(c, torn.any(dim=0) & (c.values.scale > 0))[:, None]] = unsure


def _beyond_together(c: Open, columns: Tensor) -> Tensor:
    """Rows whose claim is no mean of the slopes nearby along some columns together (bool, K)."""
    beyond, way = torch.zeros(len(c.mine), dtype=torch.bool), columns.double()
    if not columns.any() or c.left < TOGETHER or len(c.steps.levels) <= 3:
        return beyond
    step = c.steps.levels[2]
    v = c.values.turned(way) * c.values.scale[columns].min()
    each = [way, *(c.way(71 + k) for k in range(2))]
    ways = (sign * BESIDE * w for w in each for sign in (1.0, -1.0))
    points = (c.values.beside(c.values.turned(w)) for w in ways)
    nearby = torch.stack([c.u @ point.first_difference(v, step)[0] for point in points])
    said = finite_part(c.mine) @ v
    noise = SAFETY * c.steps.epsilon / step * (c.u.abs() @ c.values.centre.abs())
    room = noise + OF_A_SLOPE * nearby.abs().amax(dim=0)
    return (said < nearby.amin(dim=0) - room) | (said > nearby.amax(dim=0) + room)
