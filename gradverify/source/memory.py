"""Which local names share memory with a parameter at each step of a method, and what that tells.

Where forward writes into its inputs; where backward reads the memory of what it is given as if that were
contiguous.

Statements are followed in source order. What only one branch binds is forgotten after it, so that a name
counts as an alias only where it is one on every path.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gradverify.source.function import Function
from gradverify.source.method import Method, is_always_none, returned
from gradverify.source.tree import Place, called_name, each, integer, name_of, own_nodes

VIEWS = frozenset(
    {"view", "view_as", "detach", "transpose", "permute", "t", "squeeze", "unsqueeze", "expand"}
    | {"expand_as", "narrow", "select", "swapaxes", "movedim", "diagonal", "unfold"}
)
"""Methods whose result shares the tensor's memory, always."""
_VIEW_ATTRIBUTES = frozenset({"data", "T", "mT", "H", "mH"})
_IN_PLACE = re.compile(r"[a-z]\w*[a-z0-9]_")
_NO_WRITE = frozenset(
    {"requires_grad_", "share_memory_", "rename_", "pin_memory_", "detach_"}
    | {"unsqueeze_", "squeeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "as_strided_"}
)
"""Methods that end in an underscore and leave the values as they are."""


@dataclass
class Aliases:
    """Names that stand for the memory of a parameter, by the parameter."""

    names: dict[str, str]
    through: frozenset[str] = VIEWS
    """Methods that are looked through."""

    def parameter(self, node: ast.expr) -> str:
        """The parameter whose memory an expression is, empty for none."""
        match node:
            case ast.Name(id=name):
                return self.names.get(name, "")
            case ast.Attribute(value=value, attr=attr) if attr in _VIEW_ATTRIBUTES:
                pass
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in self.through:
                pass
            case ast.Subscript(value=value, slice=index) if _is_basic(index):
                pass
            case _:
                return ""
        return self.parameter(value)

    def bind(self, statement: ast.stmt) -> None:
        """Take in what a simple statement binds."""
        match statement:
            case ast.Assign(targets=targets, value=value):
                origin = self.parameter(value)
                for target in targets:
                    self.forget(target)
                    if origin and isinstance(target, ast.Name):
                        self.names[target.id] = origin
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.bind(ast.Assign([target], value))
            case ast.AugAssign() | ast.AnnAssign():
                pass
            case _:
                self.forget(statement)

    def forget(self, node: ast.AST) -> None:
        """Forget every name that is bound or deleted anywhere in a node."""
        for inner in each(ast.Name, node):
            if not isinstance(inner.ctx, ast.Load):
                self.names.pop(inner.id, None)


def steps(body: Sequence[ast.stmt], aliases: Aliases) -> Iterator[tuple[ast.AST, Aliases]]:
    """Each simple statement, and each head of a compound one, with the aliases that hold before it."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                aliases.names.pop(statement.name, None)
            case ast.If(test=head) | ast.While(test=head) | ast.For(iter=head):
                yield head, aliases
                if isinstance(statement, ast.For):
                    aliases.forget(statement.target)
                yield from _branches([statement.body, statement.orelse], aliases)
            case ast.With(items=items):
                yield from ((item, aliases) for item in items)
                yield from steps(statement.body, aliases)
            case ast.Try(handlers=handlers):
                bodies = [statement.body, *(h.body for h in handlers), statement.orelse, statement.finalbody]
                yield from _branches(bodies, aliases)
            case ast.Match(subject=subject, cases=cases):
                yield subject, aliases
                yield from _branches([case.body for case in cases], aliases)
            case _:
                yield statement, aliases
                aliases.bind(statement)


def _branches(bodies: Sequence[list[ast.stmt]], aliases: Aliases) -> Iterator[tuple[ast.AST, Aliases]]:
    kept = aliases.names
    for body in bodies:
        inner = replace(aliases, names={**aliases.names})
        yield from steps(body, inner)
        kept = dict(kept.items() & inner.names.items())
    aliases.names = kept


def inputs_written(function: Function) -> Iterator[tuple[Place, str]]:
    """Where forward writes into the memory of a parameter that gets a gradient, and which."""
    aliases = Aliases({name: name for name in _differentiated(function)})
    imported = function.module.imported
    for step, known in steps(function.forward.node.body, aliases) if function.forward else ():
        for node in own_nodes(step):
            for written in _written(node, imported):
                parameter = known.parameter(written)
                if parameter and isinstance(node, ast.expr | ast.stmt):
                    yield Place.of(node), parameter


def _differentiated(function: Function) -> frozenset[str]:
    """Forward's parameters that get a gradient on some path; empty where any path cannot be read."""
    backward = function.backward
    if backward is None or function.forward is None or function.forward.variadic:
        return frozenset()
    paths = [path.values for path in returned(backward)]
    known = [values for values in paths if values is not None]
    given = {
        name
        for values in known
        for name, value in zip(function.inputs, values, strict=False)
        if not is_always_none(value, backward)
    }
    return frozenset(given if len(known) == len(paths) else ())


def _written(node: ast.AST, imported: Mapping[str, str]) -> Iterator[ast.expr]:
    """The expressions whose memory one node writes into."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=attr)):
            if _IN_PLACE.fullmatch(attr) and attr not in _NO_WRITE:
                yield value
                if imported.get(name_of(value), "").partition(".")[0] == "torch":
                    yield from node.args[:1]
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "out")
        case ast.AugAssign(target=ast.Name() as written) | ast.AugAssign(target=ast.Subscript(value=written)):
            yield written
        case ast.Assign(targets=targets):
            yield from (target.value for target in targets if isinstance(target, ast.Subscript))
        case _:
            pass


def _is_basic(index: ast.expr) -> bool:
    """Whether an index makes a view: numbers, slices, None and `...`, where a mask or a tensor copies."""
    match index:
        case ast.Tuple(elts=entries):
            return all(map(_is_basic, entries))
        case ast.UnaryOp(operand=ast.Constant(value=value)) | ast.Constant(value=value):
            return not isinstance(value, bool | str)
        case _:
            return isinstance(index, ast.Slice)


_LAYOUT = frozenset({"stride", "strides", "is_contiguous"})
"""What a method that allows for other layouts asks of a tensor."""


@dataclass(frozen=True)
class ContiguousRead:
    """One call."""

    place: Place
    parameter: str
    how: str
    """`kernel`, `address` or `view`."""
    shown: str
    """The kernel's name, or the call."""


def contiguous_reads(method: Method) -> Iterator[ContiguousRead]:
    """Where a method so reads a parameter after ctx; nothing where it asks for a layout."""
    if any(node.attr in _LAYOUT for node in each(ast.Attribute, method.node)):
        return
    aliases = Aliases({name: name for name in method.parameters[1:]}, VIEWS - {"view"})
    for step, known in steps(method.node.body, aliases):
        for call in own_nodes(step):
            if isinstance(call, ast.Call):
                yield from _read(call, known)


def _read(call: ast.Call, known: Aliases) -> Iterator[ContiguousRead]:
    kernel = _launched_kernel(call)
    given = next(filter(None, map(known.parameter, call.args)), "") if kernel else ""
    if given:
        yield ContiguousRead(Place.of(call), given, "kernel", kernel)
    match call.func:
        case ast.Attribute(value=value, attr="view") if _merges(call):
            reads = [("view", call, value)]
        case _:  # an address alone may be a key of a dictionary: what computes gets several
            given_as = [a for a in call.args if isinstance(a, ast.Call) and called_name(a) == "data_ptr"]
            reads = [("address", a, a.func.value) for a in given_as if isinstance(a.func, ast.Attribute)]
            reads = reads if len(reads) > 1 else []
    for how, node, value in reads:
        if parameter := known.parameter(value):
            yield ContiguousRead(Place.of(node), parameter, how, ast.unparse(node))


def _merges(call: ast.Call) -> bool:
    """Whether a view puts several dimensions into one: `view(-1)`, `view(-1, d)`, `view(b, -1)`."""
    match call.args:
        case [ast.Tuple(elts=sizes) | ast.List(elts=sizes)] | sizes:
            numbers = [integer(size) for size in sizes]
    return len(numbers) <= 2 and -1 in numbers and 1 not in numbers


def _launched_kernel(call: ast.Call) -> str:
    """The kernel that `kernel[grid](...)` launches, empty for another call."""
    match call.func:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple() | ast.Lambda() | ast.Name() as grid):
            is_grid = not isinstance(grid, ast.Name) or "grid" in grid.id
            several = len(call.args) + len(call.keywords) > 3
            return name if is_grid and ("kernel" in name or several) else ""
        case _:
            return ""
