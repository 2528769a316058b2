"""From the frames of an error to the arguments that it is about, and to what their source demands of them.

Names are followed through the calls. A failing `assert`, or the `if` around a `raise`, is read from its line.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from gradverify.model import Frame, RaisedError
from gradverify.source import called_name, integer, module_of, names_bound
from gradverify.verifier.infer.evidence import passed
from gradverify.verifier.infer.shapes import reranked
from gradverify.verifier.infer.state import Dim, State
from gradverify.verifier.infer.uses import paired


def function_around(frame: Frame) -> ast.FunctionDef | None:
    """The innermost function that holds a frame's line; None where its source is not to be had."""
    return _around(frame.file, frame.line)


@cache
def _around(file: str, line: int) -> ast.FunctionDef | None:
    tree = module_of("".join(linecache.getlines(file))).tree
    holding = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and holds(n, line))
    return max(holding, key=lambda node: node.lineno, default=None)


def holds(node: ast.stmt | ast.expr, line: int) -> bool:
    """Whether a node is on a line, or around it."""
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def names_in_forward(frames: Sequence[Frame], parameters: Sequence[str]) -> Mapping[str, str]:
    """Parameters of the innermost function by what forward calls what they were given.

    `frames` come outermost first, `parameters` are forward's own.
    """
    known = {name: name for name in parameters}
    for outer, inner in itertools.pairwise(frames):
        calling, called = function_around(outer), function_around(inner)
        known = {} if calling is None or called is None else _passed_on(calling, outer.line, called, known)
    return known


def _passed_on(
    calling: ast.FunctionDef, line: int, called: ast.FunctionDef, known: Mapping[str, str]
) -> dict[str, str]:
    for node in ast.walk(calling):
        if isinstance(node, ast.Call) and holds(node, line) and getattr(node.func, "id", "") == called.name:
            return {name: known[value] for name, value in passed(called, node) if value in known}
    return {}


def suspects_of(state: State, error: RaisedError) -> list[int]:
    """Positions of the arguments that the failing line names; of all where it names none.

    A helper may call them by other names; what is computed of them is followed back where they are not named.
    """
    names = [a.name for a in state.arguments]
    for end in range(len(error.frames), 0, -1):
        frames = error.frames[:end]
        words = set(re.findall(r"[A-Za-z_]\w*", frames[-1].source))
        of_helper = names_in_forward(frames, names) if end > 1 else {}
        for named in (words, _computed_of(frames[-1], words)):
            known = {of_helper.get(word, word) for word in named}
            found = [k for k, name in enumerate(names) if name in known]
            if found:
                return found
    return list(range(len(state.arguments)))


def _computed_of(frame: Frame, words: set[str]) -> set[str]:
    """The names that some words were computed of in the lines before a frame's."""
    function, found = function_around(frame), set(words)
    before = [n for n in ast.walk(function) if isinstance(n, ast.Assign)] if function is not None else []
    for step in sorted((n for n in before if n.lineno < frame.line), key=lambda n: -n.lineno):
        if found & names_bound([step]):
            found |= {n.id for n in ast.walk(step.value) if isinstance(n, ast.Name)}
    return found


_UNBOUND = re.compile(r"local variable '(\w+)'")
"""A name that no case has bound."""

_RANKS = frozenset({"dim", "ndimension", "len"})
"""Calls that give a number of dimensions."""

_SHAPES = frozenset({"Size", "tuple", "list"})
"""Calls that give a shape as it is."""


_ORDERS: Mapping[type[ast.cmpop], tuple[int, int]] = {
    ast.Gt: (1, 0), ast.GtE: (0, -1), ast.Lt: (-1, 0), ast.LtE: (0, 1),
}  # fmt: skip
"""Of each comparison with a number, how far beyond it the nearest one is where it holds, and where not."""

LARGEST_ORDERED = 32
"""Sizes up to which one is made as large as a condition asks for."""


@dataclass(frozen=True)
class _Size:
    """`x.shape[1]`, or of what it leaves over a divisor: `x.shape[1] % 2`."""

    argument: str
    index: int
    divisor: int = 0


@dataclass(frozen=True)
class _Rank:
    """`x.dim()`."""

    argument: str


def demanded(state: State, error: RaisedError) -> Iterator[State]:
    """States that keep the condition on whose failure the innermost user frame raised.

    Of a chain of cases, `if k == 4: ... elif k == 6: ... else: raise`, each in turn; the same where the raise
    follows cases that return, and where a name that is read was bound in the cases alone.
    """
    function = function_around(error.frames[-1]) if error.frames else None
    unbound = _UNBOUND.search(error.message) if error.type == "UnboundLocalError" else None
    if function is None or not (error.deliberate or unbound):
        return
    own = [a.name for a in state.arguments]  # helpers often name things as forward does
    names = {**dict(zip(own, own, strict=True)), **names_in_forward(error.frames, own)}
    reading = _Condition(state, names, _assignments(function))
    line = error.frames[-1].line
    cases = list(_cases(function, line, unbound[1] if unbound is not None else ""))
    for test in cases:
        yield from replace(reading, alone=len(cases) == 1).kept(test, holding=True)
    for node in ast.walk(function) if unbound is None else ():
        if isinstance(node, ast.Assert) and holds(node, line):
            yield from reading.kept(node.test, holding=True)
        elif isinstance(node, ast.If) and any(isinstance(s, ast.Raise) and holds(s, line) for s in node.body):
            yield from reading.kept(node.test, holding=False)


def _cases(function: ast.FunctionDef, line: int, unbound: str) -> Iterator[ast.expr]:
    """The tests of which one has to hold, so that a line is not come to, or a name is bound there."""
    for node in ast.walk(function):
        if isinstance(node, ast.If):
            returns = isinstance(node.body[-1], ast.Return) and (node.end_lineno or line) < line
            goes_round = returns or any(holds(s, line) for s in node.orelse)
            if unbound in names_bound(node.body) if unbound else goes_round:
                yield node.test


def _ends(index: ast.expr) -> tuple[ast.expr | None, ast.expr | None]:
    return (index.lower, index.upper) if isinstance(index, ast.Slice) else (None, None)


def _assignments(function: ast.FunctionDef) -> Mapping[str, ast.expr]:
    """Local names with the one expression they stand for: `n, d = x.shape` gives `n` as `x.shape[0]`."""
    found: dict[str, ast.expr] = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value
            case ast.Assign(targets=[ast.Tuple() as names], value=value):
                found |= dict(_unpacked(names, value))
            case _:
                pass
    return found


def _unpacked(names: ast.Tuple, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """(name, what it stands for) of an unpack, of `*k.shape, v.shape[-1]` too; none with a starred name."""
    if isinstance(value, ast.Tuple):
        for one, other in paired(names.elts, value.elts):
            if isinstance(one, ast.Tuple):
                yield from _unpacked(one, other)
            elif isinstance(one, ast.Name):
                yield one.id, other
        return
    starred = any(isinstance(e, ast.Starred) for e in names.elts)
    for index, entry in enumerate(() if starred else names.elts):
        if isinstance(entry, ast.Name):
            yield entry.id, ast.Subscript(value, ast.Constant(index), ast.Load())


@dataclass(frozen=True)
class _Condition:
    """A condition on sizes and numbers of dimensions, in the names of the function around it."""

    state: State
    names: Mapping[str, str]
    """Parameters of the target by the names that they have there."""
    bound: Mapping[str, ast.expr]
    alone: bool = True
    """No other condition would do as well: a size is the number that it asks for, and no other."""
    settled: frozenset[str] = frozenset()
    """Arguments whose shapes other conditions beside it have asked for."""

    def kept(self, test: ast.expr, *, holding: bool) -> Iterator[State]:
        """States in which a test comes out so."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield from self.kept(operand, holding=not holding)
            case ast.BoolOp(op=op, values=values):
                every = isinstance(op, ast.And) == holding
                reading = self
                for value in (*values, *values) if every else values:  # one may undo what those before it did
                    changed = next(reading.kept(value, holding=holding), None)
                    if changed is not None:
                        yield changed
                        reading = reading.after(changed) if every else self
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield from self._compared(left, op, right, holding=holding)
            case ast.BinOp(op=ast.Mod()) if not holding:  # `if n % k:`
                yield from self._equal(test, ast.Constant(0))
            case ast.Call(func=ast.Name(id="any"), args=[several]) if not holding:
                yield from self._constant(several)
            case ast.Subscript() if not holding:
                yield from self._constant(test)
            case _:
                return

    def after(self, state: State) -> _Condition:
        """The same once another condition is kept."""
        pairs = zip(self.state.arguments, state.arguments, strict=True)
        settled = self.settled.union(a.name for a, b in pairs if a.dims != b.dims)
        return replace(self, state=state, settled=settled)

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr, *, holding: bool) -> Iterator[State]:
        if isinstance(op, ast.Eq if holding else ast.NotEq):
            yield from self._equal(left, right)
        elif isinstance(op, ast.In if holding else ast.NotIn):
            for entry in getattr(right, "elts", ()):
                yield from self._equal(left, entry)
        elif type(op) in _ORDERS:
            upwards = isinstance(op, ast.Gt | ast.GtE) is holding
            yield from self._ordered(left, _ORDERS[type(op)][not holding], right, upwards=upwards)

    def _constant(self, needs: ast.expr) -> Iterator[State]:
        """After a test of `ctx.needs_input_grad[k]`, or of several, that must not hold: constants."""
        match needs:
            case ast.Subscript(value=ast.Attribute(attr="needs_input_grad"), slice=index):
                k = integer(index)
                if k is None and not isinstance(index, ast.Slice):
                    return
                ends = [integer(end) if end is not None else None for end in _ends(index)]
                chosen = self.state.arguments[slice(*ends) if k is None else slice(k, k + 1 or None)]
                changed = self.state
                for place, argument in enumerate(self.state.arguments):
                    if argument in chosen and argument.is_tensor:
                        changed = changed.with_argument(place, replace(argument, requires_grad=False))
                if changed != self.state:
                    yield changed
            case _:
                return

    def _ordered(self, left: ast.expr, beyond: int, right: ast.expr, *, upwards: bool) -> Iterator[State]:
        """After `x.shape[1] > 3` the smallest size that is `beyond` (1) the number, or the largest (-1).

        Nothing where the size is so already: another condition failed.
        """
        number, now = self._term(right), self._now(self._term(left))
        if now is None or not isinstance(number, int) or not 0 < number + beyond <= LARGEST_ORDERED:
            return
        if now < number + beyond if upwards else now > number + beyond:
            yield from self._equal(left, ast.Constant(number + beyond))

    def _now(self, term: _Size | _Rank | int | None) -> int | None:
        """What a size, or a number of dimensions, is in this state."""
        if isinstance(term, _Rank):
            place = self._place(term.argument)
            return None if place is None else len(self.state.arguments[place].dims)
        dim = self._dim(term) if isinstance(term, _Size) and not term.divisor else None
        return None if dim is None else dim.value(self.state.values)

    def _equal(self, left: ast.expr, right: ast.expr) -> Iterator[State]:
        shapes = [*self._whole_shapes(left, right)]
        if shapes:
            yield from shapes
            return
        changed: State | None = None
        match self._term(left), self._term(right):
            case (_Size(divisor=0) as one, _Size(divisor=0) as other):
                changed = self._same(one, other)
            case (int(number), _Size(divisor=0) as size) | (_Size(divisor=0) as size, int(number)):
                changed = self._resized(size, Dim(plus=number))
            case (_Size(divisor=divisor) as size, 0) if divisor > 1:
                dim = self._dim(size)
                changed = self._resized(size, Dim(dim.symbol, times=divisor)) if dim is not None else None
            case (_Rank(argument=name), int(rank)) | (int(rank), _Rank(argument=name)):
                place = self._place(name)
                changed = reranked(self.state, [place], rank) if place is not None else None
            case _:
                pass
        if changed is not None:
            yield changed

    def _whole_shapes(self, left: ast.expr, right: ast.expr) -> Iterator[State]:
        """After `x.shape[1:] == (3, n)`, or of the whole shape: these sizes after the dimensions before.

        And the other way round; what other conditions have not asked for first.
        """
        made = [self._shaped(left, right), self._shaped(right, left)]
        found = [one for one in made if one is not None and one[1] != self.state]
        yield from (state for _, state in sorted(found, key=lambda one: one[0] in self.settled))

    def _shaped(self, target: ast.expr, wanted: ast.expr) -> tuple[str, State] | None:
        """An argument, and the state in which its shape, or the end of it, is another one."""
        start: int | None = 0
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice) and target.slice.lower:
            start, target = integer(target.slice.lower), target.value
        place, sizes = self._of_shape(target), self._shape(wanted)
        if place is None or start is None or sizes is None or (start < 0 and start != -len(sizes)):
            return None
        argument = self.state.arguments[place]
        before = max(0, len(argument.dims) - len(sizes)) if start < 0 else start
        state, more = self.state.fresh(max(0, before - len(argument.dims)))
        return argument.name, state.with_dims(place, (*(*argument.dims, *more)[:before], *sizes))

    def _of_shape(self, node: ast.expr) -> int | None:
        """The argument whose whole shape an expression is: `x.shape`, `x.size()`."""
        match node:
            case (
                ast.Attribute(value=ast.Name(id=name), attr="shape")
                | ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[])
            ):
                return self._place(self.names.get(name, ""))
            case _:
                return None

    def _shape(self, node: ast.expr) -> tuple[Dim, ...] | None:
        """What `(n, x.shape[0])`, `x.shape[:2]`, `x.shape + (3,)` and names of such are."""
        place, dims = self._of_shape(node), None
        match node:
            case _ if place is not None:
                dims = self.state.arguments[place].dims
            case ast.Tuple(elts=entries) | ast.List(elts=entries):
                sizes = [self._sized(e) for e in entries]
                known = tuple(dim for dim in sizes if dim is not None)
                dims = known if len(known) == len(sizes) else None
            case ast.Subscript(value=whole, slice=ast.Slice(step=None) as part):
                ends = [integer(end) if end is not None else None for end in _ends(part)]
                unknown = any(end and k is None for end, k in zip(_ends(part), ends, strict=True))
                inner = None if unknown else self._shape(whole)
                dims = None if inner is None else inner[slice(*ends)]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                one, other = self._shape(left), self._shape(right)
                dims = None if one is None or other is None else one + other
            case ast.Call(args=[inner_node]) if called_name(node) in _SHAPES:
                dims = self._shape(inner_node)
            case ast.Name(id=name) if name in self.bound:
                dims = self._without(name)._shape(self.bound[name])  # noqa: SLF001 - of another of these
            case _:
                pass
        return dims

    def _without(self, name: str) -> _Condition:
        """The same before a local name was bound: what it is made of may be called so, too."""
        return replace(self, bound={n: value for n, value in self.bound.items() if n != name})

    def _sized(self, node: ast.expr) -> Dim | None:
        """What a size is: a number, one of an argument, or a number more, less, times or in parts of it."""
        match node, self._term(node):
            case _, int(number):
                return Dim(plus=number)
            case _, _Size(divisor=0) as size:
                return self._dim(size)
            case ast.BinOp(left=left, op=op, right=right), _:
                dim, by = self._sized(left), self._term(right)
                if dim is None or not dim.is_plain or not isinstance(by, int):
                    return None
                changes = {ast.Add: {"plus": by}, ast.Sub: {"plus": -by}, ast.Mult: {"times": by}}
                changes[ast.FloorDiv] = {"over": max(1, by)}
                return replace(dim, **changes[type(op)]) if type(op) in changes else None
            case _:
                return None

    def _term(self, node: ast.expr) -> _Size | _Rank | int | None:
        match node:
            case ast.Constant() | ast.UnaryOp():
                return integer(node)
            case ast.Name(id=name) if name in self.bound:
                return self._without(name)._term(self.bound[name])  # noqa: SLF001 - of another of these
            case ast.Name(id=name) if name in self.names:
                return self._number(self.names[name])
            case ast.BinOp(left=left, op=ast.Mod(), right=right):
                return self._rest(self._term(left), self._term(right))
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                one, other = self._term(left), self._term(right)
                return one * other if isinstance(one, int) and isinstance(other, int) else None
            case _:
                return self._size(node) or self._rank(node)

    def _rest(
        self, inner: _Size | _Rank | int | None, divisor: _Size | _Rank | int | None
    ) -> _Size | int | None:
        """`x.shape[1] % 2`, and `axis % x.dim()` where both are numbers."""
        divisor = self._now(divisor) if isinstance(divisor, _Rank) else divisor
        if not isinstance(divisor, int) or divisor < 1 or not isinstance(inner, _Size | int):
            return None
        return inner % divisor if isinstance(inner, int) else replace(inner, divisor=divisor)

    def _number(self, name: str) -> int | None:
        """The value of an argument that is an integer."""
        given = (a.guess.choices[0] for a in self.state.arguments if a.name == name and a.guess.choices)
        value = next(given, None)
        return value if type(value) is int else None

    def _size(self, node: ast.expr) -> _Size | None:
        match node:
            case (
                ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=index)
                | ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[index])
                | ast.Subscript(
                    value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size")), slice=index
                )
            ):
                k = self._term(index)
                return _Size(self.names[name], k) if isinstance(k, int) and name in self.names else None
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)]) if name in self.names:
                return _Size(self.names[name], 0)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="numel")) if name in self.names:
                place = self._place(self.names[name])
                of_one = place is not None and len(self.state.arguments[place].dims) == 1
                return _Size(self.names[name], 0) if of_one else None
            case _:
                return None

    def _rank(self, node: ast.expr) -> _Rank | None:
        ranked = called_name(node) in _RANKS or (isinstance(node, ast.Attribute) and node.attr == "ndim")
        inside = (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in self.names)
        name = next(inside, "") if ranked else ""
        return _Rank(self.names[name]) if name else None

    def _place(self, name: str) -> int | None:
        return next((k for k, a in enumerate(self.state.arguments) if a.name == name and a.is_tensor), None)

    def _dim(self, size: _Size) -> Dim | None:
        place = self._place(size.argument)
        dims = self.state.arguments[place].dims if place is not None else ()
        return dims[size.index] if -len(dims) <= size.index < len(dims) else None

    def _same(self, one: _Size, other: _Size) -> State | None:
        first, second = self._dim(one), self._dim(other)
        if first is None or second is None or first == second:
            return None
        if second.is_plain:
            return self.state.substituted(second.symbol, first)
        return self.state.substituted(first.symbol, second) if first.is_plain else None

    def _resized(self, size: _Size, new: Dim) -> State | None:
        dim = self._dim(size)
        if dim is None or not dim.is_plain:
            return None
        if not self.alone and new.symbol < 0:
            values = self.state.values  # what has the size already gets this one's: they stay different
            other = {s: values[dim.symbol] for s, size in values.items() if size == new.plus}
            return self.state.at({**other, dim.symbol: new.plus})
        return self.state.substituted(dim.symbol, new)
