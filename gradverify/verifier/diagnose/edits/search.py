"""Backward with one small change in its source is right: the mistake stands there."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.edits.edit import Edit
from gradverify.verifier.diagnose.edits.harmless import is_harmless
from gradverify.verifier.diagnose.edits.order import edits_of
from gradverify.verifier.diagnose.edits.own_backward import Key, OwnBackward
from gradverify.verifier.diagnose.edits.repairs import Listed, Repair
from gradverify.verifier.diagnose.edits.scene import Scene, scene_of
from gradverify.verifier.diagnose.edits.source import Source
from gradverify.verifier.diagnose.edits.telling import told
from gradverify.verifier.diagnose.evidence import RELATIVE, ROUNDING, Pair, Pairs, sizes_of

MOST_OPERATIONS = 800_000
"""Operations of torch that all of them together may run: a loop has many in one backward."""

SEED = 12
"""Of the random grad_output."""

AGREES = 1e-7
"""Gradients along one grad_output agree within this share of the sum of their terms."""


@dataclass(frozen=True)
class Trial:
    """One block at several points, and the backward whose source is changed."""

    scene: Scene
    seen: Seen
    pairs: Pairs
    """The one that is looked at first stands first."""
    edits: Listed
    most: int
    """How many of them are tried."""

    def __iter__(self) -> Iterator[Edit]:
        """The changes that are tried."""
        return itertools.islice(self.edits, self.most)

    def takes_back(self, edit: Edit) -> bool:
        """Whether backward is right at every point and further place with a change in it."""
        return self._repairs(Repair(edit, self.scene))

    def mends_all(self, edit: Edit) -> bool:
        """Whether nothing at all is wrong with it: no other output's gradient either."""
        backward = _with(Repair(edit, self.scene))
        others = {id(pair.point): pair.point for pair in self.pairs}.values()
        blocks = [
            Pair(point, output, source)
            for point in others
            for output in range(len(point.outputs.blocks))
            for source in range(len(point.inputs.blocks))
        ]
        wrong = [block for block in blocks if block.is_wrong]
        return backward is not None and all(_is_right(block, backward, edit.key) for block in wrong)

    def known(self) -> Repair | None:
        """A change that is known and makes this right, too.

        What repairs one gradient alone is no repair of another one while there may be a better one.
        """
        repairs = self.seen.own.repairs
        found = [r for r in repairs.found if r.is_whole or not repairs.most]
        return next((repair for repair in found if self._repairs(repair)), None)

    def repaired(self, edit: Edit) -> Repair:
        """What this change is, kept for other gradients and other points."""
        repair = Repair(edit, self.scene, self.mends_all(edit))
        self.seen.own.repairs.found.append(repair)
        return repair

    def _repairs(self, repair: Repair) -> bool:
        backward = _with(repair)
        if backward is None or not self.seen.agrees(repair.edit, backward):
            return False
        if not all(_is_right(pair, backward, repair.edit.key) for pair in self.pairs):
            return False
        return not any(place.refutes(self.pairs[0], backward) for place in self.seen.own.repairs.further)


def _with(repair: Repair) -> Callable[..., Any] | None:
    """Backward with the change in it; None where that is no program."""
    with repair.edit.slot.holding(repair.edit.node):
        source: Source = repair.scene.source
        return source.compiled()


def one_edit(pairs: Pairs) -> Cause | None:
    """The first change after which backward gives forward's derivative at every point, and spoils nothing."""
    trial = trial_of(pairs)
    if trial is None:
        return None
    repair = trial.known()
    if repair is None:
        found = first_edit(trial)
        repair = None if found is None else trial.repaired(found)
    return None if repair is None else told(repair.edit, repair.scene)


def trial_of(pairs: Pairs) -> Trial | None:
    """What is needed to try changes on a block; None where nothing can be tried."""
    wrong = [pair for pair in pairs if pair.is_wrong]
    first = next((pair for pair in wrong if pair.nonzero.any()), None)
    owns = [pair.point.own_backward for pair in pairs]
    if first is None or any(own is None for own in owns) or len({sizes_of(pair) for pair in pairs}) < 2:
        return None
    own = first.point.own_backward
    assert own is not None  # noqa: S101
    scene = _scene(own)
    if scene is None:
        return None
    most = min(own.repairs.most, MOST_OPERATIONS // scene.operations)
    at = _wrong_positions(pairs, own)
    if at not in scene.edits:
        scene.edits[at] = Listed(edits_of(scene, at))
    return Trial(
        scene, Seen(first, own), [first, *(p for p in pairs if p is not first)], scene.edits[at], most
    )


def first_edit(trial: Trial) -> Edit | None:
    """The first change that does it alone, of those that leave nothing wrong if there is one.

    One mistake has many gradients: what makes one of them right and not the others may be luck.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of programs that nobody wrote
        edits = iter(trial)

        def following(most: int | None) -> Iterator[Edit]:
            tried = (edit for edit in itertools.islice(edits, most) if trial.seen.may_agree(edit))
            return (edit for edit in tried if trial.takes_back(edit))

        first = next(following(None), None)
        if first is None or trial.mends_all(first):
            return first
        further = min(MOST_FURTHER, trial.most, MOST_OPERATIONS_FURTHER // trial.scene.operations)
        return next((edit for edit in following(further) if trial.mends_all(edit)), first)


MOST_FURTHER = 1000
"""Changes behind one that makes a gradient right among which one is looked for that makes all right."""

MOST_OPERATIONS_FURTHER = 100_000
"""Operations of torch that these may run."""


def _scene(own: OwnBackward) -> Scene | None:
    """One run of a backward, kept for all of its gradients; None for one that must not be run otherwise."""
    if own.scene is None:
        source = own.source()
        if source is None or not is_harmless(source.function, source.tree):
            return None
        own.scene = scene_of(source, own.forward_source(), own.start)
    found: Scene | None = own.scene
    return found


def _wrong_positions(pairs: Pairs, own: OwnBackward) -> frozenset[int]:
    """Positions in the call of the inputs whose gradients are wrong anywhere."""
    positions: dict[str, int] = {}
    position, open_list = -1, ""
    for argument in own.problem.arguments:
        position += not (argument.in_list and argument.in_list == open_list)
        open_list = argument.in_list
        positions[argument.name] = position
    found = set()
    for point in {id(pair.point): pair.point for pair in pairs}.values():
        for source, name in enumerate(point.input_names):
            if any(Pair(point, output, source).is_wrong for output in range(len(point.outputs.blocks))):
                found.add(positions.get(name, -1))
    return frozenset(found)


class Seen:
    """One pair along one random grad_output."""

    def __init__(self, pair: Pair, own: OwnBackward) -> None:
        self.pair, self.own = pair, own
        generator = torch.Generator().manual_seed(SEED)
        rows = pair.true.shape[0]
        signs = torch.randint(0, 2, (rows,), generator=generator).double() * 2 - 1
        self.u = signs * (0.5 + torch.rand(rows, generator=generator, dtype=torch.float64))
        self.judged = pair.known.all(dim=0)
        true = torch.where(self.judged, pair.true, 0.0)
        bound = torch.where(self.judged, pair.bound, 0.0)
        self.true = (self.u @ true)[self.judged]
        terms = self.u.abs() @ (AGREES * true.abs() + bound)
        self.allowed = (terms + ROUNDING * pair.scale * self.u.abs().sum())[self.judged]

    def may_agree(self, edit: Edit) -> bool:
        """Whether a change that was tried for another gradient is worth a second look."""
        key = self.pair.output, edit.key
        return key not in self.own.tried or self._is_near(self.own.tried[key])

    def agrees(self, edit: Edit, backward: Callable[..., Any]) -> bool:
        """Whether the changed backward gives forward's derivative."""
        whole = self.own.pulled_back(self.pair.output, self.u, backward)
        self.own.tried[self.pair.output, edit.key] = whole
        return self._is_near(whole)

    def _is_near(self, whole: Tensor | None) -> bool:
        if whole is None:
            return False
        block = self.pair.source_block
        gradient = whole[block.start : block.stop][self.judged]
        return bool(((gradient - self.true).abs() <= self.allowed).all())


def _is_right(pair: Pair, backward: Callable[..., Any], key: Key) -> bool:
    """Whether it is at every entry of a point, and nothing is wrong that was right before."""
    own = pair.point.own_backward
    if own is None or not own.is_started():
        return False
    for output in range(len(pair.point.outputs.blocks)):
        if (output, key) not in own.whole:
            rows = own.rows(output, backward)
            linear = rows is not None and _is_linear(own, output, rows, backward)
            own.whole[output, key] = rows if linear else None
        rows = own.whole[output, key]
        if rows is None:
            return False
        for source in range(len(pair.point.inputs.blocks)):
            one = Pair(pair.point, output, source)
            is_it = (output, source) == (pair.output, pair.source)
            if (is_it or not one.is_wrong) and not _agrees(one, rows):
                return False
    return True


LARGE = (2.0**20, -(2.0**-20))
"""Multiples of a grad_output whose gradients must be the same multiples: in a clamp, they would not be."""


def _is_linear(own: OwnBackward, output: int, rows: Tensor, backward: Callable[..., Any]) -> bool:
    """Whether a changed backward is linear in grad_output, also for a very large and a very small one."""
    u = torch.linspace(1.0, 2.0, rows.shape[0], dtype=torch.float64)
    expected, terms = u @ rows, u @ rows.abs()
    for scale in LARGE:
        found = own.pulled_back(output, scale * u, backward)
        allowed = AGREES * (terms + terms.max())
        if found is None or not bool(((found / scale - expected).abs() <= allowed).all()):
            return False
    return True


def _agrees(pair: Pair, rows: Tensor) -> bool:
    block = rows[:, pair.source_block.start : pair.source_block.stop]
    allowed = pair.bound + RELATIVE * (block.abs() + pair.true.abs()) + ROUNDING * pair.scale
    return bool(((block - pair.true).abs() <= allowed)[pair.known].all())
