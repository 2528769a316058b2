"""What the source of a target tells of its parameters: no torch is asked, no user code is run."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gradverify.source import (
    Method,
    called_name,
    every_parameter,
    integer,
    is_none,
    last_name,
    names_read,
    returned,
    root_name,
    tree_of,
)
from gradverify.source.returned import is_always_none
from gradverify.verifier.infer.facts import Context, Evidence, Facts
from gradverify.verifier.infer.uses import Reader

TRUSTING = re.compile(
    r"chol|triang|(?<![a-z])eig(?!val)|eigvalsh|symeig|potr|trtr|inv_matmul|sqrtm|logm|lobpcg|svd|lstsq|pinv"
)
"""Routines that read only part of a matrix, or trust its rank: right only for the kind they are meant for.
Eigenvectors have no scale of their own besides, and nothing but what does not hang on it has a derivative."""

CLAMPS = frozenset({"clamp", "clamp_", "clamp_min", "clamp_max", "clip", "clip_"})
"""Calls that hold a tensor within bounds."""

OF_COMPLEX = frozenset(
    {"conj", "conj_physical", "view_as_real", "imag", "mH", "H", "adjoint", "resolve_conj", "angle"}
)
"""What is asked of complex tensors; of real ones it changes nothing, or is refused."""

OF_AXES = frozenset(
    {"sum", "mean", "var", "std", "amax", "amin", "prod", "softmax", "log_softmax", "logsumexp", "cumsum"}
    | {"flip", "transpose", "swapaxes", "any", "all", "cumprod", "argmax", "argmin"}
)
"""Methods whose bare arguments are axes of what they are called on."""

MOST_DIMENSIONS = 5
"""A number beyond is no axis."""

LEAST_NEW = 2
"""New dimensions from which a subscript says how many there were: `x[:, None]` is of rows as well."""

MOST_PARTS = 16
"""More parts than any layer has: larger numbers of a source are no counts of gates or of heads."""

_CUTTING = frozenset(
    {"chunk", "split", "tensor_split", "unbind", "unsafe_chunk", "hsplit", "vsplit", "dsplit"}
)
_RESHAPING = frozenset({"view", "reshape", "unflatten", "rearrange", "unfold"})
_SIZE_WORDS = ("hidden", "dim", "size", "channels", "units")
"""What the name of a size holds: `2 * hidden` is where a slice ends, and `2 * x` a factor."""


def gather(
    names: Sequence[str],
    forward: Callable[..., Any] | None,
    setup_context: Callable[..., Any] | None = None,
    backward: Callable[..., Any] | None = None,
    extra_parameters: int = 1,
) -> Evidence:
    """Read what forward does with its parameters, and what backward returns for them.

    `extra_parameters` is how many stand before the first one: the `ctx`, or none.
    """
    facts = {name: Facts() for name in names}
    package = str(getattr(forward, "__module__", None) or "").partition(".")[0]
    computing, filling, undoing = (Method.of(f) if f else None for f in (forward, setup_context, backward))
    ctx, called, likely = Context(), dict[str, str](), dict[str, int]()
    helpers: list[ast.FunctionDef] = []
    if computing is not None:
        order = [p for p in every_parameter(computing.node) if p != computing.variadic]
        called = dict(zip(order[extra_parameters:], names, strict=False))
        given = getattr(inspect.unwrap(forward), "__globals__", {}) if forward is not None else {}
        reader = Reader(facts, dict(called), ctx, given, package)
        reader.read(computing.node)
        helpers += reader.entered.values()
        likely |= _broadcast(computing.nodes, called)
    if filling is not None and len(filling.parameters) > 1:
        Reader(facts, {}, ctx, packed=filling.parameters[1]).read(filling.node)
    if undoing is not None:
        reader = Reader(facts, {}, ctx)
        reader.read(undoing.node)
        likely = _broadcast(undoing.nodes, reader.alias) | likely
        _note_gradients(facts, undoing)
        likely |= _rank_of_outputs(likely, facts, undoing)
    # Where one index has one dimension all have: both ends of edges, the rows and the columns of entries.
    indices = [n for n, f in facts.items() if "index" in f.kinds]
    if any(facts[n].rank == 1 for n in indices):
        likely |= {n: 1 for n in indices if facts[n].rank is None and n not in likely}
    bodies = [*(m.node for m in (computing, filling) if m is not None), *helpers]
    ahead = [node for body in bodies for node in ast.walk(body)]
    back = list(ast.walk(undoing.node)) if undoing is not None else []
    return _whole(facts, ahead, back, called, likely)


def _whole(
    facts: Mapping[str, Facts],
    ahead: Sequence[ast.AST],
    back: Sequence[ast.AST],
    called: Mapping[str, str],
    likely: Mapping[str, int],
) -> Evidence:
    """What forward and backward tell of the target as a whole; `called` are forward's own names."""
    nodes = [*ahead, *back]
    routines = [called_name(n) for n in nodes if isinstance(n, ast.Call)]
    cut = {n for node in nodes for n in _parts(node) if 1 < n <= MOST_PARTS}
    asked = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr in OF_COMPLEX]
    calls = (n for n in nodes if isinstance(n, ast.Call) and called_name(n) in OF_COMPLEX)
    parts_of = {_root(n) for n in (*asked, *(a for call in calls for a in call.args[:1]))}
    clamps_ahead, clamps_back = (any(called_name(n) in CLAMPS for n in side) for side in (ahead, back))
    return Evidence(
        facts,
        frozenset(cut),
        complexes=frozenset(parts_of) & {*called, *facts},
        factorization=next(filter(TRUSTING.search, routines), ""),
        clamps=clamps_back and not clamps_ahead,
        likely=likely,
    )


def _root(node: ast.expr) -> str:
    """The name that an expression is, or a part or a transpose of."""
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return root_name(node)


def _parts(node: ast.AST) -> Iterator[int]:
    """Numbers of equal parts that something is cut into."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=entries)], value=ast.Call() as call):
            names = {called_name(n) for n in ast.walk(call)}
            if names & _CUTTING and "unbind" not in names:
                yield from () if any(isinstance(e, ast.Starred) for e in entries) else (len(entries),)
        case ast.Call() if called_name(node) in _CUTTING | _RESHAPING:
            yield from _integers([*node.args, *(k.value for k in node.keywords)])
        case ast.BinOp(op=ast.FloorDiv() | ast.Mod(), right=right):
            yield from _integers([right])
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            name = getattr(right if isinstance(left, ast.Constant) else left, "id", "")
            yield from _integers([left, right]) if any(w in name for w in _SIZE_WORDS) else ()
        case ast.Slice(lower=lower, upper=upper):
            for bound in (lower, upper):
                if isinstance(bound, ast.BinOp) and isinstance(bound.op, ast.Mult):
                    yield from (n + 1 for n in _integers([bound.left, bound.right]))
        case _:
            return


def _integers(nodes: Iterable[ast.expr]) -> Iterator[int]:
    yield from (n for n in map(integer, nodes) if n is not None)


def _broadcast(nodes: Iterable[ast.AST], called: Mapping[str, str]) -> dict[str, int]:
    """Dimensions of the parameters that get new ones at both ends, or several of them.

    `scale[:, None, None]` and `scale.view(1, -1, 1, 1)` are of a vector. Nothing forbids other numbers of
    dimensions there, and forward often runs at them, but backward does not.
    """
    found: dict[str, int] = {}
    for node in nodes:
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=entries)) if name in called:
                new = sum(is_none(e) for e in entries)
                whole = sum(isinstance(e, ast.Slice) and not (e.lower or e.upper) for e in entries)
                if new >= LEAST_NEW and whole and new + whole == len(entries) and is_none(entries[-1]):
                    found.setdefault(called[name], whole)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="view" | "reshape"), args=sizes):
                ones = sum(integer(s) == 1 for s in sizes)
                if name in called and ones >= LEAST_NEW and len(sizes) - ones == 1:
                    found.setdefault(called[name], 1)
            case _:
                pass
    return found


def _rank_of_outputs(
    likely: Mapping[str, int], facts: Mapping[str, Facts], backward: Method
) -> dict[str, int]:
    """The first input with a gradient has the dimensions of what forward returns, if nothing else is said.

    `grad.sum((0, 2, 3))` is of images.
    """
    first = next((n for n, f in facts.items() if f.gradient is not False and n not in likely), None)
    grads = set(backward.parameters[1:])
    rank = max((axis for node in backward.nodes for axis in _axes(node, grads)), default=0)
    known = first is None or facts[first].rank is not None or rank <= max(facts[first].least_rank, 2)
    return {} if known or first is None else {first: rank}


def _axes(node: ast.AST, grads: set[str]) -> Iterator[int]:
    """How many dimensions the axes of a call on grad_output, or on a product with it, take at least."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    whole = node.func.value
    plain = not any(isinstance(p, ast.Call | ast.Subscript | ast.MatMult) for p in ast.walk(whole))
    if node.func.attr not in OF_AXES or not plain or not names_read(whole) & grads:
        return
    for argument in (*node.args, *(k.value for k in node.keywords if k.arg in {"dim", "axis"})):
        for axis in map(integer, getattr(argument, "elts", [argument])):
            if axis is not None and axis < MOST_DIMENSIONS:
                yield axis + 1 if axis >= 0 else -axis


def _note_gradients(facts: Mapping[str, Facts], backward: Method) -> None:
    """Note of every parameter whether backward returns a gradient for it, and whether one is intended."""
    names = list(facts)
    for place in _asked(backward):
        if -len(names) <= place < len(names):
            facts[names[place]].intended = True
    paths = [_values(path.node.value, path.values, len(names)) for path in returned(backward)]
    known = [path for path in paths if path is not None]
    for place, name in enumerate(names if len(known) == len(paths) else ()):
        given = [path[place] for path in known if place < len(path)]
        if given:
            facts[name].gradient = not all(is_always_none(g, backward) for g in given)


def _values(
    node: ast.expr | None, values: Sequence[ast.expr] | None, count: int
) -> Sequence[ast.expr] | None:
    """What a path returns, by parameter; of one parameter it may be any expression."""
    if values is None and count == 1 and node is not None:
        return [node]
    return None if any(isinstance(e, ast.Starred) for e in getattr(node, "elts", ())) else values


def _asked(backward: Method) -> Iterator[int]:
    """Positions of `needs_input_grad` that backward reads for more than to refuse a gradient."""
    refusing = {id(n) for test in _refusals(backward) for n in ast.walk(test)}
    for node in backward.nodes:
        if (
            isinstance(node, ast.Subscript)
            and last_name(node.value) == "needs_input_grad"
            and id(node) not in refusing
        ):
            place = integer(node.slice)
            yield from () if place is None else (place,)


def _refusals(backward: Method) -> Iterator[ast.expr]:
    """Conditions under which backward raises, warns or does nothing else."""
    for node in backward.nodes:
        match node:
            case ast.Assert(test=test):
                yield test
            case ast.If(test=test, body=body, orelse=[]):
                if all(isinstance(s, ast.Raise | ast.Expr | ast.Pass) for s in body):
                    yield test
            case _:
                pass


def trained(source: str, function: str, names: Sequence[str]) -> frozenset[str]:
    """Those for which some `function.apply(x, self.weight)` of a layer passes one of its own parameters.

    `names` are those of the target in order; empty where the source cannot be parsed.
    """
    try:
        tree = tree_of(source)
    except (SyntaxError, ValueError):
        return frozenset()
    layers = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return frozenset(name for layer in layers for name in _of_layer(layer, function, names))


def _of_layer(layer: ast.ClassDef, function: str, names: Sequence[str]) -> Iterator[str]:
    assigned = [n for n in ast.walk(layer) if isinstance(n, ast.Assign)]
    held = {_own(t) for n in assigned if called_name(n.value) == "Parameter" for t in n.targets} - {""}
    for node in ast.walk(layer) if held else ():
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="apply")) if last_name(value) == function:
                yield from (n for n, a in zip(names, node.args, strict=False) if _own(a) in held)
            case _:
                pass


def _own(node: ast.expr) -> str:
    """The `w` of `self.w`, empty for anything else."""
    is_own = isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self"
    return last_name(node) if is_own else ""
