"""Backward with one small change in its source is right: the mistake stands there.

A change of backward as lines of its file: what is there is left as its author formatted it.

What backward's expressions come to when it runs: of what shape each is, and which values are at hand.
"""

from __future__ import annotations

import ast
import copy
import itertools
import linecache
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradverify.model import LinePatch, shown_path
from gradverify.verifier.diagnose.edits.numbers import (
    is_borne_out,
    scaled_before_comparing,
    written_elsewhere,
    written_in,
)
from gradverify.verifier.diagnose.edits.out_of_place import computed_out_of_place
from gradverify.verifier.diagnose.edits.own_backward import OwnBackward, Repairs
from gradverify.verifier.diagnose.edits.rewrites import (
    OF_TORCH,
    Known,
    Value,
    around,
    as_it_is,
    by_form,
    cause_of_number,
    centred,
    known_in,
    multiplied,
    of_statements,
    renumbered,
    replaced,
)
from gradverify.verifier.diagnose.edits.source import (
    Edit,
    Node,
    Slot,
    Source,
    is_harmless,
    parents_of,
    resolved,
    slots,
)
from gradverify.verifier.diagnose.evidence import (
    RELATIVE,
    ROUNDING,
    Cause,
    InBackward,
    Pair,
    Pairs,
    Point,
    sizes_seen,
)
from gradverify.verifier.numerics.calling import bits_of

WHOLE = ast.expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr
"""What may be written anew around a change: nothing with further statements in it."""


def patch_of(
    edit: Edit, function: ast.FunctionDef, parents: Mapping[int, ast.AST], file: Path
) -> LinePatch | None:
    """The lines that a change of a function of a file replaces; None where no lines say that change alone.

    The changed lines parse to the very tree that was run: parentheses are added where they must be.
    """
    lines = linecache.getlines(str(file))
    if not lines or function.end_lineno is None or function.end_lineno > len(lines):
        return None
    with edit.slot.holding(edit.node):
        meant = ast.unparse(function)
    for patch in _patches(edit, parents, lines, _indent(lines[function.lineno - 1])):
        if patch is not None and _says(patch, meant, function, lines):
            first = patch.line - 1
            end = first + len(patch.removed)
            return LinePatch.within(shown_path(file), lines, first, end, patch.added)
    return None


def _patches(
    edit: Edit, parents: Mapping[int, ast.AST], lines: list[str], indent: int
) -> Iterator[LinePatch | None]:
    """What may say the change: lines above a statement that stays, or others for what holds the change."""
    node = edit.slot.node
    if isinstance(edit.node, list) and edit.node[-1:] == [node] and isinstance(node, ast.stmt):
        here = lines[node.lineno - 1].rstrip("\r\n")
        above = [" " * _indent(here) + line for line in _printed(edit.node[:-1]).split("\n")]
        yield LinePatch("", node.lineno, (here,), (*above, here))
        return
    for span, text in _spans(edit, parents):
        yield _replaced(span, text, lines, indent)


def _spans(edit: Edit, parents: Mapping[int, ast.AST]) -> Iterator[tuple[ast.AST, str]]:
    """Nodes that hold the change, the smallest first, with what is to stand in their place."""
    node: ast.AST | None = edit.slot.node
    text = _printed(edit.node)
    while node is not None:
        if hasattr(node, "end_lineno"):
            if isinstance(node, ast.Tuple) and text.startswith("("):
                yield node, text[1:-1]  # as authors write it, where that says the same
            yield node, text
            if isinstance(node, ast.expr):
                yield node, f"({text})"
        if isinstance(node, ast.stmt):
            return
        node = parents.get(id(node))
        if not isinstance(node, WHOLE):
            return
        with edit.slot.holding(edit.node):
            text = ast.unparse(node)


def _printed(node: Node) -> str:
    return "\n".join(ast.unparse(one) for one in (node if isinstance(node, list) else [node]))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _replaced(node: ast.AST, text: str, lines: list[str], indent: int) -> LinePatch | None:
    """The lines of a node with a text in its place; columns of nodes are bytes of what was dedented."""
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    start, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0)
    old = [line.rstrip("\r\n") for line in lines[first - 1 : last]]
    if not old or any(line[:indent].strip() for line in old):
        return None
    before = old[0].encode()[: start + indent].decode(errors="replace")
    after = old[-1].encode()[end + indent :].decode(errors="replace")
    indented = text.replace("\n", "\n" + " " * _indent(old[0]))
    new = f"{before}{indented}{after}".split("\n")
    return LinePatch("", first, tuple(old), tuple(new if text else []))


def _says(patch: LinePatch, meant: str, function: ast.FunctionDef, lines: list[str]) -> bool:
    """Whether the function with these lines is the tree that is meant."""
    own = [line.rstrip("\r\n") for line in lines[function.lineno - 1 : function.end_lineno]]
    at = patch.line - function.lineno
    own[at : at + len(patch.removed)] = patch.added
    try:
        (found,) = ast.parse(textwrap.dedent("\n".join(own))).body
    except (SyntaxError, ValueError):
        return False
    return ast.unparse(found) == meant


ORDINARY = (Tensor, list, tuple, dict, int, float, complex, str, slice, range, type)
"""Kinds of values whose methods do nothing but compute."""

_NOTE, _LAST = "_gradverify_note", "_gradverify_last"
"""Functions that a backward calls whose values are noted."""


@dataclass
class TracedBackward:
    """One run of backward."""

    source: Source
    slots: list[Slot]
    parents: dict[int, ast.AST]
    """By the id of a node."""
    values: dict[int, Value] = field(default_factory=dict)
    """By the number of a slot: what stood there first."""
    locals: dict[str, Value] = field(default_factory=dict)
    """Names at the end of backward."""
    steps: int = 1
    """Expressions that were evaluated: a loop has many."""
    known: list[Known] = field(default_factory=list)
    written: tuple[float, ...] = ()
    """Numbers that stand in it, and in forward."""
    is_foreign: bool = False
    """Methods of objects are called that may do anything."""

    def note(self, number: int, value: Value) -> Value:
        """What a slot comes to."""
        self.steps += 1
        if not isinstance(value, ORDINARY) and self._is_owner(self.slots[number]):
            self.is_foreign = True
        if number not in self.values:
            self.values[number] = as_it_is(value)
        return value

    def last(self, names: Mapping[str, Value], value: Value) -> Value:
        """What the names stand for when backward returns a value."""
        self.locals = {name: as_it_is(v) for name, v in names.items()}
        return value

    def _is_owner(self, slot: Slot) -> bool:
        """Whether a method of what is there is called."""
        call = self.parents.get(id(slot.parent))
        return (
            isinstance(slot.parent, ast.Attribute) and isinstance(call, ast.Call) and call.func is slot.parent
        )

    def names(self) -> dict[str, Value]:
        """Those at the end, and those of functions inside."""
        found = dict(self.locals)
        for number, slot in enumerate(self.slots):
            if isinstance(slot.node, ast.Name) and number in self.values:
                found.setdefault(slot.node.id, self.values[number])
        return found


def traced(
    source: Source, forward: Sequence[Source], start: Callable[[Callable[..., Any]], bool]
) -> TracedBackward | None:
    """Run backward once with its values noted; None where that fails, or where it is more than tensors.

    `start` gets a function to run as backward.
    """
    values = [s for s in slots(source.whole) if _is_value(s, source)]
    run = TracedBackward(source, values, parents_of(source.whole))
    run.written = written_in([*forward, source])
    made = _noting(source).compiled({_NOTE: run.note, _LAST: run.last})
    if made is None:
        return None

    def noting(ctx: Any, *given: Any) -> Any:  # noqa: ANN401
        try:
            return made(ctx, *given)
        finally:  # one that raises has some of its values
            with torch.no_grad():
                run.known = known_in(source, forward, run.names(), ctx)

    return run if start(noting) and not run.is_foreign else None


def _noting(source: Source) -> Source:
    """The same backward, which tells what each of its expressions comes to."""
    noted = copy.deepcopy(source.whole)
    for number, slot in enumerate([s for s in slots(noted) if _is_value(s, source)]):
        assert isinstance(slot.node, ast.expr)  # noqa: S101
        slot.put(_call(_NOTE, [ast.Constant(number), slot.node]))
    *helpers, tree = [node for node in noted.body if isinstance(node, ast.FunctionDef)]
    for statement in list(_returns(tree)):
        value = statement.value or ast.Constant(None)
        statement.value = _call(_LAST, [_call("locals", []), value])
    return Source(source.function, tree, tuple(helpers))


def _call(name: str, arguments: list[ast.expr]) -> ast.Call:
    return ast.Call(func=ast.Name(name, ast.Load()), args=arguments, keywords=[])


def _returns(tree: ast.AST) -> Iterator[ast.Return]:
    """Those that are not of a function inside of this one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.Lambda):
            yield from _returns(node)


_NO_VALUES = (ast.Slice, ast.Starred, ast.JoinedStr, ast.FormattedValue)

_PARENTS_WITHOUT = (ast.arguments, ast.FormattedValue, ast.JoinedStr, ast.arg, ast.FunctionDef)
"""Nodes below which nothing comes to a value that may be another one."""


def _is_value(slot: Slot, source: Source) -> bool:
    """Whether an expression stands there that comes to a value which may be another one."""
    node, parent = slot.node, slot.parent
    if not isinstance(node, ast.expr) or isinstance(node, _NO_VALUES) or isinstance(parent, _PARENTS_WITHOUT):
        return False
    is_function = isinstance(parent, ast.Call) and slot.field == "func"
    if is_function or not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        return False
    return not _is_fixed(node, source)


def _is_fixed(node: ast.expr, source: Source) -> bool:
    """Whether nothing else can stand for an expression: `...`, the ctx, a module, a function."""
    match node:
        case ast.Tuple(elts=parts):
            return any(isinstance(part, ast.Slice | ast.Starred) for part in parts)
        case ast.Constant(value=value):
            return value is None or value is Ellipsis
        case ast.Name() | ast.Attribute():
            name = node.id if isinstance(node, ast.Name) else node.attr
            is_torchs = isinstance(node, ast.Attribute) and name in OF_TORCH
            return is_torchs or name == source.context or resolved(node, source.function) is not None
        case _:
            return False


MOST_STEPS = 2_000_000
"""Expressions that all changed backwards together may evaluate: a loop has many in one backward."""

SHARE = 4
"""Of the calls that are left, one of so many is kept for other gradients."""

AGREES = 1e-7
"""Gradients of multiples agree within this share of the sum of their terms."""

LARGE = (2.0**20, -(2.0**-20))
"""Multiples of a grad_output whose gradients must be the same multiples: in a clamp, they would not be."""

KEY = 41
"""Of the random grad_output for which a change must give the same."""

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
    return reported(*found[-1 if known is None else known])


def _searched(first: Pair, points: list[Point], own: OwnBackward) -> bool:
    """Whether a change is found; it is kept for the other gradients, and so is that there is none."""
    wrong = frozenset(pair.name for point in points for pair in point.pairs() if pair.is_wrong)
    if wrong in own.repairs.searched:
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
            further, allowance = own.repairs.further, own.repairs.allowance
            if any(place.refutes(backward, wrong) for place in further):
                continue
            if is_borne_out(edit, run, further, wrong, allowance):
                own.repairs.found.append((edit, run))
                return True
    return False


def known_backwards(patch: LinePatch | None, repairs: Repairs) -> Iterator[Callable[..., Any]]:
    """Backward with a change that was found, by its lines."""
    for edit, run in repairs.found if patch is not None else ():
        own = reported_change(edit, run.source, run.parents).patch
        backward = _with(edit, run) if own and patch and own.key == patch.key else None
        if backward is not None:
            yield backward


def edits_of(run: TracedBackward) -> Iterator[Edit]:
    """The likeliest first: of what is there, what may be lost around it, then what stands elsewhere."""
    yield from computed_out_of_place(run.source)
    yield from of_statements(run.source.whole)
    every = [(slot, run.values[k]) for k, slot in enumerate(run.slots) if k in run.values]
    values = [(slot, v) for slot, v in every if not isinstance(v, Tensor) or bits_of(v) is not None]
    for slot, _ in values:
        yield from written_elsewhere(slot, run.written)
    for slot, value in values:
        if isinstance(slot.parent, ast.Compare):
            yield from renumbered(slot, value, run.known, cause_of_number(slot, run.parents))
    for slot, value in values:
        yield from scaled_before_comparing(slot, value, run.known)
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


def reported(edit: Edit, run: TracedBackward) -> Cause:
    """A change of a backward as the cause of what it takes back."""
    return Cause(edit.cause, is_weak=True, change=reported_change(edit, run.source, run.parents))


def reported_change(edit: Edit, source: Source, parents: Mapping[int, ast.AST]) -> InBackward:
    """The change as it is told: what is there, what makes it right, and the line."""
    file = Path(source.function.__code__.co_filename)
    before, after = _shown(edit, parents)
    line = getattr(edit.slot.node, "lineno", 0)
    function = _function_of(edit, source, parents)
    helper = "" if function is source.tree else function.name
    patch = patch_of(edit, function, parents, file)
    return InBackward(file.name, line, before, after, helper, edit.cause, patch)


def _function_of(edit: Edit, source: Source, parents: Mapping[int, ast.AST]) -> ast.FunctionDef:
    """The function in which the change stands: backward itself, or one that it calls."""
    helpers = {id(helper): helper for helper in source.helpers}
    node: ast.AST | None = edit.slot.parent
    while node is not None and id(node) not in helpers:
        node = parents.get(id(node))
    return source.tree if node is None else helpers[id(node)]


def _shown(edit: Edit, parents: Mapping[int, ast.AST]) -> tuple[str, str]:
    """What is there and what should: with as much around it as a sentence takes."""
    with edit.slot.holding(edit.node):
        shown = _text(edit.slot.node), _text(edit.node)
    around: ast.AST | None = parents.get(id(edit.slot.node))
    while around is not None and not isinstance(around, ast.FunctionDef) and not edit.is_whole:
        if isinstance(around, ast.expr | ast.Assign | ast.AugAssign | ast.Return | ast.Expr):
            text = ast.unparse(around)
            if len(text) > LONGEST_SHOWN:
                break
            with edit.slot.holding(edit.node):
                shown = text, ast.unparse(around)
        around = parents.get(id(around))
    return shown


def _text(node: ast.AST | list[ast.stmt]) -> str:
    nodes = node if isinstance(node, list) else [node]
    if isinstance(nodes[0], ast.For):
        return f"for {ast.unparse(nodes[0].target)} in {ast.unparse(nodes[0].iter)}"
    text = "; ".join("" if isinstance(one, ast.Pass) else ast.unparse(one) for one in nodes)
    return " ".join(text.split())
