"""Backward with one small change in its source is right: the mistake stands there."""

from __future__ import annotations

import ast
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.cause import Cause
from gradverify.verifier.numerics.diagnosis.edits.around import of_values
from gradverify.verifier.numerics.diagnosis.edits.edit import Edit
from gradverify.verifier.numerics.diagnosis.edits.elsewhere import added, multiplied, replaced
from gradverify.verifier.numerics.diagnosis.edits.flow import flow_of
from gradverify.verifier.numerics.diagnosis.edits.harmless import is_harmless
from gradverify.verifier.numerics.diagnosis.edits.operators import Role, of_operators
from gradverify.verifier.numerics.diagnosis.edits.own_backward import OwnBackward
from gradverify.verifier.numerics.diagnosis.edits.scene import Scene, Value, scene_of
from gradverify.verifier.numerics.diagnosis.edits.source import Slot
from gradverify.verifier.numerics.diagnosis.edits.statements import of_statements
from gradverify.verifier.numerics.diagnosis.edits.telling import told
from gradverify.verifier.numerics.diagnosis.evidence import RELATIVE, ROUNDING, Pair, Pairs, sizes_of

MOST_EDITS = 4000
"""Changes that are tried."""

MOST_OPERATIONS = 400_000
"""Operations of torch that all of them together may run: a loop has many in one backward."""

SEED = 12
"""Of the random grad_output."""

AGREES = 1e-7
"""Gradients along one grad_output agree within this share of the sum of their terms."""


def one_edit(pairs: Pairs) -> Cause | None:
    """The first change after which backward gives forward's derivative at every point, and spoils nothing."""
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
    seen = _Seen(first, own)
    most = min(MOST_EDITS, MOST_OPERATIONS // scene.operations)
    tried = itertools.islice(_edits(scene, _wrong_positions(pairs, own)), most)
    ordered = [first, *(pair for pair in pairs if pair is not first)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of programs that nobody wrote
        found = next((edit for edit in tried if _takes_back(edit, scene, seen, ordered)), None)
    return None if found is None else told(found, scene)


def _takes_back(edit: Edit, scene: Scene, seen: _Seen, pairs: Pairs) -> bool:
    """Whether backward is right at every point with a change in it."""
    if not seen.may_agree(edit):
        return False
    with edit.slot.holding(edit.node):
        backward = scene.source.compiled()
    if backward is None or not seen.agrees(edit, backward):
        return False
    return all(_is_right(pair, backward) for pair in pairs)


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


class _Seen:
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


def _is_right(pair: Pair, backward: Callable[..., Any]) -> bool:
    """Whether it is at every entry of a point, and nothing is wrong that was right before."""
    own = pair.point.own_backward
    if own is None or not own.is_started():
        return False
    for output in range(len(pair.point.outputs.blocks)):
        rows = own.rows(output, backward)
        if rows is None or not _is_linear(own, output, rows, backward):
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


def _edits(scene: Scene, wrong: frozenset[int]) -> Iterator[Edit]:
    """First of what takes part in the gradients that are wrong alone; none of what is in none of them."""
    flow = flow_of(scene.source.tree)

    def rank(slot: Slot) -> int | None:
        reached = flow.of(slot.node if isinstance(slot.node, ast.AST) else slot.parent, scene.parents)
        if not flow.everything or reached == wrong:
            return 0
        return None if not reached & wrong else 1 if reached <= wrong else 2

    values = [(slot, scene.values[k]) for k, slot in enumerate(scene.slots) if k in scene.values]
    ranks = [rank(slot) for slot, _ in values]
    for now in range(3):
        yield from (edit for edit in of_statements(scene.source.tree) if rank(edit.slot) == now)
        yield from _of_values([pair for pair, k in zip(values, ranks, strict=True) if k == now], scene)


def _of_values(values: Sequence[tuple[Slot, Value]], scene: Scene) -> Iterator[Edit]:
    """The likeliest first: of what stands there, what may be lost around it, then what stands elsewhere."""
    names = [one for one in scene.known if one.is_name]
    others = [one for one in scene.known if not one.is_name]
    for slot, value in values:
        yield from of_operators(slot, value, names, _role(slot, scene))
    for made in (
        lambda slot, value: replaced(slot, value, names),
        of_values,
        lambda slot, value: multiplied(slot, value, names, names=True),
        lambda slot, value: added(slot, value, names),
        lambda slot, value: replaced(slot, value, others),
        lambda slot, value: multiplied(slot, value, others, names=False),
        lambda slot, value: added(slot, value, others),
    ):
        for slot, value in values:
            yield from made(slot, value)


REDUCTIONS = frozenset(
    {
        "sum",
        "mean",
        "amax",
        "amin",
        "prod",
        "softmax",
        "log_softmax",
        "logsumexp",
        "norm",
        "var",
        "std",
        "cumsum",
    }
)
"""Functions along a dimension."""


def _role(slot: Slot, scene: Scene) -> Role:
    """Whether a number there is an index, in the brackets behind a value, or a dimension."""
    node: ast.AST | None = slot.node if isinstance(slot.node, ast.AST) else None
    while node is not None and not isinstance(node, ast.stmt):
        around = scene.parents.get(id(node))
        match around:
            case ast.Subscript(slice=part) if part is node:
                return Role.INDEX
            case ast.keyword(arg="dim" | "axis"):
                return Role.DIM
            case ast.Call(func=ast.Attribute(attr=name), args=arguments) if name in REDUCTIONS:
                return Role.DIM if any(node is a for a in arguments) else Role.VALUE
            case ast.UnaryOp() | ast.BinOp() | ast.Tuple() | ast.Slice():
                node = around
            case _:
                return Role.VALUE
    return Role.VALUE
