"""Backward with one small change in its source is right: the mistake stands there."""

from __future__ import annotations

import ast
import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.diagnose.cause import Cause, InBackward
from gradverify.verifier.diagnose.edits.edit import Edit
from gradverify.verifier.diagnose.edits.harmless import is_harmless
from gradverify.verifier.diagnose.edits.known import centred, multiplied, renumbered, replaced
from gradverify.verifier.diagnose.edits.own_backward import OwnBackward
from gradverify.verifier.diagnose.edits.patch import patch_of
from gradverify.verifier.diagnose.edits.rewrites import around, by_form, cause_of_number, of_statements
from gradverify.verifier.diagnose.edits.traced_backward import TracedBackward, traced
from gradverify.verifier.diagnose.evidence import RELATIVE, ROUNDING, Pair, Pairs, Point, sizes_seen

MOST_STEPS = 2_000_000
"""Expressions that all changed backwards together may evaluate: a loop has many in one backward."""

SHARE = 4
"""Of the calls that are left, one of so many is kept for other gradients, and for smaller inputs."""

AGREES = 1e-7
"""Gradients of multiples agree within this share of the sum of their terms."""

LARGE = (2.0**20, -(2.0**-20))
"""Multiples of a grad_output whose gradients must be the same multiples: in a clamp, they would not be."""

LONGEST_SHOWN = 76
"""Characters of a piece of backward that a sentence shows."""


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
    return _reported(*found[-1 if known is None else known])


def _searched(first: Pair, points: list[Point], own: OwnBackward) -> bool:
    """Whether a change is found; it is kept for the other gradients, and so is that there is none."""
    wrong = frozenset(pair.name for point in points for pair in point.pairs() if pair.is_wrong)
    if not own.repairs.is_searched or wrong in own.repairs.searched:
        return False
    own.repairs.searched.add(wrong)
    run = _traced(own)
    if run is None:
        return False
    row = int(first.wrong.sum(1).argmax())
    least_left = own.repairs.allowance.left // SHARE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of generated programs
        for edit in itertools.islice(edits_of(run), MOST_STEPS // run.steps):
            if not own.repairs.allowance.covers(least_left + 1):
                return False
            backward = _with(edit, run)
            if backward is None or not _is_right_in(row, first, own, backward):
                continue
            if not _is_right(points, edit, run):
                continue
            if not any(place.refutes(backward, wrong) for place in own.repairs.further):
                own.repairs.found.append((edit, run))
                return True
    return False


def edits_of(run: TracedBackward) -> Iterator[Edit]:
    """The likeliest first: of what is there, what may be lost around it, then what stands elsewhere."""
    yield from of_statements(run.source.whole)
    values = [(slot, run.values[k]) for k, slot in enumerate(run.slots) if k in run.values]
    for slot, value in values:
        yield from by_form(slot, value, run.parents)
        yield from renumbered(slot, value, run.known, cause_of_number(slot, run.parents))
    for slot, value in values:
        yield from replaced(slot, value, run.known)
    for slot, value in values:
        yield from around(slot, value)
    for made in (centred, multiplied):
        for slot, value in values:
            yield from made(slot, value, run.known)


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


def _is_right_in(row: int, first: Pair, own: OwnBackward, backward: Callable[..., Any]) -> bool:
    """Whether a changed backward is right for one output: most changes leave wrong what is wrong."""
    unit = torch.zeros(first.true.shape[0], dtype=torch.float64)
    unit[row] = 1.0
    found = own.pulled_back(first.output, unit, backward)
    rows = slice(row, row + 1)
    return found is not None and all(
        _agrees(pair, found[None], rows) for pair in first.point.pairs(first.output)
    )


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


def _agrees(pair: Pair, found: Tensor, rows: slice = slice(None)) -> bool:
    """Whether some rows of the gradients by all inputs are the true ones of a block."""
    block = found[:, pair.source_block.start : pair.source_block.stop]
    true, bound, known = pair.true[rows], pair.bound[rows], pair.known[rows]
    allowed = bound + RELATIVE * (block.abs() + true.abs()) + ROUNDING * pair.scale
    return bool(((block - true).abs() <= allowed)[known].all())


def _reported(edit: Edit, run: TracedBackward) -> Cause:
    """The change as a cause: what is there, what makes it right, and the line."""
    file = Path(run.source.function.__code__.co_filename)
    before, after = _shown(edit, run)
    line = getattr(edit.slot.node, "lineno", 0)
    function = _function_of(edit, run)
    helper = "" if function is run.source.tree else function.name
    patch = patch_of(edit, function, run.parents, file)
    change = InBackward(file.name, line, before, after, helper, edit.cause, patch)
    return Cause(edit.cause, is_weak=True, change=change)


def _function_of(edit: Edit, run: TracedBackward) -> ast.FunctionDef:
    """The function in which the change stands: backward itself, or one that it calls."""
    helpers = {id(helper): helper for helper in run.source.helpers}
    node: ast.AST | None = edit.slot.parent
    while node is not None and id(node) not in helpers:
        node = run.parents.get(id(node))
    return run.source.tree if node is None else helpers[id(node)]


def _shown(edit: Edit, run: TracedBackward) -> tuple[str, str]:
    """What is there and what should: with as much around it as a sentence takes."""
    with edit.slot.holding(edit.node):
        shown = _text(edit.slot.node), _text(edit.node)
    around: ast.AST | None = run.parents.get(id(edit.slot.node))
    while around is not None and not isinstance(around, ast.FunctionDef) and not edit.is_whole:
        if isinstance(around, ast.expr | ast.Assign | ast.AugAssign | ast.Return | ast.Expr):
            text = ast.unparse(around)
            if len(text) > LONGEST_SHOWN:
                break
            with edit.slot.holding(edit.node):
                shown = text, ast.unparse(around)
        around = run.parents.get(id(around))
    return shown


def _text(node: ast.AST | list[ast.stmt]) -> str:
    nodes = node if isinstance(node, list) else [node]
    if isinstance(nodes[0], ast.For):
        return f"for {ast.unparse(nodes[0].target)} in {ast.unparse(nodes[0].iter)}"
    text = "; ".join("" if isinstance(one, ast.Pass) else ast.unparse(one) for one in nodes)
    return " ".join(text.split())
