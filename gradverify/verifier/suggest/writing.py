"""The text of a suggested backward, what forward must save for it, and both as a Function to be judged.

A recording as Python: ordinary operators and torch functions, in the author's own names.
"""

from __future__ import annotations

import ast
import itertools
import keyword
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gradverify.verifier.numerics.calling import returned_tensors
from gradverify.verifier.suggest.constants import SHAPED, Constants, Recording, constants_of
from gradverify.verifier.suggest.graph import Node
from gradverify.verifier.targets.forward_itself import run_forward
from gradverify.verifier.targets.operators import Operator

Phrase = tuple[str, int]
"""Text, and how strongly its outermost operator binds."""

_SIGNS = {
    1: {"eq": "==", "ne": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="},
    2: {"logical_or": "|", "bitwise_or": "|"},
    3: {"logical_and": "&", "bitwise_and": "&"},
    4: {"add": "+", "sub": "-"},
    5: {"mul": "*", "div": "/", "mm": "@", "bmm": "@", "mv": "@", "matmul": "@", "dot": "@"},
    7: {"pow": "**"},
}
BINARY = {op: (sign, own) for own, signs in _SIGNS.items() for op, sign in signs.items()}
"""Operators with how strongly they bind."""

ASSOCIATIVE = frozenset({"add", "mul", "logical_and", "logical_or"})
ATOM, POWER, NEGATED, PRODUCT, SUM = 9, 7, 6, 5, 4

VARIABLES = {
    op: name
    for name, ops in {
        "total": "add sum",
        "difference": "sub",
        "product": "mul mm bmm",
        "quotient": "div",
        "reshaped": "view _unsafe_view reshape",
        "expanded": "expand",
        "windows": "unfold",
        "padded": "constant_pad_nd",
        "masked": "masked_fill",
        "zeros": "new_zeros zeros_like",
        "positions": "arange",
        "probabilities": "_softmax",
    }.items()
    for op in ops.split()
}
"""What a value is called that has no name in forward; others are called by their operation."""

TORCH_NAMES = {
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "_conj": "conj",
    "_unsafe_view": "reshape",
    "view": "reshape",
    "constant_pad_nd": "nn.functional.pad",
}
"""What torch calls an operation. A view that was recorded may be of a copy that is not made here."""

WIDTH = 92
"""Columns up to which an expression stays on one line."""

DROPPED = frozenset({"layout", "device", "pin_memory", "memory_format", "requires_grad"})
"""Keywords that say of a new tensor what its neighbour says already."""

SPLAT = frozenset({"reshape", "expand", "permute"})
"""Methods whose sizes are written one by one."""


class Printer:
    """Writes expressions; `texts` say what numbered constants stand for."""

    def __init__(self, recording: Recording, texts: Mapping[int, str]) -> None:
        self._recording = recording
        self._names = dict(recording.cut.at_hand)
        self._gradients = {n: g for n, g in recording.recorded.gradients.items() if g is not None}
        places = [(node, k) for node in recording.cut.computed for k, _ in enumerate(constants_of(node))]
        self._constants = {place: texts.get(k) for k, place in enumerate(places)}
        self._taken = {*self._names.values(), "ctx", "torch", *recording.recorded.gradients}

    def statements(self) -> list[str]:
        """Assignments and the returned tuple's parts, all but the return itself."""
        gradients = {n: g for g, n in self._gradients.items()}
        uses = Counter(i for n in self._recording.cut.computed for i in n.inputs)
        lines = []
        for node in self._recording.cut.computed:
            text = self.text(node)[0]
            if node in gradients and (len(gradients) > 1 or len(text) > WIDTH or uses[node]):
                name = f"grad_{gradients[node]}"
            elif node in gradients or (uses[node] < 2 and len(text) <= WIDTH // 2) or _is_trivial(node):
                continue
            else:
                name = self._variable(node)
            lines.append(f"{name} = {text}")
            self._names[node] = name
        return lines

    def returned(self, parameters: list[str]) -> list[str]:
        """What is returned for each parameter."""
        found = self._gradients
        return [self.text(found[p])[0] if p in found else "None" for p in parameters]

    def _variable(self, node: Node) -> str:
        own = self._recording.recorded.names.get(node, "")
        by_operation = VARIABLES.get(node.op, node.op.removeprefix("_unsafe").strip("_"))
        name = own if own and own not in self._taken else by_operation
        if keyword.iskeyword(name) or not name.isidentifier():
            name = "value"
        candidates = itertools.chain([name], (f"{name}_{k}" for k in itertools.count(2)))
        free = next(c for c in candidates if c not in self._taken)
        self._taken.add(free)
        return free

    def text(self, node: Node) -> Phrase:
        """An expression and how strongly its outermost operator binds."""
        if node in self._names:
            return self._names[node], ATOM
        if node.op == "literal":
            return number(node.args[0]), ATOM
        constants = itertools.count()
        args = [self._argument(node, a, constants, k) for k, a in enumerate(node.args)]
        kwargs = {n: self._argument(node, v, constants, -1) for n, v in node.kwargs}
        return self._operator(node, args, kwargs) or (self._call(node, args, kwargs), ATOM)

    def _argument(self, node: Node, value: Any, constants: Iterator[int], place: int) -> Any:  # noqa: ANN401
        """An argument as (text, strength), or a tuple of such."""
        if isinstance(value, Node):
            return self.text(value)
        if isinstance(value, tuple) and node.op in SHAPED and place >= 0:
            said = self._constants.get((node, next(constants)))
            return (said or repr(value), ATOM)
        if isinstance(value, tuple):
            return [self._argument(node, v, constants, -1) for v in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            said = self._constants.get((node, next(constants)))
            return (said, strength(said)) if said else (number(value), ATOM if value >= 0 else NEGATED)
        return (str(value) if isinstance(value, torch.dtype) else repr(value), ATOM)

    def _operator(self, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Phrase | None:
        """What Python has a sign for; None for a call."""
        if node.op == "neg":
            return f"-{inside(args[0], NEGATED)}", NEGATED
        if node.op == "rsub":
            flipped = replace(node, op="sub", args=(node.args[1], node.args[0], *node.args[2:]))
            return self._binary(flipped, [args[1], args[0], *args[2:]], kwargs)
        if node.op in BINARY and len(args) > 1 and not set(kwargs) - {"alpha"}:
            return self._binary(node, args, kwargs)
        return self._part(node, args)

    def _part(self, node: Node, args: list[Any]) -> Phrase | None:
        """Brackets and attributes behind a value."""
        rank = len(node.shape)
        if node.op == "getitem":
            return self._item(node, args)
        if node.op == "index" and isinstance(args[1], list):
            indices = ", ".join(":" if i[0] == "None" else i[0] for i in args[1])
            return f"{inside(args[0], ATOM)}[{indices}]", ATOM
        if node.op == "select":
            dim = node.args[1] % (rank + 1)
            before = "..., " if dim and dim == rank else ":, " * dim
            return f"{inside(args[0], ATOM)}[{before}{args[2][0]}]", ATOM
        if node.op == "slice":
            return self._slice(node, args)
        if node.op == "transpose" and {d % rank for d in node.args[1:]} == {rank - 2, rank - 1}:
            return f"{inside(args[0], ATOM)}.mT", ATOM
        return None

    def _binary(self, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Phrase:
        sign, own = BINARY[node.op]
        left, right = args[:2]
        second = node.args[1]
        if "alpha" in kwargs:
            right = (f"{kwargs['alpha'][0]} * {inside(right, PRODUCT)}", PRODUCT)
        if node.op == "mul" and not isinstance(second, Node):
            left, right, second = right, left, node.args[0]
        # Elementwise products may be taken in any order; products of matrices keep theirs.
        in_line = node.op == "mul" and isinstance(second, Node) and second.op in {"mul", "div"}
        same = own == PRODUCT and right[1] == own
        needs_more = 0 if in_line or (node.op in ASSOCIATIVE and not same) else 1
        inner_left = own + 1 if node.op == "pow" or own == 1 else own
        return f"{inside(left, inner_left)} {sign} {inside(right, own + needs_more)}", own

    def _item(self, node: Node, args: list[Any]) -> Phrase:
        made, k = node.args[:2]
        if made.op in {"max", "min", "sort", "topk", "median", "mode", "kthvalue", "cummax", "cummin"}:
            return f"{args[0][0]}.{('values', 'indices')[k]}", ATOM
        return f"{args[0][0]}[{k}]", ATOM

    def _slice(self, node: Node, args: list[Any]) -> Phrase:
        dim, start, stop, step = (*node.args[1:], None, None, None, None)[:4]
        dim = dim or 0
        first = "" if not start else args[2][0]
        last = "" if stop is None or stop >= node.args[0].shape[dim] else args[3][0]
        by = "" if step in {None, 1} else f":{step}"
        return f"{inside(args[0], ATOM)}[{':, ' * dim}{first}:{last}{by}]", ATOM

    def _call(self, node: Node, args: list[Any], kwargs: dict[str, Any]) -> str:
        name = TORCH_NAMES.get(node.op, node.op)
        if name in {"zeros", "new_zeros"}:
            return self._new_zeros(node, args)
        first = node.args[0] if node.args else None
        words = self._words(node, args, kwargs)
        if name in {"where", "softmax", "log_softmax", "cat", "stack"} or not isinstance(first, Node):
            return f"{torch_function(node, name)}({', '.join(words)})"
        if name.endswith("_like") or not hasattr(torch.Tensor, name):
            return f"{torch_function(node, name)}({', '.join(words)})"
        if name in SPLAT and len(words) == 2:
            words[1] = words[1][1:-1].rstrip(",") if words[1].startswith("(") else words[1]
        return f"{inside(args[0], ATOM)}.{name}({', '.join(words[1:])})"

    def _new_zeros(self, node: Node, args: list[Any]) -> str:
        grads = self._recording.recorded.grad_outputs
        like = next((g for g in grads if g.args[0] in self._recording.cut.used_grads), grads[0])
        dtype = "" if node.dtype == like.dtype else f", dtype={node.dtype}"
        return f"{like.args[0]}.new_zeros({plain(args[-1 if node.op == 'new_zeros' else 0])}{dtype})"

    def _words(self, node: Node, args: list[Any], kwargs: dict[str, Any]) -> list[str]:
        """Arguments as written: defaults left out, truth values by name, dimensions from the end."""
        schema = list(node.target._schema.arguments) if hasattr(node.target, "_schema") else []  # noqa: SLF001
        words = []
        skipped = False
        for k, argument in enumerate(args):
            about: Any = schema[k] if k < len(schema) else None
            value = node.args[k]
            default = about is not None and about.has_default_value() and not isinstance(value, Node)
            if k and default and about.default_value == value:
                skipped = True
                continue
            if node.op in {"_softmax", "_log_softmax"} and k == 2:
                continue
            text = plain(self._from_the_end(node, about, value) or argument)
            named = skipped or isinstance(value, bool) or node.op in {"_softmax", "_log_softmax"}
            words.append(f"{about.name}={text}" if k and named and about else text)
        own = str(node.args[0].dtype) if node.args and isinstance(node.args[0], Node) else ""
        kept = {n: plain(v) for n, v in kwargs.items() if n not in DROPPED}
        return [*words, *(f"{n}={text}" for n, text in kept.items() if (n, text) != ("dtype", own))]

    def _from_the_end(self, node: Node, about: Any, value: Any) -> Any:  # noqa: ANN401
        source = node.args[0]
        named = about is not None and about.name in {"dim", "dims"}
        if node.op == "permute" or not named or not isinstance(source, Node):
            return None
        rank = len(source.shape) + (node.op == "unsqueeze")
        dims = value if isinstance(value, tuple) else (value,)
        texts = [(str(-1 if d == rank - 1 and rank > 1 else d), ATOM) for d in dims]
        return texts[0] if len(texts) == 1 and (about.N or not isinstance(value, tuple)) else texts


def _is_trivial(node: Node) -> bool:
    turned = node.op in {"t", "_conj", "transpose", "unsqueeze"} and next(node.inputs).op == "name"
    return turned or node.op in {"getitem", "literal"}


def number(value: Any) -> str:  # noqa: ANN401
    """A number as a person writes it: 2 and not 2.0."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6:
        return str(int(value))
    return repr(value)


def inside(phrase: Phrase, strength: int) -> str:
    """In brackets where it binds less than this."""
    text, own = phrase
    return text if own >= strength else f"({text})"


def plain(argument: Phrase | list[Any]) -> str:
    """An argument of a call."""
    if isinstance(argument, list):
        items = ", ".join(plain(a) for a in argument)
        return f"({items}{',' if len(argument) == 1 else ''})"
    return str(argument[0])


def strength(text: str) -> int:
    """How strongly the outermost operator of a text binds."""
    tree = ast.parse(text, mode="eval").body
    if isinstance(tree, ast.UnaryOp):
        return NEGATED
    if not isinstance(tree, ast.BinOp) or tree.col_offset:  # an operator behind a bracket is in it
        return ATOM
    if isinstance(tree.op, ast.Pow):
        return POWER
    return SUM if isinstance(tree.op, ast.Add | ast.Sub) else PRODUCT


def torch_function(node: Node, name: str) -> str:
    """How an operation is called: by its public name, or as the overload that was recorded."""
    if (hasattr(torch, name) or "." in name) and not name.startswith("_"):
        return f"torch.{name}"
    overload = getattr(node.target, "_overloadname", "default")
    return f"torch.ops.aten.{node.op}" + ("" if overload == "default" else f".{overload}")


ONCE = "@once_differentiable"
"""The decorator of a backward that refuses to be differentiated again."""


@dataclass(frozen=True)
class Written:
    """A backward as source text, and what forward must do for it."""

    backward: str
    """The method with its decorators, not indented."""
    saved: tuple[str, ...]
    """Names of the tensors it unpacks, in order: what forward must have saved."""
    extra: tuple[str, ...]
    """Those of them that forward does not save yet."""
    attributes: tuple[tuple[str, str], ...]
    """(attribute, expression) pairs that forward must put on its ctx."""


def write(
    recording: Recording,
    found: Constants,
    parameters: Sequence[str],
    optional: Sequence[str],
    decorators: Sequence[str],
) -> Written:
    """Write the backward; gradients of `optional` parameters are asked for before they are computed.

    It refuses a second derivative where it uses an intermediate value that forward saved.
    """
    recorded, cut = recording.recorded, recording.cut
    printer = Printer(recording, found.texts)
    saved = tuple(name for name, _ in recorded.saved) + cut.extra
    measured = {name for name in saved for text in found.texts.values() if f"{name}." in text}
    body = _unpacking(saved, {*cut.used, *cut.extra, *measured})
    grads = [node.args[0] for node in recorded.grad_outputs]
    if not recorded.materializes and len(grads) == 1:
        body = [f"if {grads[0]} is None:", f"    return {', '.join(['None'] * len(parameters))}", *body]
    body += printer.statements()
    returned = printer.returned(list(parameters))
    for k, name in enumerate(parameters):
        if name in optional and returned[k] != "None":
            returned[k] = _asked_for(k, name, returned[k], body)
    once = [ONCE] if cut.cuts_graph and ONCE not in decorators else []
    head = [*decorators, *once, f"def backward(ctx, {', '.join(grads)}):"]
    lines = [*head, *(f"    {line}" for line in (*body, *_return(returned)))]
    return Written("\n".join(lines), saved, cut.extra, found.extra_attributes)


def _asked_for(position: int, name: str, text: str, body: list[str]) -> str:
    """The gradient of an optional parameter, which autograd refuses where it was left out."""
    condition = f"if ctx.needs_input_grad[{position}] else None"
    assignment = f"{text} = "
    if body and body[-1].startswith(assignment) and text == f"grad_{name}":
        body[-1] = f"{body[-1]} {condition}"
        return text
    return f"{text} {condition}"


def _unpacking(saved: Sequence[str], used: set[str]) -> list[str]:
    if not used:
        return []
    names = [name if name in used else f"_{name.lstrip('_')}" for name in saved]
    return [
        f"({names[0]},) = ctx.saved_tensors" if len(names) == 1 else f"{', '.join(names)} = ctx.saved_tensors"
    ]


def _return(parts: Sequence[str]) -> list[str]:
    together = f"return {', '.join(parts)}"
    if len(together) <= WIDTH or len(parts) == 1:
        return [together]
    return ["return (", *(f"    {part}," for part in parts), ")"]


def candidate(
    function: type[Function] | Operator, written: Written, parameters: Sequence[str], outputs: Sequence[str]
) -> type[Function]:
    """The author's forward with the written backward. `outputs` are forward's names of its outputs.

    The text is executed as a reader would paste it, beside `torch` and `once_differentiable` alone.
    """
    namespace: dict[str, Any] = {"torch": torch, "once_differentiable": once_differentiable}
    exec(written.backward.removeprefix("@staticmethod\n"), namespace)  # noqa: S102 - written by us a moment ago
    own: Callable[..., Any] = namespace["backward"]
    is_operator = isinstance(function, Operator)

    def forward(ctx: Any, *arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        result, reported = run_forward(function, arguments)
        named = dict(zip(outputs, returned_tensors(result), strict=False))
        named |= dict(zip(parameters, arguments, strict=False))
        ctx.save_for_backward(*reported.saved_tensors, *(named[name] for name in written.extra))
        if reported.dirty_tensors:
            ctx.mark_dirty(*reported.dirty_tensors)
        if reported.non_differentiable:
            ctx.mark_non_differentiable(*reported.non_differentiable)
        ctx.set_materialize_grads(reported.materialize_grads)
        for name, value in reported.attributes.items():
            setattr(ctx, name, value)
        for name, expression in written.attributes:
            setattr(ctx, name, eval(expression, {}, named))  # noqa: S307 - a parameter or its shape
        return result

    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # noqa: ANN401 - what was written
        returned = own(ctx, *grad_outputs)
        if not is_operator:
            return returned
        # An operator's backward answers for what is passed by position; what was left out has its default.
        gradients = returned if isinstance(returned, tuple) else (returned,)
        count = len(ctx.needs_input_grad)
        return (*gradients, *[None] * count)[:count]

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    name = function.name if isinstance(function, Operator) else function.__name__
    return type(name.rpartition("::")[2], (Function,), methods)
