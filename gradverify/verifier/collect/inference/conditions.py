"""What a failing `assert`, or the `if` around a `raise`, demands of the inputs: read from the source line."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gradverify.model import RaisedError
from gradverify.verifier.collect.inference.called_names import Renamed, function_around, names_in_forward
from gradverify.verifier.collect.inference.shapes import Dim, State


@dataclass(frozen=True)
class _Size:
    """`x.shape[1]`."""

    argument: str
    index: int


@dataclass(frozen=True)
class _Rank:
    """`x.dim()`."""

    argument: str


@dataclass(frozen=True)
class _Product:
    """`blocks * width`, of two sizes."""

    left: _Size
    right: _Size


PARTS = 2
"""How many blocks there are where a size is to be their number times their width: the fewest of them."""

DEEPEST = 4
"""Local names that are followed from one to the next."""

_Term = _Size | _Rank | _Product | int | tuple[_Size, int]
"""A size, a rank, a product, a number, or (size, divisor) of `size % divisor`."""


def demands(state: State, error: RaisedError) -> Iterator[State]:
    """States that keep the condition on whose failure the innermost user frame raised."""
    if not error.frames or not error.deliberate:
        return
    frame = error.frames[-1]
    function = function_around(frame)
    if function is None:
        return
    renamed = Renamed(names_in_forward(error.frames, [a.name for a in state.arguments]))
    bound = {name: renamed.visit(value) for name, value in _assignments(function).items()}
    for test, holds in _conditions(function, frame.line):
        if "needs_input_grad" in ast.unparse(test):
            yield from _without_gradient(state, test)
        yield from _kept(state, renamed.visit(test), bound, holds=holds)


def _without_gradient(state: State, test: ast.expr) -> Iterator[State]:
    """What forward refuses a gradient for, by `any(ctx.needs_input_grad[:2])`, counts as a constant."""
    places: set[int] = set()
    count = len(state.arguments)
    for node in ast.walk(test):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("needs_input_grad"):
            if isinstance(node.slice, ast.Slice):
                low, high = (
                    _integer(b) if b is not None else None for b in (node.slice.lower, node.slice.upper)
                )
                places |= set(range(count)[slice(low, high)])
            elif (index := _integer(node.slice)) is not None and -count <= index < count:
                places.add(index % count)
    changed = tuple(
        replace(a, requires_grad=a.requires_grad and k not in places) for k, a in enumerate(state.arguments)
    )
    if changed != state.arguments:
        yield replace(state, arguments=changed)


def _conditions(function: ast.FunctionDef, line: int) -> Iterator[tuple[ast.expr, bool]]:
    """(a condition, whether it must hold) pairs for the statement on a line."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and node.lineno <= line <= (node.end_lineno or node.lineno):
            yield node.test, True
        elif isinstance(node, ast.If) and any(
            isinstance(s, ast.Raise) and s.lineno <= line <= (s.end_lineno or s.lineno) for s in node.body
        ):
            yield node.test, False


def _assignments(function: ast.FunctionDef) -> Mapping[str, ast.expr]:
    """Local names with the one expression they stand for: `n, d = x.shape` gives `n` as `x.shape[0]`."""
    found: dict[str, ast.expr] = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Name):
            found[target.id] = value
        elif isinstance(target, ast.Tuple) and not any(isinstance(e, ast.Starred) for e in target.elts):
            several = value.elts if isinstance(value, ast.Tuple) else ()
            if len(several) == len(target.elts):
                named = zip(target.elts, several, strict=True)
                found.update({entry.id: one for entry, one in named if isinstance(entry, ast.Name)})
                continue
            for index, entry in enumerate(target.elts):
                if isinstance(entry, ast.Name):
                    subscript = ast.Subscript(_as_shape(value), ast.Constant(index), ast.Load())
                    found[entry.id] = ast.fix_missing_locations(ast.copy_location(subscript, value))
    return found


def _as_shape(value: ast.expr) -> ast.expr:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "size":
        return ast.Attribute(value.func.value, "shape", ast.Load())
    return value


def _kept(state: State, test: ast.expr, bound: Mapping[str, ast.expr], *, holds: bool) -> Iterator[State]:
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _kept(state, operand, bound, holds=not holds)
        case ast.BoolOp(values=values):
            every = isinstance(test.op, ast.And) == holds
            changed = state
            for value in values:
                for one in _kept(changed, value, bound, holds=holds):
                    yield one
                    changed = one if every else changed
                    break
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            equal = ast.Eq if holds else ast.NotEq
            member = ast.In if holds else ast.NotIn
            whole = _whole_shape(state, left, right) if isinstance(operator, equal) else None
            if whole is not None:
                yield whole
            elif isinstance(operator, equal):
                yield from _equal(state, _term(left, bound), _term(right, bound))
            elif isinstance(operator, member) and isinstance(right, ast.Tuple | ast.List | ast.Set):
                for entry in right.elts:
                    yield from _equal(state, _term(left, bound), _term(entry, bound))
        case _:
            return


def _whole_shape(state: State, left: ast.expr, right: ast.expr) -> State | None:
    """After `x.shape[1:] == (3, 3)`, or of the whole shape: dimensions of these sizes after those before."""
    match left:
        case ast.Attribute(value=ast.Name(id=name), attr="shape"):
            start: int | None = 0
        case ast.Subscript(
            value=ast.Attribute(value=ast.Name(id=name), attr="shape"),
            slice=ast.Slice(lower=lower, upper=None),
        ) if lower is not None:
            start = _integer(lower)
        case _:
            return None
    sizes = [_integer(e) for e in right.elts] if isinstance(right, ast.Tuple | ast.List) else []
    place = _place(state, name)
    if place is None or start is None or not sizes or any(n is None or n < 1 for n in sizes):
        return None
    argument = state.arguments[place]
    before = len(argument.dims) - len(sizes) if start < 0 else start
    if start < 0 and (start != -len(sizes) or before < 0):
        return None
    state, more = state.fresh(max(0, before - len(argument.dims)))
    fixed = tuple(Dim(plus=n) for n in sizes if n is not None)
    dims = (*(*argument.dims, *more)[:before], *fixed)
    return state.with_argument(place, replace(argument, dims=dims)) if dims != argument.dims else None


def _term(node: ast.expr, bound: Mapping[str, ast.expr], depth: int = 0) -> _Term | None:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name) if name in bound and depth < DEEPEST:
            return _term(bound[name], bound, depth + 1)
        case ast.BinOp(left=left, op=ast.Mod(), right=ast.Constant(value=int() as divisor)):
            inner = _term(left, bound, depth + 1)
            return (inner, divisor) if isinstance(inner, _Size) else None
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _product(_term(left, bound, depth + 1), _term(right, bound, depth + 1))
        case (
            ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=index)
            | ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[index])
        ):
            return _size(name, index)
        case _:
            return _rank(node)


def _product(left: _Term | None, right: _Term | None) -> _Product | None:
    return _Product(left, right) if isinstance(left, _Size) and isinstance(right, _Size) else None


def _size(name: str, index: ast.expr) -> _Size | None:
    k = _integer(index)
    return _Size(name, k) if k is not None else None


def _rank(node: ast.expr) -> _Rank | None:
    match node:
        case ast.Attribute(value=ast.Name(id=name), attr="ndim"):
            return _Rank(name)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="dim" | "ndimension")):
            return _Rank(name)
        case ast.Call(func=ast.Name(id="len"), args=[ast.Attribute(value=ast.Name(id=name), attr="shape")]):
            return _Rank(name)
        case _:
            return None


def _integer(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if isinstance(value, int) else None


def _equal(state: State, left: _Term | None, right: _Term | None) -> Iterator[State]:
    match left, right:
        case (int(), _Size() | _Rank() | tuple()):
            yield from _equal(state, right, left)
        case (_Size(), _Size()):
            yield from _same(state, left, right)
        case (_Size(), _Product()):
            yield from _equal(state, right, left)
        case (_Product(), _Size()):
            yield from _in_parts(state, left, right)
        case (_Size(), int()):
            yield from _fixed(state, left, right)
        case ((_Size() as size, int() as divisor), 0):
            yield from _multiple(state, size, divisor)
        case (_Rank(argument=name), int()):
            yield from _ranked(state, name, right)
        case _:
            return


def _place(state: State, name: str) -> int | None:
    return next((k for k, a in enumerate(state.arguments) if a.name == name and a.is_tensor), None)


def _dim(state: State, size: _Size) -> Dim | None:
    place = _place(state, size.argument)
    dims = state.arguments[place].dims if place is not None else ()
    return dims[size.index] if -len(dims) <= size.index < len(dims) else None


def _same(state: State, left: _Size, right: _Size) -> Iterator[State]:
    first, second = _dim(state, left), _dim(state, right)
    if first is None or second is None or first == second:
        return
    for kept, replaced in ((first, second), (second, first)):
        if replaced.is_plain:
            changed = state.substituted(replaced.symbol, kept)
            if changed is not None:
                yield changed
                return


def _in_parts(state: State, product: _Product, whole: _Size) -> Iterator[State]:
    """The whole as so many times one factor as there are parts: the other factor becomes their number."""
    for number, width in ((product.left, product.right), (product.right, product.left)):
        parts, dim = _dim(state, number), _dim(state, whole)
        if parts is None or dim is None or not parts.is_plain or not dim.is_plain or parts == dim:
            continue
        fixed = state.substituted(parts.symbol, Dim(plus=PARTS))
        of_width = _dim(fixed, width) if fixed is not None else None
        if fixed is None or of_width is None or not of_width.is_plain or of_width == dim:
            continue
        changed = fixed.substituted(dim.symbol, Dim(of_width.symbol, times=PARTS))
        if changed is not None:
            yield changed


def _fixed(state: State, size: _Size, number: int) -> Iterator[State]:
    dim = _dim(state, size)
    if dim is not None and dim.is_plain:
        changed = state.substituted(dim.symbol, Dim(plus=number))
        if changed is not None:
            yield changed


def _multiple(state: State, size: _Size, divisor: int) -> Iterator[State]:
    dim = _dim(state, size)
    if dim is not None and dim.is_plain and divisor > 1:
        changed = state.substituted(dim.symbol, Dim(dim.symbol, times=divisor))
        if changed is not None:
            yield changed


def _ranked(state: State, name: str, rank: int) -> Iterator[State]:
    place = _place(state, name)
    if place is None or not 0 <= rank <= 6:
        return
    argument = state.arguments[place]
    missing = rank - len(argument.dims)
    if missing > 0:
        state, more = state.fresh(missing)
        yield state.with_argument(place, replace(argument, dims=(*argument.dims, *more)))
    elif missing < 0:
        yield state.with_argument(place, replace(argument, dims=argument.dims[-rank:] if rank else ()))
