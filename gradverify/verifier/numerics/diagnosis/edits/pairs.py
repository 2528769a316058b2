"""Two mistakes in one backward: neither change makes it right alone, both together do."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.cause import Cause
from gradverify.verifier.numerics.diagnosis.edits.edit import Edit
from gradverify.verifier.numerics.diagnosis.edits.search import Trial, first_edit, trial_of
from gradverify.verifier.numerics.diagnosis.edits.telling import told
from gradverify.verifier.numerics.diagnosis.evidence import Pair, Pairs

MOST_STARTS = 6
"""Changes that make a part right, on top of which others are tried."""

MOST_SECOND = 2000
"""Second changes that are tried on top of all of these together."""

MOST_OPERATIONS = 200_000
"""Operations of torch that these may run."""

MOST_MATCHES = 24
"""Pairs of changes that fit by what each gives alone and are tried together."""

LEAST_JUDGED = 3
"""Entries of a gradient without which two numbers add up to a third by chance."""

MOST_SUMS = 4000
"""... of which so many are put in order."""

ALIKE = 1e-7
"""Two sums are the same within this share."""

SEED = 21
"""Of the direction along which what changes give is sorted."""


def two_edits(pairs: Pairs) -> Cause | None:
    """Two changes that make backward right at every point together, where no single one does."""
    trial = trial_of(pairs)
    if trial is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of programs that nobody wrote
        repair = trial.known(2)
        if repair is None:
            found = next((both for both in _both(trial) if trial.take_back(*both)), None)
            repair = None if found is None else trial.repaired(*found)
    return None if repair is None else told(repair.edits, repair.scene)


def _both(trial: Trial) -> Iterator[tuple[Edit, Edit]]:
    """What repairs another gradient and one more, what fits by its numbers, what helps in part."""
    simple = [edit for edit in trial if edit.is_simple]
    elsewhere = _of_other_gradients(trial)
    room = min(MOST_SECOND, trial.most, MOST_OPERATIONS // trial.scene.operations)
    seconds = ((one, two) for one in elsewhere for two in simple if _are_apart(one, two))
    yield from itertools.islice(seconds, room // 2)
    yield from itertools.islice(_fitting(trial, simple), MOST_MATCHES)
    starts = _helping(trial, simple)
    seconds = ((one, two) for one in starts for two in simple if _are_apart(one, two))
    yield from itertools.islice(seconds, room // 2)


def _of_other_gradients(trial: Trial) -> list[Edit]:
    """The change that makes the gradient of each other input right that is wrong, too."""
    found: dict[tuple[int, str], Edit] = {}
    first = trial.pairs[0]
    for source in range(len(first.point.inputs.blocks)):
        others = [Pair(pair.point, pair.output, source) for pair in trial.pairs]
        if source == first.source or not any(pair.is_wrong for pair in others):
            continue
        one = trial_of(others)
        edit = None if one is None else first_edit(one)
        if edit is not None:
            found[edit.key] = edit
    return [*found.values()]


def _fitting(trial: Trial, simple: Sequence[Edit]) -> list[tuple[Edit, Edit]]:
    """What each adds, or multiplies by, comes to what is missing: terms and factors that do not meet.

    The likeliest of changes first, as they are in order.
    """
    own, true, allowed = trial.seen.own_gradient, trial.seen.true, trial.seen.allowed
    given = [(k, v) for k, edit in enumerate(simple) if (v := trial.seen.given(edit)) is not None]
    moved = [(k, v) for k, v in given if bool(((v - own).abs() > allowed).any())]
    if own.numel() < LEAST_JUDGED or not moved:
        return []
    places = torch.tensor([k for k, _ in moved])
    values = torch.stack([v for _, v in moved])
    found = _summing_to(places, values - own, true - own, allowed)
    if bool((own != 0).all()) and bool((true != 0).all()):
        ratios = values / own
        whole = (ratios.abs() > 0).all(dim=1)
        logs = ratios[whole].abs().log()
        found += _summing_to(places[whole], logs, (true / own).abs().log(), allowed / true.abs())
    ordered = sorted({(a, b) for a, b in found if _are_apart(simple[a], simple[b])}, key=sum)
    return [(simple[a], simple[b]) for a, b in ordered]


def _summing_to(places: Tensor, moves: Tensor, missing: Tensor, allowed: Tensor) -> list[tuple[int, int]]:
    """The places of every two rows that sum to what is missing, found along one direction."""
    generator = torch.Generator().manual_seed(SEED)
    direction = torch.randn(missing.numel(), generator=generator, dtype=torch.float64)
    along, order = (moves @ direction).sort()
    slack = 2 * float(allowed @ direction.abs()) + ALIKE * float(missing.abs() @ direction.abs())
    wanted = float(missing @ direction) - along
    low, high = torch.searchsorted(along, wanted - slack), torch.searchsorted(along, wanted + slack)
    found: list[tuple[int, int]] = []
    for k, (start, stop) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        for j in range(max(start, k + 1), stop):
            one, two = int(order[k]), int(order[j])
            gap = (moves[one] + moves[two] - missing).abs()
            if len(found) < MOST_SUMS and bool((gap <= 2 * allowed + ALIKE * missing.abs()).all()):
                a, b = sorted((int(places[one]), int(places[two])))
                found.append((a, b))
    return found


def _helping(trial: Trial, simple: Sequence[Edit]) -> list[Edit]:
    """Changes after which more entries are right and none is wrong that was right; most entries first."""
    right = trial.seen.right(trial.seen.own_gradient)
    found: list[tuple[int, int, Edit]] = []
    for number, edit in enumerate(simple):
        value = trial.seen.given(edit)
        if value is None:
            continue
        now = trial.seen.right(value)
        if bool((now | ~right).all()) and bool((now & ~right).any()):
            found.append((-int(now.sum()), number, edit))
    return [edit for _, _, edit in sorted(found, key=lambda one: one[:2])[:MOST_STARTS]]


def _are_apart(one: Edit, two: Edit) -> bool:
    """Whether both can be made at once: not in one place, and no block's statements are counted anew."""
    if any(isinstance(edit.node, list) or isinstance(edit.slot.node, list) for edit in (one, two)):
        return False
    places = {(id(edit.slot.parent), edit.slot.field, edit.slot.place) for edit in (one, two)}
    return len(places) > 1
