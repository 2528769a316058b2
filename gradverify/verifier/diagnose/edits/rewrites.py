"""What may be meant in the place of a statement or an expression, by its form or its number.

What a backward has at hand, and in which places it may be meant: names, what ctx holds, sizes.

What is taken for what in a backward, as tables: before, what may be meant, and the cause.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.diagnose.edits.source import Edit, Slot, Source, expression, matched, slots
from gradverify.verifier.numerics.calling import bits_of, same_bits

OF_TORCH = frozenset(
    {
        "saved_tensors",
        "needs_input_grad",
        "saved_for_forward",
        "save_for_backward",
        "mark_dirty",
        "mark_non_differentiable",
        "set_materialize_grads",
    }
)
"""What torch keeps on a ctx."""

SIZES_ALIKE = 2
"""Sizes of one value that are tried: more are mostly the same."""

FACTORS = ("e * p", "e / p", "e * (1 - p)", "e * p ** 2", "e * (1 - p ** 2)")
"""How a factor may be lost; the first two as it is."""

CENTRED = (
    "e - (p * e).sum({}, keepdim=True)",
    "e - p * (p * e).sum({}, keepdim=True)",
    "e - p * e.sum({}, keepdim=True)",
)
"""What is left where a distribution, or a direction, takes its part."""

SUMMING = frozenset({"sum", "mean", "cumsum"})
"""Methods of a value within which a factor is another one than around them."""

Value = Any


@dataclass(frozen=True)
class Known:
    """A name, an attribute of ctx, or a size, that may stand elsewhere."""

    text: str
    node: ast.expr
    value: Value
    is_saved: bool
    """Whether it is one of what `ctx.saved_tensors` holds."""


def known_in(
    source: Source,
    forward: Sequence[Source],
    names: Mapping[str, Value],
    ctx: Any,  # noqa: ANN401 - torch's
) -> list[Known]:
    """What may stand elsewhere; `names` are backward's."""
    own = {n: v for n, v in names.items() if n != source.context and n[0] != "_" and _is_read(v)}
    kept = [a for one in (source, *forward) for a in _attributes(one) if hasattr(ctx, a)]
    held = {f"{source.context}.{a}": getattr(ctx, a) for a in kept}
    saved = _saved(source.tree)
    return [
        Known(text, ast.parse(text, mode="eval").body, as_it_is(value), text in saved)
        for text, value in {**own, **held, **_sizes(own)}.items()
        if isinstance(value, int | float | complex | Tensor) and _is_read(value)
    ]


def _is_read(value: Value) -> bool:
    return not isinstance(value, Tensor) or bits_of(value) is not None


def as_it_is(value: Value) -> Value:
    """A value as it is now."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def joint_shape(one: Tensor, other: Tensor) -> tuple[int, ...] | None:
    """The shape of two tensors broadcast together; None where they do not go together.

    `torch.broadcast_shapes` imports SymPy first, for a second.
    """
    pairs = itertools.zip_longest(reversed(one.shape), reversed(other.shape), fillvalue=1)
    sizes = [(a if b == 1 else b, a == b or 1 in {a, b}) for a, b in pairs]
    return tuple(n for n, _ in reversed(sizes)) if all(fits for _, fits in sizes) else None


def _saved(tree: ast.AST) -> set[str]:
    """Names that backward gives to what was saved."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[target], value=ast.Attribute(attr="saved_tensors")):
                found |= {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}
            case _:
                pass
    return found


def _attributes(source: Source) -> list[str]:
    """What is kept on the ctx, by forward or by backward."""
    nodes = [node for node in ast.walk(source.whole) if isinstance(node, ast.Attribute)]
    return [
        node.attr
        for node in nodes
        if isinstance(node.value, ast.Name) and node.value.id == source.context and node.attr not in OF_TORCH
    ]


def _sizes(names: Mapping[str, Value]) -> dict[str, int]:
    """Sizes of tensors, each value a few times."""
    found: dict[str, int] = {}
    for name, value in names.items():
        sizes = (
            {f"{name}.shape[{d}]": n for d, n in enumerate(value.shape)} if isinstance(value, Tensor) else {}
        )
        if len(sizes) > 1:
            sizes[f"{name}.numel()"] = value.numel()
        for text, n in sizes.items():
            if n > 1 and list(found.values()).count(n) < SIZES_ALIKE:
                found[text] = n
    return found


def replaced(slot: Slot, value: Value, known: Sequence[Known]) -> Iterator[Edit]:
    """Another value of the same kind."""
    if not isinstance(value, Tensor) or not isinstance(slot.node, ast.expr):
        return
    own = ast.unparse(slot.node)
    for one in known:
        other = one.value
        if not isinstance(other, Tensor) or one.text == own or other.dtype != value.dtype:
            continue
        node = _as_wide(one, value)
        if node is not None and not same_bits(other, value):
            yield Edit(slot, node, _cause_of(slot.node, one, value, known))


def renumbered(slot: Slot, value: Value, known: Sequence[Known], cause: str) -> Iterator[Edit]:
    """A number that has a name, where one is written."""
    if isinstance(slot.node, ast.Constant) and type(value) in {int, float} and cause == "operand":
        named = (one for one in known if type(one.value) in {int, float} and one.value != value)
        yield from (Edit(slot, one.node, cause) for one in named)


def multiplied(slot: Slot, value: Value, known: Sequence[Known]) -> Iterator[Edit]:
    """With one more factor."""
    for one in known if _is_summand(slot, value) else ():
        factor = _factor(one, value)
        if factor is not None and isinstance(slot.node, ast.expr):
            cause = _cause_of_factor(one)
            for text in FACTORS:
                changed = expression(text, e=slot.node, p=factor)
                yield Edit(slot, changed, cause if text in FACTORS[:2] else "chain-factor")


def centred(slot: Slot, value: Value, known: Sequence[Known]) -> Iterator[Edit]:
    """Without its mean that others weigh, as behind a softmax, or its part along others."""
    is_term = isinstance(slot.parent, ast.BinOp) and isinstance(value, Tensor) and value.is_floating_point()
    if not isinstance(slot.node, ast.expr) or not (is_term or _is_summand(slot, value)) or value.dim() == 0:
        return
    for one in known:
        other = one.value
        if isinstance(other, Tensor) and other.is_floating_point() and other.shape == value.shape:
            for dim in (d - value.dim() for d, n in enumerate(value.shape) if n > 1):
                for text in CENTRED:
                    changed = expression(text.format(dim), e=slot.node, p=one.node)
                    yield Edit(slot, changed, "missing-term")


def _cause_of(node: ast.expr, one: Known, value: Tensor, known: Sequence[Known]) -> str:
    if value.dtype == torch.bool:
        return "branch"
    if not (value.is_floating_point() or value.is_complex()):
        return "permuted"
    is_saved = any(isinstance(node, ast.Name) and k.text == node.id and k.is_saved for k in known)
    return "wrong-saved" if one.is_saved and is_saved else "operand"


def _cause_of_factor(one: Known) -> str:
    """A mask that is left out is a condition; what backward is given is an operand, as if it were ones."""
    value = one.value
    if isinstance(value, Tensor) and bool(((value == 0) | (value == 1)).all()):
        return "branch"
    return "operand" if one.is_saved or isinstance(one.node, ast.Attribute) else "chain-factor"


def _is_summand(slot: Slot, value: Value) -> bool:
    """Whether a floating value is a whole term: a factor within a product would be the same further out."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    parent = slot.parent
    if isinstance(parent, ast.BinOp):
        return isinstance(parent.op, ast.Add | ast.Sub)
    if isinstance(parent, ast.Attribute) and parent.attr in SUMMING:
        return True
    if isinstance(parent, ast.Attribute | ast.Subscript | ast.Compare | ast.keyword | ast.Slice):
        return False
    return not (isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.USub))


def _factor(one: Known, value: Tensor) -> ast.expr | None:
    """An expression by which a value can be multiplied without another shape coming of it."""
    other = one.value
    if type(other) in {int, float}:
        return one.node if other not in {0, 1} else None
    if not isinstance(other, Tensor) or not (other.is_floating_point() or other.dtype == torch.bool):
        return None
    if bool((other == 1).all()):
        return None
    return _as_wide(one, value)


def _as_wide(one: Known, value: Tensor) -> ast.expr | None:
    """A tensor as an expression that is broadcast to the shape of a value; None where it cannot be."""
    return one.node if joint_shape(one.value, value) == value.shape else _fitted(one, value)


def _fitted(one: Known, value: Tensor) -> ast.expr | None:
    """With dimensions of one behind, where a value has one number for each row of another one."""
    other = one.value
    missing = value.dim() - other.dim()
    if other.dim() == 0 or missing <= 0 or tuple(other.shape) != tuple(value.shape[: other.dim()]):
        return None
    nones = ", ".join(["None"] * missing)
    return expression(f"p[(..., {nones})]" if missing > 1 else "p[..., None]", p=one.node)


FORMS: tuple[tuple[str, str, str], ...] = (
    ("a + b", "a; b; a - b", "missing-term"),
    ("a - b", "a; b; a + b; b - a", "missing-term"),
    ("a * b", "a / b; a; b", "chain-factor"),
    ("a / b", "a * b; a; b", "chain-factor"),
    ("a / b", "b / a", "operand"),
    ("a @ b", "b @ a", "transposed"),
    ("a @ b", "a; b", "operand"),
    ("a ** b", "a; b", "chain-factor"),
    ("a ** b", "b ** a", "operand"),
    ("a // b", "a; b", "operand"),
    ("a % b", "a; b", "operand"),
    ("a & b", "a | b; a; b", "branch"),
    ("a | b", "a & b; a; b", "branch"),
    ("a < b", "a > b; a <= b", "branch"),
    ("a > b", "a < b; a >= b", "branch"),
    ("a <= b", "a >= b; a < b", "branch"),
    ("a >= b", "a <= b; a > b", "branch"),
    ("a == b", "a != b", "branch"),
    ("a != b", "a == b", "branch"),
    ("a if c else b", "a; b", "branch"),
    ("~a", "a", "branch"),
    ("-a", "a", "missing-term"),
    ("a.mT", "a", "transposed"),
    ("a.T", "a", "transposed"),
    ("a.mH", "a", "transposed"),
    ("a.real", "a.imag", "conjugate"),
    ("a.imag", "a.real", "conjugate"),
    ("a.matmul(b)", "b.matmul(a)", "transposed"),
    ("a.mm(b)", "b.mm(a)", "transposed"),
    ("a.bmm(b)", "b.bmm(a)", "transposed"),
    ("a.outer(b)", "b.outer(a)", "transposed"),
    ("a.flip(b).cumsum(b).flip(b)", "a.cumsum(b)", "permuted"),
    ("a.cumsum(b)", "a.flip(b).cumsum(b).flip(b)", "permuted"),
    ("torch.cumsum(a, b)", "a.flip(b).cumsum(b).flip(b)", "permuted"),
    ("reversed(a)", "a", "permuted"),
)
"""Small letters stand for any expression."""

TWINS = (
    ("operand", "sum mean, sin cos, sinh cosh, tanh sigmoid, sqrt rsqrt, erf erfc, log log1p, exp expm1"),
    ("branch", "max min, amax amin, argmax argmin, maximum minimum, clamp_min clamp_max"),
    ("region", "tril triu"),
    ("permuted", "floor ceil, floor round, searchsorted bucketize"),
    ("conjugate", "fft ifft"),
    (
        "duplicates",
        "index_copy index_add, index_copy_ index_add_, scatter scatter_add, scatter_ scatter_add_",
    ),
)
"""The cause where one of two functions is taken for the other."""

DROPPED = (
    ("transposed", "t transpose permute"),
    ("permuted", "squeeze unsqueeze"),
    ("conjugate", "conj"),
    ("permuted", "flip roll cumsum"),
    ("region", "tril triu"),
    ("missing-term", "neg"),
    ("operand", "abs sqrt rsqrt square pow exp log sigmoid tanh softmax sign reciprocal"),
    ("branch", "relu clamp clamp_min clamp_max where masked_fill"),
    ("wrong-reduction-dim", "mean sum"),
    ("float32-inside", "float half bfloat16 to"),
)
"""The cause where a function is one too many."""

MOVING = {"roll": "permuted", "flip": "permuted", "gather": "permuted", "transpose": "transposed"}
"""The cause where arguments of such functions are exchanged; `operand` for others."""

OF_ENTRIES = (
    ("missing-term", "-e; 2 * e; e / 2"),
    ("chain-factor", "1 - e; e ** 2; 1 / e; 1 - e ** 2; e * (1 - e); e.sqrt(); e.exp(); e.abs()"),
)
"""Functions of each entry that may be lost around a value, by their cause."""

OF_COMPLEX = (("conjugate", "e.conj()"), ("operand", "e.real; e.imag"))

OF_SQUARES = (
    ("transposed", "(e + e.mT) / 2"),
    ("region", "e.tril(); e.triu(); e.tril(-1); e.triu(1)"),
    ("missing-term", "e + e.mT; e - torch.diag_embed(e.diagonal(dim1=-2, dim2=-1))"),
    ("missing-term", "e - torch.diag_embed(e.diagonal(dim1=-2, dim2=-1)) / 2"),
)
"""Of matrices with as many rows as columns."""

ALONG = (("permuted", "e.flip({0}); e.roll(1, {0}); e.roll(-1, {0})"),)
"""Along each dimension, of tensors of any dtype."""

SUMS_ALONG = (
    ("permuted", "e.cumsum({0}); e.flip({0}).cumsum({0}).flip({0})"),
    ("missing-term", "e - e.mean({0}, keepdim=True)"),
    ("wrong-reduction-dim", "e.sum({0}, keepdim=True).expand_as(e)"),
)
"""Along each dimension, of floating ones."""

PLACES = "e + 1; e - 1"
"""Other numbers where one is an index or a bound."""

DIMENSIONS = f"-1; -2; {PLACES}"
"""Other numbers where one is a dimension: from the end first, which holds however many there are before."""

NUMBERS = f"-e; {PLACES}; 2 * e; e / 2; 1 / e; 1 - e; e ** 2; e ** 0.5"
"""Other numbers where one is a value."""

REDUCTIONS = "sum mean amax amin prod softmax log_softmax logsumexp norm var std cumsum"
"""Functions along a dimension."""


NUMBER = (int, float, bool)
"""Types of numbers."""

MOST_ARGUMENTS = 5
"""Arguments of a call, or tensors that are joined, of which every two are exchanged."""


def of_statements(tree: ast.AST) -> Iterator[Edit]:
    """Every one, in the order of the source."""
    for slot in slots(tree):
        if isinstance(slot.node, ast.stmt) and slot.place >= 0:
            yield from _of_one(slot, slot.node)
        if isinstance(slot.node, ast.Tuple) and isinstance(slot.node.ctx, ast.Store):
            yield from exchanged(slot, slot.node, "wrong-saved")


def _of_one(slot: Slot, node: ast.stmt) -> Iterator[Edit]:
    match node:
        case ast.Assign(targets=[ast.Name() | ast.Subscript() as target], value=value):
            yield Edit(slot, ast.AugAssign(target, ast.Add(), value), "duplicates", is_whole=True)
            yield from _accumulated(slot, target, value)
            is_product = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult | ast.Div)
            yield Edit(slot, ast.Pass(), "chain-factor" if is_product else "operand", is_whole=True)
        case ast.AugAssign():
            yield from _of_sum(slot, node)
        case ast.Expr(value=ast.Call()):
            yield Edit(slot, ast.Pass(), "missing-term", is_whole=True)
        case ast.For(iter=passes):
            turned = expression("reversed(list(p))", p=passes)
            yield Edit(slot, ast.For(node.target, turned, node.body, node.orelse), "permuted")
        case ast.If(test=test, body=body, orelse=other) if "needs_input_grad" not in ast.unparse(test):
            yield Edit(slot, body, "branch")
            yield Edit(slot, other or [ast.Pass()], "branch")
        case _:
            pass


def _of_sum(slot: Slot, node: ast.AugAssign) -> Iterator[Edit]:
    """With another sign, assigned, not there at all, or where equal indices count each."""
    yield from _accumulated(slot, node.target, node.value)
    is_product = isinstance(node.op, ast.Mult | ast.Div)
    cause = "chain-factor" if is_product else "missing-term"
    for other in (ast.Mult, ast.Div) if is_product else (ast.Add, ast.Sub):
        if not isinstance(node.op, other):
            yield Edit(slot, ast.AugAssign(node.target, other(), node.value), cause, is_whole=True)
    yield Edit(slot, ast.Assign([node.target], node.value, lineno=0), cause, is_whole=True)
    yield Edit(slot, ast.Pass(), cause, is_whole=True)


def _accumulated(slot: Slot, target: ast.expr, value: ast.expr) -> Iterator[Edit]:
    """Written into some places of a tensor, where equal indices count each."""
    if isinstance(target, ast.Subscript):
        indices = (
            target.slice if isinstance(target.slice, ast.Tuple) else ast.Tuple([target.slice], ast.Load())
        )
        places = {"a": target.value, "i": indices, "v": value}
        accumulated = expression("a.index_put_(i, v, accumulate=True)", **places)
        yield Edit(slot, ast.Expr(accumulated), "duplicates", is_whole=True)


def by_form(slot: Slot, value: Value, parents: dict[int, ast.AST]) -> Iterator[Edit]:
    """By what is there: its operator, its function, its arguments, its number."""
    node = slot.node
    if not isinstance(node, ast.expr):
        return
    number = cause_of_number(slot, parents)
    for made, cause in forms(node):
        yield Edit(slot, made, number if number != "operand" and type(value) in NUMBER else cause)
    yield from _of_parts(slot, node)
    if isinstance(node, ast.Name) and isinstance(value, list) and len(value) > 1:
        yield Edit(slot, expression("e[::-1]", e=node), "permuted")
    if type(value) in {int, float}:
        yield from _other_numbers(slot, node, value, number)


def _of_parts(slot: Slot, node: ast.expr) -> Iterator[Edit]:
    match node:
        case ast.Call():
            yield from _of_arguments(slot, node)
        case ast.Subscript(slice=ast.Slice() as part):
            for lower, upper in ((ast.Constant(1), None), (None, ast.Constant(-1)), (None, None)):
                other = ast.Slice(lower, upper, part.step)
                yield Edit(slot, ast.Subscript(node.value, other, node.ctx), "region")
        case ast.Subscript(slice=ast.Constant(value=int()) | ast.UnaryOp()):
            yield Edit(slot, expression("e.sum(0)", e=node.value), "not-summed-over-broadcast")
        case ast.Tuple() if isinstance(slot.parent, ast.Return):
            yield from exchanged(slot, node, "swapped-inputs")
        case ast.List() if isinstance(slot.parent, ast.Call) and len(node.elts) <= MOST_ARGUMENTS:
            yield from exchanged(slot, node, "permuted")
        case ast.Constant(value=bool() as flag):
            yield Edit(slot, ast.Constant(not flag), "operand")
        case _:
            pass


def around(slot: Slot, value: Value) -> Iterator[Edit]:
    """What may be lost around a tensor: a transpose, a conjugate, a sign, a flip, a sum, a function."""
    node = slot.node
    if isinstance(value, Tensor) and isinstance(node, ast.expr):
        yield from (Edit(slot, expression(text, e=node), cause) for text, cause in _lost_around(value))


def forms(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """What may be meant by the form of an expression alone, with the causes."""
    for pattern, others, cause in _patterns().get(type(node), ()):
        parts = matched(pattern, node)
        if parts is not None:
            yield from ((expression(text, **parts), cause) for text in others)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _of_name(node, node.func)


def exchanged(slot: Slot, node: ast.Tuple | ast.List, cause: str) -> Iterator[Edit]:
    """Every two elements of a tuple, or of a list, in each other's place."""
    for turned in _turned(node.elts):
        yield Edit(slot, type(node)(turned, node.ctx), cause)


def is_module(node: ast.expr) -> bool:
    """`torch`, `torch.linalg`, `F`: whose functions take all their tensors in brackets."""
    match node:
        case ast.Name(id=name):
            return name in {"torch", "F", "functional", "linalg", "math"}
        case ast.Attribute(value=inner):
            return is_module(inner)
        case _:
            return False


def cause_of_number(slot: Slot, parents: dict[int, ast.AST]) -> str:
    """The cause where another number is meant: by whether it is a bound, a dimension or a value."""
    node: ast.AST = slot.node
    while isinstance(around := parents.get(id(node)), ast.UnaryOp | ast.BinOp | ast.Tuple):
        node = around
    match around:
        case ast.Slice() | ast.Call(func=ast.Name(id="range")):
            return "region"
        case ast.keyword(arg="dim" | "axis"):
            return "wrong-reduction-dim"
        case ast.Call(func=ast.Attribute(attr=name), args=arguments) if name in REDUCTIONS.split():
            return "wrong-reduction-dim" if any(node is a for a in arguments) else "operand"
        case _:
            return "operand"


@cache
def _patterns() -> dict[type[ast.expr], list[tuple[ast.expr, list[str], str]]]:
    """The table of forms by the kind of the expression."""
    found: dict[type[ast.expr], list[tuple[ast.expr, list[str], str]]] = {}
    for before, others, cause in FORMS:
        pattern = ast.parse(before, mode="eval").body
        found.setdefault(type(pattern), []).append((pattern, others.split("; "), cause))
    return found


@cache
def _twins() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for cause, pairs in TWINS:
        for one, other in (pair.split() for pair in pairs.split(", ")):
            found.setdefault(one, []).append((other, cause))
            found.setdefault(other, []).append((one, cause))
    return found


@cache
def _dropped() -> dict[str, str]:
    return {name: cause for cause, names in DROPPED for name in names.split()}


def _of_name(node: ast.Call, func: ast.Attribute) -> Iterator[tuple[ast.expr, str]]:
    """Another function, or none."""
    for other, cause in _twins().get(func.attr, ()):
        twin = ast.Attribute(func.value, other, ast.Load())
        yield ast.Call(twin, node.args, node.keywords), cause
    is_torchs = is_module(func.value)
    if func.attr in _dropped() and (node.args or not is_torchs):
        yield node.args[0] if is_torchs else func.value, _dropped()[func.attr]


def _of_arguments(slot: Slot, node: ast.Call) -> Iterator[Edit]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    for turned in _turned(node.args) if len(node.args) <= MOST_ARGUMENTS else ():
        yield Edit(slot, ast.Call(node.func, turned, node.keywords), MOVING.get(name, "operand"))
    for keyword in node.keywords:
        if keyword.arg not in {"keepdim", "dim"}:
            left = [other for other in node.keywords if other is not keyword]
            yield Edit(slot, ast.Call(node.func, node.args, left), "operand")


def _turned(nodes: list[ast.expr]) -> Iterator[list[ast.expr]]:
    for a, b in itertools.combinations(range(len(nodes)), 2):
        turned = list(nodes)
        turned[a], turned[b] = turned[b], turned[a]
        yield turned


def _other_numbers(slot: Slot, node: ast.expr, value: float, cause: str) -> Iterator[Edit]:
    """Written out where the number is."""
    is_index = isinstance(slot.parent, ast.Subscript)
    others = DIMENSIONS if cause == "wrong-reduction-dim" else PLACES
    texts = (NUMBERS if cause == "operand" and not is_index else others).split("; ")
    if not isinstance(node, ast.Constant):
        # Of `n - 1`, the number itself is changed.
        sums = [
            n for n in (node, slot.parent) if isinstance(n, ast.BinOp) and isinstance(n.right, ast.Constant)
        ]
        has_number = any(isinstance(n.op, ast.Add | ast.Sub) for n in sums)
        left = [text for text in texts if not (has_number and text in PLACES)]
        yield from (Edit(slot, expression(text, e=node), cause) for text in left)
        return
    seen = {float(value)}
    for text in (*texts, *(() if is_index else ("0", "1"))):
        try:
            other = eval(text, {"e": value})  # noqa: S307 - of the table above
        except (ZeroDivisionError, OverflowError):
            continue
        if isinstance(other, complex) or not math.isfinite(other) or float(other) in seen:
            continue
        seen.add(float(other))
        whole = int(other) if type(value) is int and float(other).is_integer() else other
        yield Edit(slot, ast.Constant(whole), cause)


def _lost_around(value: Tensor) -> Iterator[tuple[str, str]]:
    continuous = value.is_floating_point() or value.is_complex()
    rows = [*(OF_COMPLEX if value.is_complex() else ())]
    rows.append(("transposed", "; ".join(_transposes(tuple(value.shape)))))
    if continuous and value.dim() > 1 and value.shape[-1] == value.shape[-2] > 1:
        rows += OF_SQUARES
    if value.dtype is torch.bool:
        rows.append(("branch", "~e"))
    else:
        rows += OF_ENTRIES if continuous else [("permuted", PLACES)]
    for dim in (d - value.dim() for d, n in enumerate(value.shape) if n > 1):
        along = (*ALONG, *(SUMS_ALONG if continuous else ()))
        rows += [(cause, texts.format(dim)) for cause, texts in along]
    yield from ((text, cause) for cause, texts in rows for text in texts.split("; ") if text)


def _transposes(shape: tuple[int, ...]) -> Iterator[str]:
    """Of the last two dimensions always: where sizes differ, it may be the shape that is wrong."""
    last = (len(shape) - 2, len(shape) - 1)
    for a, b in itertools.combinations(range(len(shape)), 2):
        if (a, b) == last:
            yield "e.mT"
        elif shape[a] == shape[b]:
            yield f"e.transpose({a}, {b})"
