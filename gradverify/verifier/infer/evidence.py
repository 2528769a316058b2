"""What the source of a target tells of its parameters: no torch is asked, no user code is run.

Of forward, of the user's own functions that it hands them to, of what backward returns for each (a gradient,
None, or None where one is intended), and of docstrings: `q (torch.Tensor): queries of shape [B, T, H, K]`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from gradverify.source import (
    Method,
    called_name,
    definition,
    every_parameter,
    integer,
    is_none,
    last_name,
    name_of,
    parameters_of,
    returned,
    root_name,
)
from gradverify.source.method import is_always_none
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.infer.facts import Evidence, Facts
from gradverify.verifier.infer.uses import Reader, name_behind

FURTHEST = 120
"""Characters between the name of a parameter and its shape."""

_SHAPE = r"[\[(]\s*((?:[A-Za-z_]\w*|\d+)(?:\s*[,x ]\s*(?:[A-Za-z_]\w*|\d+)){0,5})\s*,?\s*[\])]"
"""One to six sizes in brackets, each a name or a number."""

_WORDS = re.compile(r"tensor|optional|float|int|bool|default|none", re.IGNORECASE)
"""What stands in brackets and is no shape."""


def shapes_told(bodies: Iterable[ast.AST], names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The sizes of each parameter by the first docstring that tells them, in the author's names."""
    found: dict[str, tuple[str, ...]] = {}
    for body in bodies:
        said = ast.get_docstring(body) if isinstance(body, ast.FunctionDef | ast.ClassDef) else None
        for name in names if said else ():
            shape = _shape_of(name, said or "")
            if shape:
                found.setdefault(name, shape)
    return found


def _shape_of(name: str, said: str) -> tuple[str, ...]:
    """The first shape that follows `name` and a colon, before an empty line or the next parameter."""
    for start in re.finditer(rf"^\W*{re.escape(name)}\b[^:\n]*:", said, re.MULTILINE):
        text = said[start.end() : start.end() + FURTHEST].partition("\n\n")[0]
        text = re.split(r"\n\s*\w+ *(?:\([^)]*\))? *:", text)[0]
        for shape in re.finditer(_SHAPE, text):
            alone = shape[0].startswith("(") and re.fullmatch(r"\w+", shape[1])
            if not alone and not _WORDS.search(shape[1]):
                return tuple(re.split(r"[,\s]+|(?<=\w) x (?=\w)", shape[1].strip()))
    return ()


ASKED = "needs_input_grad"


def note_gradients(facts: Mapping[str, Facts], backward: Method) -> None:
    """Note of every parameter whether backward returns a gradient for it, and whether one is intended."""
    names = list(facts)
    for place in _asked(backward, len(names)):
        facts[names[place]].intended = True
    paths = [_values(path.node.value, path.values, len(names)) for path in returned(backward)]
    known = [path for path in paths if path is not None]
    if not paths or len(known) < len(paths):
        return
    # Who asks for other gradients, and not for this one, leaves this one out on purpose.
    asks = any(isinstance(n, ast.Attribute) and n.attr == ASKED for n in backward.nodes)
    nothing = _nothing(backward, known)
    initialised = set() if asks else _initialised(backward, known, nothing)
    for place, name in enumerate(names):
        given = [path[place] for path in known if place < len(path)]
        if given:
            facts[name].gradient = not all(
                name_of(g) in nothing or is_always_none(g, backward) for g in given
            )
            facts[name].intended |= any(name_of(g) in initialised for g in given)


def _values(
    node: ast.expr | None, values: Sequence[ast.expr] | None, count: int
) -> Sequence[ast.expr] | None:
    """What a path returns, by parameter; of one parameter it may be any expression."""
    if values is None and count == 1 and node is not None:
        return [node]
    return None if any(isinstance(e, ast.Starred) for e in getattr(node, "elts", ())) else values


def _asked(backward: Method, count: int) -> set[int]:
    """Positions of `needs_input_grad` that backward reads for more than to refuse a gradient."""
    refusing = {id(n) for test in _refusals(backward) for n in ast.walk(test)}
    whole = {ASKED} | {
        target.id
        for n in backward.nodes
        if isinstance(n, ast.Assign) and last_name(n.value) == ASKED
        for target in n.targets
        if isinstance(target, ast.Name)
    }
    single: dict[str, int] = {}
    found: set[int | None] = set()
    for node in backward.nodes:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=entries)], value=value) if last_name(value) in whole:
                single |= {e.id: k for k, e in enumerate(entries) if isinstance(e, ast.Name)}
            case ast.Name(id=name, ctx=ast.Load()) if name in single and id(node) not in refusing:
                found.add(single[name])
            case ast.Subscript(value=value, slice=index) if last_name(value) in whole:
                found.add(None if id(node) in refusing else integer(index))
            case _:
                pass
    return {k % count for k in found if k is not None and -count <= k < count}


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


def _nothing(backward: Method, paths: Sequence[Sequence[ast.expr]]) -> set[str]:
    """Names that are returned and only ever given None, alone or as one of several at once."""
    given = [_given_none(n) for n in backward.nodes if isinstance(n, ast.Assign)]
    return {
        name
        for name in {name_of(value) for path in paths for value in path} - {""}
        if 0 < len(backward.bindings.get(name, [])) == sum(name in one for one in given)
    }


def _blocks(body: Sequence[ast.stmt]) -> Iterator[Sequence[ast.stmt]]:
    """A list of statements and every list nested in it."""
    yield body
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for part in ("body", "orelse", "finalbody"):
            inner = getattr(statement, part, None)
            if isinstance(inner, list):
                yield from _blocks(inner)
        for holder in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from _blocks(holder.body)


def _initialised(backward: Method, paths: Sequence[Sequence[ast.expr]], nothing: Collection[str]) -> set[str]:
    """Names that stay None, and are given it together with others that backward computes and returns."""
    returned_names = {name_of(value) for path in paths for value in path}
    found: set[str] = set()
    for block in _blocks(backward.node.body):
        run: set[str] = set()
        for statement in (*block, ast.Pass()):
            given = _given_none(statement)
            if not given and (run & returned_names) - set(nothing):
                found |= run & set(nothing)
            run = run | given if given else set()
    return found


def _given_none(statement: ast.AST) -> set[str]:
    """Names of `a = b = None` and `a, b = None, None`; empty for every other statement."""
    match statement:
        case ast.Assign(targets=targets, value=ast.Constant(value=None)):
            names: Collection[ast.expr] = targets
        case ast.Assign(targets=[ast.Tuple(elts=entries)], value=ast.Tuple(elts=values)) if all(
            map(is_none, values)
        ):
            names = entries
        case _:
            return set()
    return {name_of(n) for n in names} - {""}


DEEPEST = 3
"""Functions within functions that are read."""

MOST_ENTERED = 30
"""Functions that are read for one target."""

_BEHIND = ("py_func", "fn", "func", "_torchdynamo_orig_callable")
"""Attributes under which compilers and decorators keep what they were given."""


@dataclass
class Helpers:
    """Those that were entered."""

    facts: Mapping[str, Facts]
    package: str
    """Only functions of this package are the user's own."""
    entered: list[ast.FunctionDef] = field(default_factory=list)
    _seen: set[tuple[object, ...]] = field(default_factory=set)

    def entering(
        self, given: Mapping[str, Any], depth: int = 0
    ) -> Callable[[ast.Call, Mapping[str, str]], None] | None:
        """What a reader of a function with these global names tells of its calls."""

        def enter(call: ast.Call, known: Mapping[str, str]) -> None:
            function = self._function(call.func, given)
            if function is not None:
                self._read(function, call, known, depth + 1)

        return enter if depth < DEEPEST else None

    def _function(self, called: ast.expr, given: Mapping[str, Any]) -> FunctionType | None:
        found: Any
        match called:
            case ast.Name(id=name):
                found = given.get(name)
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                holder = given.get(owner)
                found = getattr(holder, name, None) if isinstance(holder, ModuleType | type) else None
            case ast.Subscript(value=value):  # a kernel launched over a grid
                return self._function(value, given)
            case _:
                return None
        behind = guard.call(_behind, found)  # a proxy that is not set up raises whatever it is asked for
        if isinstance(behind, Raised) or behind.value is None:
            return None
        return behind.value if behind.value.__module__.partition(".")[0] == self.package else None

    def _read(self, function: FunctionType, call: ast.Call, known: Mapping[str, str], depth: int) -> None:
        body = definition(function)
        own = {a: known[v] for a, v in passed(body, call) if v in known} if body is not None else {}
        key = (function, tuple(sorted(own.items())))
        if body is None or not own or key in self._seen or len(self._seen) == MOST_ENTERED:
            return
        self._seen.add(key)
        self.entered.append(body)
        given = function.__globals__
        Reader(self.facts, own, given, entered=self.entering(given, depth)).read(body)


def _behind(found: Any) -> FunctionType | None:  # noqa: ANN401
    """The plain function behind something that decorators made of it. Raises whatever that raises."""
    found = inspect.unwrap(found) if callable(found) else found
    for attribute in _BEHIND:
        if isinstance(found, FunctionType):
            break
        found = getattr(found, attribute, None)
    return found if isinstance(found, FunctionType) else None


def passed(body: ast.FunctionDef, call: ast.Call) -> Iterator[tuple[str, str]]:
    """(parameter, the name that a call passes for it) pairs, up to the first `*args`."""
    for name, argument in zip(parameters_of(body), call.args, strict=False):
        if isinstance(argument, ast.Starred):
            break
        yield name, name_behind(argument)
    yield from ((k.arg, name_behind(k.value)) for k in call.keywords if k.arg is not None)


TRUSTING = re.compile(
    r"chol|triang|(?<![a-z])eig(?!val)|eigvalsh|symeig|potr|trtr|inv_matmul|sqrtm|logm|lobpcg|svd|lstsq|pinv"
)
"""Routines that read only part of a matrix, or trust its rank: right only for the kind they are meant for.
Eigenvectors have no scale of their own besides, and nothing but what does not hang on it has a derivative."""

FACTORIZING = frozenset({"qr", "cholesky", "cholesky_ex", "lu", "lu_factor", "lu_factor_ex", "lu_unpack"})
"""Routines that give triangular factors of a matrix."""

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
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    routines = [called_name(call) for call in calls]
    factors = {name for node in nodes for name in _factors(node)}
    trusted = [
        name
        for call, name in zip(calls, routines, strict=True)
        if TRUSTING.search(name) and factors.isdisjoint(getattr(n, "id", "") for n in ast.walk(call))
    ]
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


def _factors(node: ast.AST) -> Iterator[str]:
    """Names that a factorization is assigned to: of its factors nothing has to be taken on trust."""
    match node:
        case ast.Assign(targets=[target], value=ast.Call() as call) if called_name(call) in FACTORIZING:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
        case _:
            pass


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
