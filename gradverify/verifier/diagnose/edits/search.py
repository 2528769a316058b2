"""Backward with one small change in its source is right: the mistake stands there."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.edits.edit import Edit
from gradverify.verifier.diagnose.edits.harmless import is_harmless
from gradverify.verifier.diagnose.edits.messages import told
from gradverify.verifier.diagnose.edits.order import edits_of
from gradverify.verifier.diagnose.edits.own_backward import OwnBackward
from gradverify.verifier.diagnose.edits.traced_backward import TracedBackward, traced
from gradverify.verifier.diagnose.evidence import RELATIVE, ROUNDING, Pair, Pairs, Point, sizes_seen

MOST_STEPS = 2_000_000
"""Expressions that all changed backwards together may evaluate: a loop has many in one backward."""

SEED = 12
"""Of the random grad_output."""

AGREES = 1e-7
"""Gradients along one grad_output agree within this share of the sum of their terms."""

LARGE = (2.0**20, -(2.0**-20))
"""Multiples of a grad_output whose gradients must be the same multiples: in a clamp, they would not be."""


def one_edit(pairs: Pairs) -> Cause | None:
    """The first change after which backward gives forward's derivative by every input at every point."""
    first = next((pair for pair in pairs if pair.is_wrong and pair.nonzero.any()), None)
    owns = [pair.point.own_backward for pair in pairs]
    if first is None or any(own is None for own in owns) or sizes_seen(pairs) < 2:
        return None
    points = [*{id(pair.point): pair.point for pair in (first, *pairs)}.values()]
    own = first.point.own_backward
    assert own is not None  # noqa: S101
    found = own.repairs.found
    known = next((k for k, (edit, run) in enumerate(found) if _is_right(points, edit, run)), None)
    if known is None and not _searched(first, points, own):
        return None
    return told(*found[-1 if known is None else known])


def _searched(first: Pair, points: list[Point], own: OwnBackward) -> bool:
    """Whether a change is found; it is kept for the other gradients, and so is that there is none."""
    wrong = frozenset(pair.name for point in points for pair in point.pairs() if pair.is_wrong)
    positions = _positions(wrong, own)
    if own.repairs.most == 0 or positions in own.repairs.searched:
        return False
    own.repairs.searched.add(positions)
    run = _traced(own)
    if run is None:
        return False
    expected = _Expected.of(first)
    most = min(own.repairs.most, MOST_STEPS // run.steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of programs that nobody wrote
        for edit in itertools.islice(edits_of(run, positions), most):
            backward = _with(edit, run)
            if backward is None or not expected.is_given_by(own, backward):
                continue
            if not _is_right(points, edit, run):
                continue
            if not any(place.refutes(backward, wrong) for place in own.repairs.further):
                own.repairs.found.append((edit, run))
                return True
    return False


def _traced(own: OwnBackward) -> TracedBackward | None:
    """One run of a backward; None for one that must not be run otherwise."""
    source = own.source()
    if source is None or not is_harmless(source.function, source.tree):
        return None
    return traced(source, own.forward_source(), own.start)


def _with(edit: Edit, run: TracedBackward) -> Callable[..., Any] | None:
    """Backward with the change in it; None where that is no program."""
    with edit.slot.holding(edit.node):
        return run.source.compiled()


def _positions(names: frozenset[str], own: OwnBackward) -> frozenset[int]:
    """Positions of inputs in the call: a list of tensors has one."""
    positions: dict[str, int] = {}
    position, open_list = -1, ""
    for argument in own.problem.arguments:
        position += not (argument.in_list and argument.in_list == open_list)
        open_list = argument.in_list
        positions[argument.name] = position
    return frozenset(positions.get(name, -1) for name in names)


@dataclass(frozen=True)
class _Expected:
    """What backward must give for one random grad_output, at the columns that are known."""

    output: int
    u: Tensor
    columns: Tensor
    gradient: Tensor
    allowed: Tensor

    @staticmethod
    def of(first: Pair) -> _Expected:
        """Of the output of a block."""
        generator = torch.Generator().manual_seed(SEED)
        rows = first.true.shape[0]
        signs = torch.randint(0, 2, (rows,), generator=generator).double() * 2 - 1
        u = signs * (0.5 + torch.rand(rows, generator=generator, dtype=torch.float64))
        columns, gradients, allowed = [], [], []
        for pair in first.point.pairs(first.output):
            judged = pair.known.all(dim=0)
            true = torch.where(judged, pair.true, 0.0)
            bound = torch.where(judged, pair.bound, 0.0)
            columns.append(judged)
            gradients.append(u @ true)
            allowed.append(u.abs() @ (AGREES * true.abs() + bound) + ROUNDING * pair.scale * u.abs().sum())
        return _Expected(first.output, u, *(torch.cat(parts) for parts in (columns, gradients, allowed)))

    def is_given_by(self, own: OwnBackward, backward: Callable[..., Any]) -> bool:
        """Whether another backward gives it."""
        found = own.pulled_back(self.output, self.u, backward)
        if found is None:
            return False
        return bool(((found - self.gradient).abs() <= self.allowed)[self.columns].all())


def _is_right(points: list[Point], edit: Edit, run: TracedBackward) -> bool:
    """Whether backward with a change in it is right at every entry of every point."""
    for point in points:
        own = point.own_backward
        if own is None or not own.is_started():
            return False
        if edit not in own.mended:
            backward = _with(edit, run)
            outputs = range(len(point.outputs.blocks))
            own.mended[edit] = backward is not None and all(
                _is_right_of(point, output, own, backward) for output in outputs
            )
        if not own.mended[edit]:
            return False
    return True


def _is_right_of(point: Point, output: int, own: OwnBackward, backward: Callable[..., Any]) -> bool:
    rows = own.rows(output, backward)
    if rows is None or not all(_agrees(pair, rows) for pair in point.pairs(output)):
        return False
    return _is_linear(own, output, rows, backward)


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
