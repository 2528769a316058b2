"""How a body of source uses its parameters: each use says something of what they are.

What torch's routines take: which arguments are sizes, dimensions or indices, and of which rank. What a
parameter is compared with or looked up by, and the numbers at which paths part.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradverify.source import called_name, integer, is_none, parameters_of
from gradverify.verifier.infer.facts import Facts

SHAPE_CALLS = {"size", "dim", "numel", "stride", "ndimension"}
TENSOR_ATTRIBUTES = frozenset(
    {
        "shape",
        "ndim",
        "device",
        "dtype",
        "T",
        "mT",
        "data",
        "is_cuda",
        "requires_grad",
        "grad",
        "real",
        "imag",
    }
)
"""Attributes that an argument has only if it is a tensor."""

MODULE_METHODS = frozenset(
    {
        "forward",
        "parameters",
        "named_parameters",
        "modules",
        "children",
        "eval",
        "train",
        "state_dict",
        "buffers",
    }
)
"""Methods that an argument has only if it is an `nn.Module`."""

RANK_OF_METHOD = {"t": 2, "mm": 2, "addmm": 2, "bmm": 3, "baddbmm": 3, "mv": 2}
"""Rank that the first operand of a method must have."""

RANKS_OF_CALL: Mapping[str, tuple[int | None, ...]] = {
    "mm": (2, 2), "bmm": (3, 3), "mv": (2, 1), "dot": (1, 1), "ger": (1, 1), "outer": (1, 1),
    "conv1d": (3, 3, 1), "conv2d": (4, 4, 1), "conv3d": (5, 5, 1), "conv_transpose2d": (4, 4, 1),
    "conv_transpose1d": (3, 3, 1), "unfold": (4,), "fold": (3,), "grid_sample": (4, 4),
    "max_pool2d": (4,), "avg_pool2d": (4,), "interpolate": (4,), "pixel_shuffle": (4,),
    "max_pool1d": (3,), "avg_pool1d": (3,), "max_pool3d": (5,), "addmm": (None, 2, 2),
    "linear": (None, 2, 1),
}  # fmt: skip
"""Ranks of the operands of functions that fix them; None for one that may be of several."""

INDEX_ARGUMENT = {
    "index_select": -1, "gather": -1, "scatter": 1, "scatter_": 1, "scatter_add": 1, "scatter_add_": 1,
    "index_add": 1, "index_add_": 1, "index_fill_": 1, "index_reduce": 1, "index_reduce_": 1, "one_hot": 0,
    "embedding": 0, "take": -1, "take_along_dim": 0, "nll_loss": 1, "cross_entropy": 1,
}  # fmt: skip
"""Functions and methods whose argument at this position (of the method form) is an integer tensor."""

SEARCHED_ARGUMENT = {"searchsorted": 0, "bucketize": 1, "digitize": 1, "interp": 1}
"""Functions whose argument at this position must ascend: of other ones they give anything."""

OF_A_VECTOR = frozenset(
    {"index_select", "index_add", "index_add_", "index_fill_", "index_reduce", "index_reduce_"}
)
"""Those of them whose index has one dimension."""

SIZE_CALLS = frozenset(
    {"range", "view", "reshape", "zeros", "ones", "empty", "full", "arange", "eye", "expand", "repeat",
     "chunk", "topk", "narrow", "new_zeros", "new_empty", "new_ones", "linspace", "randn", "rand", "split"}
)  # fmt: skip
"""Calls whose bare arguments are counts or sizes."""

AXIS_CALLS = frozenset(
    {"sum", "mean", "softmax", "log_softmax", "cumsum", "max", "min", "sort", "norm", "transpose", "size",
     "unbind", "squeeze", "unsqueeze", "argmax", "prod", "logsumexp", "flip"}
)  # fmt: skip
"""Calls whose bare arguments are dimensions."""

KEYWORDS: Mapping[tuple[str, ...], str] = {
    ("dim", "axis"): "dim",
    ("keepdim", "inplace", "training", "align_corners", "ceil_mode"): "flag",
    ("dtype",): "dtype",
    ("stride", "padding", "dilation", "groups", "kernel_size", "dims"): "int",
    ("min", "max"): "float",
}
"""What keyword arguments are."""

MATH_CALLS = frozenset({"sqrt", "exp", "log", "float", "pow", "cos", "sin", "tanh"})

KEEPING_SHAPE = frozenset(
    {"clone", "contiguous", "cpu", "cuda", "detach", "double", "float", "half", "long", "numpy", "to"}
    | {"requires_grad_", "type_as"}
)
"""Methods whose result has the shape of what they are called on."""


MOST_KEYS = 12
"""Keys of a table beyond which it is data and no list of options."""


def numbers_beside(operator: ast.cmpop, other: ast.expr) -> list[float]:
    """Numbers at which a comparison with another one comes out one way and the other."""
    try:
        number = ast.literal_eval(other)
    except (ValueError, TypeError):
        return []
    if not isinstance(number, int | float) or isinstance(number, bool):
        return []
    match operator:
        case ast.Eq() | ast.NotEq():
            return [number]
        case ast.Gt() | ast.LtE() if isinstance(number, int):
            return [number + 1, number]
        case ast.Lt() | ast.GtE() if isinstance(number, int):
            return [number, number - 1]
        case _:
            return []


def keys_of(table: ast.expr, tables: Mapping[str, list[str]]) -> list[str]:
    """The strings of a table or list that is written out, or of a named one."""
    match table:
        case ast.Dict(keys=keys):
            return strings_of([k for k in keys if k is not None])
        case ast.List(elts=entries) | ast.Tuple(elts=entries) | ast.Set(elts=entries):
            return strings_of(entries)
        case ast.Name() | ast.Attribute():
            return tables.get(ast.unparse(table), [])
        case ast.Call(func=ast.Attribute(value=inner, attr="keys"), args=[]):
            return keys_of(inner, tables)
        case _:
            return []


def strings_of(nodes: Sequence[ast.expr]) -> list[str]:
    """The values of literal strings; empty where some node is none."""
    found = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return found if len(found) == len(nodes) <= MOST_KEYS else []


def tables_of(body: ast.FunctionDef, given: Mapping[str, Any]) -> dict[str, list[str]]:
    """The keys of tables and lists of strings by their name: those outside, then those of the function."""
    found = {name: list(keys) for name, keys in _outside(body, given)}
    for node in ast.walk(body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = keys_of(value, found)
            case _:
                pass
    return found


def _outside(body: ast.AST, given: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(body):
        match node:
            case ast.Name(id=name) if name in given:
                value = given[name]
            case ast.Attribute(value=ast.Name(id=owner), attr=attr) if owner in given:
                value = inspect.getattr_static(given[owner], attr, None)  # runs no code of the user's
            case _:
                continue
        table = isinstance(value, dict | list | tuple | set | frozenset) and 0 < len(value) <= MOST_KEYS
        if table and all(isinstance(key, str) for key in value):
            yield ast.unparse(node), list(value)


_TESTED = (("Tensor", "tensor"), ("list", "sequence"), ("tuple", "sequence"), ("int", "int"))
"""Types that `isinstance` asks for, and what they say."""

_OF_OBJECTS = frozenset({"append", "lower", "upper", "items", "keys"})
"""Methods that no tensor has."""


def name_behind(value: ast.expr) -> str:
    """The tensor whose shape an expression has; empty where it is none that is known."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr not in KEEPING_SHAPE:
            return ""
        value = value.func.value
    return value.id if isinstance(value, ast.Name) else ""


def paired(targets: Sequence[ast.expr], values: Sequence[ast.expr]) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Which target is given which value; of `b, t, v = *k.shape, m` the first two are given `k.shape`.

    Nothing where that cannot be told: stars on both sides, or several of them.
    """
    stars = [k for k, v in enumerate(values) if isinstance(v, ast.Starred)]
    if any(isinstance(t, ast.Starred) for t in targets) or len(stars) > 1:
        return
    if not stars:
        yield from zip(targets, values, strict=True) if len(targets) == len(values) else ()
        return
    (start,), more = stars, len(targets) - len(values) + 1
    if more >= 0:
        held = values[start]
        inner = held.value if isinstance(held, ast.Starred) else held
        yield from zip(targets[:start], values[:start], strict=True)
        yield ast.Tuple(list(targets[start : start + more]), ast.Store()), inner
        yield from zip(targets[start + more :], values[start + 1 :], strict=True)


@dataclass
class Reader:
    """Notes every use of a parameter, of a local name that is one, and of what ctx keeps of it."""

    facts: Mapping[str, Facts]
    alias: dict[str, str]
    """Parameters by the names that they have in this body."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Global names of the body."""
    entered: Callable[[ast.Call, Mapping[str, str]], None] | None = None
    """Told of every call, and of what the names of this body are there."""
    packed: str = ""
    """A name that holds parameters in order, as `inputs` of `setup_context` does, and `*args`."""
    packing: Sequence[str] = ()
    """The parameters that it holds."""
    kept: dict[str, str] = field(default_factory=dict)
    """Parameters by the attribute of ctx that keeps them, `opts[1]` where it keeps several."""
    saved: list[str] = field(default_factory=list)
    """What `save_for_backward` got: parameters by position, an empty name for what is computed."""

    def read(self, body: ast.FunctionDef) -> None:
        """Note all uses in a body."""
        self._ctx = next(iter(parameters_of(body)), "")
        self._tables = tables_of(body, self.given)
        for statement in body.body:
            self._visit(statement)

    def of(self, node: ast.AST) -> Facts | None:
        """The facts of the parameter that an expression is; None for any other."""
        order = tuple(self.packing)
        match node:
            case ast.Name(id=name) if name in self.alias:
                return self.facts[self.alias[name]]
            case ast.Subscript(value=ast.Name(id=self.packed), slice=ast.Constant(value=int() as k)) if (
                k < len(order)
            ):
                return self.facts[order[k]]
            case _:
                return None

    def _or_kept(self, node: ast.AST) -> Facts | None:
        """The same, also of what ctx keeps."""
        match node:
            case ast.Attribute(value=ast.Name(id=self._ctx), attr=attr) if attr in self.kept:
                return self.facts[self.kept[attr]]
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=self._ctx), attr=attr),
                slice=ast.Constant(value=int() as k),
            ) if f"{attr}[{k}]" in self.kept:
                return self.facts[self.kept[f"{attr}[{k}]"]]
            case _:
                return self.of(node)

    def _note(self, node: ast.AST, kind: str) -> None:
        facts = self.of(node)
        if facts is not None:
            facts.kinds.add(kind)

    def _note_each(self, nodes: Sequence[ast.AST], kind: str) -> None:
        for node in nodes:
            self._note(node, kind)

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value)
        self._use(node)
        for child in ast.iter_child_nodes(node):
            self._visit(child)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        """Follow `a = x`, `n, d = x.shape`, `x, w = inputs`, `(x,) = ctx.saved_tensors` and `ctx.k = k`."""
        match target, value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values):
                for one, other in paired(targets, values):
                    if isinstance(one, ast.Attribute | ast.Tuple):
                        self._bind(one, other)
                    else:
                        self._name_size(one, other)
            case ast.Tuple(elts=targets), _:
                self._unpack([getattr(e, "id", "") for e in targets], targets, value)
            case ast.Name(id=name), _:
                self._name_size(target, value)
                behind = name_behind(value)
                if behind in self.alias:
                    self.alias[name] = self.alias[behind]
                elif self.of(value) is None:
                    self.alias.pop(name, None)
            case ast.Attribute(attr=attr), ast.Name(id=name) if name in self.alias:
                self.kept[attr] = self.alias[name]
                self._note(value, "kept")
            case ast.Attribute(attr=attr), ast.Tuple(elts=values):
                named = ((k, getattr(one, "id", "")) for k, one in enumerate(values))
                self.kept.update({f"{attr}[{k}]": self.alias[n] for k, n in named if n in self.alias})
                self._note_each(values, "kept")
            case _:
                pass

    def _name_size(self, target: ast.expr, value: ast.expr) -> None:
        """Note what forward calls one dimension: `d = x.shape[-1]`, not backward, of what was saved."""
        if self.entered is None:
            return
        match value:
            case (
                ast.Subscript(value=ast.Attribute(value=tensor, attr="shape"), slice=index)
                | ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[index])
            ):
                facts, k = self.of(tensor), integer(index)
                if facts is not None and k is not None and isinstance(target, ast.Name):
                    facts.sizes.setdefault(k, target.id)
            case _:
                pass

    def _unpack(self, names: list[str], targets: Sequence[ast.expr], value: ast.expr) -> None:
        starred = any(isinstance(e, ast.Starred) for e in targets)
        whole = self.of(value)
        match value:
            case ast.Name(id=self.packed) if not starred or isinstance(targets[-1], ast.Starred):
                self.alias.update({n: p for n, p in zip(names, self.packing, strict=False) if n})
            case ast.Attribute(attr="saved_tensors" | "saved_variables") if len(names) == len(self.saved):
                self.alias.update({n: p for n, p in zip(names, self.saved, strict=True) if n and p})
            case ast.Attribute(attr=attr) if not starred and any(p.startswith(f"{attr}[") for p in self.kept):
                places = ((n, f"{attr}[{k}]") for k, n in enumerate(names) if n)
                self.alias.update({n: self.kept[place] for n, place in places if place in self.kept})
            case (
                ast.Attribute(value=tensor, attr="shape")
                | ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[])
            ):
                facts = self.of(tensor)
                if facts is not None and starred:
                    facts.has_dimensions(len(names) - 1)
                elif facts is not None:
                    facts.has_rank(len(names), tuple(names))
            case ast.Subscript(value=ast.Attribute(value=tensor, attr="shape"), slice=ast.Slice()):
                facts = self.of(tensor)
                if facts is not None:
                    facts.has_dimensions(len(names) - starred)
            case _ if whole is not None and not starred:
                whole.unpacked = len(names)

    def _use(self, node: ast.AST) -> None:
        match node:
            case ast.Attribute(value=value, attr=attr):
                facts = self.of(value)
                if facts is not None:
                    facts.attributes.add(attr)
                    facts.kinds |= {"tensor"} if attr in TENSOR_ATTRIBUTES else set()
            case ast.Subscript():
                self._subscript(node)
            case ast.Call():
                self._call(node)
            case ast.Compare():
                self._compare(node)
            case ast.Match(subject=subject, cases=cases):
                patterns = [p for case in cases for p in ast.walk(case.pattern)]
                self._named(subject, strings_of([p.value for p in patterns if isinstance(p, ast.MatchValue)]))
            case _:
                self._operator(node)

    def _operator(self, node: ast.AST) -> None:
        """Note `~mask`, `not flag`, `if flag:`, `for x in xs` and `x @ w`."""
        match node:
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                self._note(operand, "bool")
            case ast.UnaryOp(op=ast.Not(), operand=test) | ast.If(test=test) | ast.IfExp(test=test):
                self._note(test, "flag")
            case ast.For(iter=several) | ast.comprehension(iter=several):
                self._note(several, "sequence")
            case ast.BinOp(op=ast.MatMult(), left=left, right=right):
                for facts in filter(None, (self.of(left), self.of(right))):
                    facts.has_dimensions(1)
            case _:
                pass

    def _named(self, subject: ast.AST, strings: Sequence[str]) -> None:
        facts = self._or_kept(subject)
        if facts is not None:
            facts.strings += [s for s in strings if s not in facts.strings]

    def _subscript(self, node: ast.Subscript) -> None:
        """Note `x.shape[3]`, `x[:, 0]`, `table[index]` and `ends[i + 1]`."""
        whole, index = node.value, node.slice
        self._named(index, self._keys(whole))
        if isinstance(whole, ast.Attribute) and whole.attr == "shape":
            self._dimension(whole.value, index)
            return
        facts = self.of(whole)
        entries = index.elts if isinstance(index, ast.Tuple) else [index]
        if facts is not None and _is_next(index):
            facts.kinds.add("offsets")
        if facts is not None and isinstance(index, ast.Tuple):
            facts.has_dimensions(len([e for e in entries if not is_none(e) and not _is_ellipsis(e)]))
        if facts is not None and isinstance(index, ast.Slice):
            facts.kinds.add("cut")
        for entry in entries:
            if isinstance(entry, ast.Name):
                self._note(entry, "index")
            elif isinstance(entry, ast.Slice):
                for end in filter(None, (entry.lower, entry.upper, entry.step)):
                    self._note(end, "int")

    def _dimension(self, tensor: ast.expr, index: ast.expr) -> None:
        facts = self.of(tensor)
        match index:
            case _ if facts is None:
                return
            case ast.Constant(value=int() as k):
                facts.has_dimensions(k + 1)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as k)):
                facts.has_dimensions(k)
            case _:
                facts.kinds.add("tensor")

    def _call(self, node: ast.Call) -> None:
        """Note what a parameter is called with, on and as."""
        name, function = called_name(node), node.func
        receiver = function.value if isinstance(function, ast.Attribute) else None
        called, on = self._or_kept(function), self.of(receiver) if receiver is not None else None
        if called is not None:
            self._called(called, node.args)
        if on is not None and name in MODULE_METHODS:
            on.kinds.add("module")
        elif on is not None and name not in _OF_OBJECTS and called is None:
            on.kinds.add("tensor")
            if name in RANK_OF_METHOD:
                on.has_rank(RANK_OF_METHOD[name])
            if name == "item" and not on.least_rank:
                on.has_rank(0)
            if name in SHAPE_CALLS and node.args and receiver is not None:
                self._dimension(receiver, node.args[0])
        self._operands(name, node, [*self._receiver(receiver), *node.args])
        self._roles(name, node, receiver)
        if name == "save_for_backward" and not self.saved:
            starred = any(isinstance(a, ast.Starred) for a in node.args)
            self.saved += [] if starred else [self.alias.get(name_behind(a), "") for a in node.args]
        if self.entered is not None:
            self.entered(node, self.alias)

    def _called(self, called: Facts, given: Sequence[ast.expr]) -> None:
        """Note what a parameter that is called gets."""
        called.kinds.add("callable")
        starred = [a.value for a in given if isinstance(a, ast.Starred)]
        called.arity = called.arity if starred else max(called.arity, len(given))
        for several in starred:
            self._note(several, "operands")

    def _receiver(self, receiver: ast.expr | None) -> list[ast.expr]:
        """What a method is called on; nothing for the function of a library."""
        root = receiver
        while isinstance(root, ast.Attribute):
            root = root.value
        is_library = receiver is None or (isinstance(root, ast.Name) and root.id not in self.alias)
        return [] if is_library or receiver is None else [receiver]

    def _operands(self, name: str, node: ast.Call, operands: Sequence[ast.expr]) -> None:
        """Note the dimensions that a routine asks of its operands."""
        for operand, rank in zip(operands, RANKS_OF_CALL.get(name, ()), strict=False):
            facts = self.of(operand)
            if facts is not None:
                facts.kinds.add("tensor")
                facts.rank = rank if facts.rank is None else facts.rank
        match node.args:
            case [ast.Constant(value=str() as equation), *several] if name == "einsum":
                terms = equation.replace(" ", "").split("->")[0].split(",")
                for operand, term in zip(several, terms, strict=False):
                    facts = self.of(operand)
                    if facts is not None and "." not in term:
                        facts.has_rank(len(term), tuple(term))
            case _:
                pass

    def _roles(self, name: str, node: ast.Call, receiver: ast.expr | None) -> None:
        """Note what an argument is by its place in a call."""
        arguments, at = node.args, INDEX_ARGUMENT.get(name)
        if at is not None and -len(arguments) <= at < len(arguments):
            facts = self.of(arguments[at])
            if facts is not None:
                facts.kinds.add("index")
                facts.rank = 1 if name in OF_A_VECTOR and facts.rank is None else facts.rank
        searched = SEARCHED_ARGUMENT.get(name, len(arguments))
        if searched < len(arguments):
            self._note(arguments[searched], "searched")
        for names, kind in ((SIZE_CALLS, "int"), (AXIS_CALLS, "dim"), (("save_for_backward",), "tensor")):
            for argument in arguments if name in names else ():
                self._note(argument, kind)
        for keyword in node.keywords:
            for kind in (k for names, k in KEYWORDS.items() if keyword.arg in names):
                self._note(keyword.value, kind)
        if arguments:
            self._first(name, arguments, receiver)

    def _first(self, name: str, arguments: Sequence[ast.expr], receiver: ast.expr | None) -> None:
        """Note what the first argument of a call is."""
        match name, arguments:
            case "masked_fill" | "masked_fill_" | "masked_select" | "where", [first, *_]:
                self._note(first, "bool")
            case "int" | "bool" | "len", [first, *_]:
                self._note(first, {"int": "int", "bool": "flag", "len": "sequence"}[name])
            case "isinstance", [tested, types]:
                for word, kind in _TESTED:
                    if word in ast.unparse(types):
                        self._note(tested, kind)
            case "get", [key, *_] if receiver is not None:
                self._named(key, self._keys(receiver))
            case _, [first, *_] if name in MATH_CALLS and getattr(receiver, "id", "math") == "math":
                self._note(first, "float")
            case _:
                pass

    def _compare(self, node: ast.Compare) -> None:
        """Note `how == "mean"`, `"mean" in how`, `bias is None`, `mode in MODES` and `p > 2`."""
        left, facts = node.left, self.of(node.left)
        for operator, other in zip(node.ops, node.comparators, strict=True):
            match operator, other:
                case ast.Eq() | ast.NotEq(), _:
                    self._named(left, strings_of([other]))
                    self._named(other, strings_of([left]))
                case ast.In() | ast.NotIn(), _:
                    self._named(left, self._keys(other))
                    self._named(other, strings_of([left]))
                case _:
                    pass
            kept = self._or_kept(left)
            if kept is not None:
                kept.numbers += [n for n in numbers_beside(operator, other) if n not in kept.numbers]
            if facts is None:
                continue
            match operator, other:
                case ast.Is() | ast.IsNot(), ast.Constant(value=None):
                    facts.kinds.add("none")
                case ast.Eq() | ast.NotEq(), ast.Constant(value=int()):
                    facts.kinds.add("int")
                case _:
                    pass

    def _keys(self, table: ast.expr) -> list[str]:
        return keys_of(table, self._tables)


def _is_next(index: ast.expr) -> bool:
    """`[i + 1]` or `[1:]`: each entry is taken together with the next one."""
    match index:
        case ast.BinOp(op=ast.Add(), right=ast.Constant(value=1)):
            return True
        case ast.Slice(lower=ast.Constant(value=1), upper=None):
            return True
        case _:
            return False


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis
