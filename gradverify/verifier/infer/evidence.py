"""What the source of a target tells of its parameters: no torch is asked, no user code is run."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gradverify.source import Method, called_name, every_parameter, is_none, root_name
from gradverify.verifier.infer.facts import Evidence, Facts
from gradverify.verifier.infer.gradients import note_gradients
from gradverify.verifier.infer.helpers import Helpers
from gradverify.verifier.infer.uses import Reader

TRUSTING = re.compile(
    r"chol|triang|(?<![a-z])eig(?!val)|eigvalsh|symeig|potr|trtr|inv_matmul|sqrtm|logm|lobpcg|svd|lstsq|pinv"
)
"""Routines that read only part of a matrix, or trust its rank: right only for the kind they are meant for.
Eigenvectors have no scale of their own besides, and nothing but what does not hang on it has a derivative."""

CLAMPS = frozenset({"clamp", "clamp_", "clamp_min", "clamp_max", "clip", "clip_"})
"""Calls that hold a tensor within bounds."""

ROOTS = frozenset({"sqrt", "rsqrt", "log", "sqrt_", "log_"})
"""Functions of eigenvalues that none below zero is meant for."""

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
_JOINING = frozenset({"cat", "concat", "concatenate", "hstack", "vstack", "dstack", "column_stack"})
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

    `extra_parameters` is how many come before the first one: the `ctx`, or none.
    """
    facts = {name: Facts() for name in names}
    helpers = Helpers(facts, str(getattr(forward, "__module__", None) or "").partition(".")[0])
    computing, filling, undoing = (Method.of(f) if f else None for f in (forward, setup_context, backward))
    saved, kept, called, likely = list[str](), dict[str, str](), dict[str, str](), dict[str, int]()
    if computing is not None:
        called, packing = _called(computing, names, extra_parameters)
        given, packed = _globals_of(forward), computing.variadic if packing else ""
        reader = Reader(facts, dict(called), given, helpers.entering(given), packed, packing, kept, saved)
        reader.read(computing.node)
        likely |= _broadcast(computing.node, called)
    if filling is not None and len(filling.parameters) > 1:
        Reader(facts, {}, {}, None, filling.parameters[1], names, kept, saved).read(filling.node)
    if undoing is not None:
        reader = Reader(facts, {}, _globals_of(backward), None, "", (), kept, saved)
        reader.read(undoing.node)
        likely = _broadcast(undoing.node, reader.alias) | likely
        note_gradients(facts, undoing)
        _note_rank_of_outputs(likely, facts, undoing)
    _note_vectors(likely, facts)
    of_forward = [*(m.node for m in (computing, filling) if m is not None), *helpers.entered]
    of_backward = [undoing.node] if undoing is not None else []
    return _whole(facts, of_forward, of_backward, called, likely)


def _called(computing: Method, names: Sequence[str], extra: int) -> tuple[dict[str, str], Sequence[str]]:
    """The parameters by the names that forward has for them, and what its `*args` holds of them."""
    positional = computing.parameters[extra:]
    by_name = [p for p in every_parameter(computing.node)[extra:] if p in names and p not in positional]
    called = {**dict(zip(positional, names, strict=False)), **{p: p for p in by_name}}
    packing = [n for n in names[len(positional) :] if n not in by_name or n == computing.variadic]
    return called, () if packing == [computing.variadic] else packing


def _whole(
    facts: Mapping[str, Facts],
    of_forward: Sequence[ast.FunctionDef],
    of_backward: Sequence[ast.FunctionDef],
    called: Mapping[str, str],
    likely: Mapping[str, int],
) -> Evidence:
    """What the bodies tell of the target as a whole; `called` are forward's own names of the parameters."""
    ahead, back = _nodes(of_forward), _nodes(of_backward)
    nodes = [*ahead, *back]
    routines = [called_name(n) for n in nodes if isinstance(n, ast.Call)]
    trusted = [name for name in routines if TRUSTING.search(name)]
    cut = {n for node in nodes for n in _parts(node) if 1 < n <= MOST_PARTS}
    roots = any(called_name(n) in ROOTS for n in ahead) and any(
        TRUSTING.search(called_name(n)) for n in ahead
    )
    return Evidence(
        facts,
        frozenset(cut),
        joins=not _JOINING.isdisjoint(routines),
        complexes=frozenset(_asked_as_complex(nodes)) & {*called, *facts},
        factorization=trusted[0] if trusted else "",
        clamps=any(called_name(n) in CLAMPS for n in back)
        and not any(called_name(n) in CLAMPS for n in ahead),
        roots=roots,
        likely=likely,
    )


def _nodes(bodies: Iterable[ast.FunctionDef]) -> list[ast.AST]:
    return [node for body in bodies for node in ast.walk(body)]


def _globals_of(function: Callable[..., Any] | None) -> Mapping[str, Any]:
    return getattr(inspect.unwrap(function), "__globals__", {}) if function is not None else {}


def _asked_as_complex(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names whose conjugate, imaginary part or the like is taken."""
    for node in nodes:
        match node:
            case ast.Attribute(value=whole, attr=attr) if attr in OF_COMPLEX:
                yield _root(whole)
            case ast.Call(func=ast.Attribute(attr=attr), args=[first, *_]) if attr in OF_COMPLEX:
                yield _root(first)
            case _:
                pass


def _root(node: ast.expr) -> str:
    """The name that an expression is, or a part or a transpose of."""
    while isinstance(node, ast.Call):
        node = node.func
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
    yield from (n.value for n in nodes if isinstance(n, ast.Constant) and type(n.value) is int)


def _broadcast(body: ast.FunctionDef, called: Mapping[str, str]) -> dict[str, int]:
    """Dimensions of the parameters that get new ones at both ends, or several of them.

    `scale[:, None, None]` and `scale.view(1, -1, 1, 1)` are of a vector. Nothing forbids other numbers of
    dimensions there, and forward often runs at them, but backward does not.
    """
    found: dict[str, int] = {}
    for node in ast.walk(body):
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=entries)) if name in called:
                new = sum(is_none(e) for e in entries)
                whole = sum(isinstance(e, ast.Slice) and not (e.lower or e.upper) for e in entries)
                if new >= LEAST_NEW and whole and new + whole == len(entries) and is_none(entries[-1]):
                    found.setdefault(called[name], whole)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="view" | "reshape"), args=sizes):
                if name in called and _is_of_a_vector(sizes):
                    found.setdefault(called[name], 1)
            case _:
                pass
    return found


def _is_of_a_vector(sizes: Sequence[ast.expr]) -> bool:
    """`view(1, -1, 1)`, `view(1, c, 1, 1)` and `view(-1, *[1] * k)`: one size among ones."""
    ones = sum(isinstance(s, ast.Constant) and s.value == 1 for s in sizes)
    starred = sum(isinstance(s, ast.Starred) for s in sizes)
    inferred = any(isinstance(s, ast.UnaryOp) for s in sizes)
    return len(sizes) - ones - starred == 1 and (starred == 1 or ones >= (1 if inferred else LEAST_NEW))


def _note_rank_of_outputs(likely: dict[str, int], facts: Mapping[str, Facts], backward: Method) -> None:
    """The first input with a gradient has the dimensions of what forward returns, if nothing else is said.

    `grad.sum((0, 2, 3))` is of images.
    """
    first = next((n for n, f in facts.items() if f.gradient is not False and n not in likely), None)
    grads = set(backward.parameters[1:])
    rank = max((axis for node in ast.walk(backward.node) for axis in _axes(node, grads)), default=0)
    if first is not None and rank > max(facts[first].least_rank, 2) and facts[first].rank is None:
        likely[first] = rank


def _axes(node: ast.AST, grads: set[str]) -> Iterator[int]:
    """How many dimensions the axes of a call on grad_output, or on a product with it, take at least."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    parts = list(ast.walk(node.func.value))
    plain = not any(isinstance(p, ast.Call | ast.Subscript | ast.MatMult) for p in parts)
    if node.func.attr not in OF_AXES or not plain or not {getattr(p, "id", "") for p in parts} & grads:
        return
    for argument in (*node.args, *(k.value for k in node.keywords if k.arg in {"dim", "axis"})):
        for entry in argument.elts if isinstance(argument, ast.Tuple | ast.List) else [argument]:
            match entry:
                case ast.Constant(value=int() as axis) if type(axis) is int and axis < MOST_DIMENSIONS:
                    yield axis + 1
                case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as axis)):
                    yield axis
                case _:
                    pass


def _note_vectors(likely: dict[str, int], facts: Mapping[str, Facts]) -> None:
    """Where one index has one dimension all have: both ends of edges, the rows and the columns of entries."""
    indices = [n for n, f in facts.items() if "index" in f.kinds]
    if any(facts[n].rank == 1 for n in indices):
        likely.update({n: 1 for n in indices if facts[n].rank is None and n not in likely})
