"""Changes of calls: another function, none, other arguments, a scan from the other end, other letters."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradverify.verifier.numerics.diagnosis.edits.edit import Edit, expression
from gradverify.verifier.numerics.diagnosis.edits.source import Slot

TWINS: dict[str, tuple[tuple[str, str], ...]] = {
    "sum": (("mean", "missing-term"),),
    "mean": (("sum", "missing-term"),),
    "sin": (("cos", "operand"),),
    "cos": (("sin", "operand"),),
    "sinh": (("cosh", "operand"),),
    "cosh": (("sinh", "operand"),),
    "tanh": (("sigmoid", "operand"),),
    "sigmoid": (("tanh", "operand"),),
    "sqrt": (("rsqrt", "operand"),),
    "rsqrt": (("sqrt", "operand"),),
    "max": (("min", "branch"),),
    "min": (("max", "branch"),),
    "amax": (("amin", "branch"),),
    "amin": (("amax", "branch"),),
    "argmax": (("argmin", "branch"),),
    "argmin": (("argmax", "branch"),),
    "maximum": (("minimum", "branch"),),
    "minimum": (("maximum", "branch"),),
    "tril": (("triu", "region"),),
    "triu": (("tril", "region"),),
    "floor": (("ceil", "permuted"), ("round", "permuted")),
    "round": (("floor", "permuted"),),
    "ceil": (("floor", "permuted"),),
    "clamp_min": (("clamp_max", "branch"),),
    "clamp_max": (("clamp_min", "branch"),),
    "erf": (("erfc", "operand"),),
    "erfc": (("erf", "operand"),),
    "log": (("log1p", "operand"),),
    "exp": (("expm1", "operand"),),
    "expm1": (("exp", "operand"),),
    "fft": (("ifft", "conjugate"),),
    "ifft": (("fft", "conjugate"),),
    "cumsum": (("logcumsumexp", "operand"),),
    "index_copy": (("index_add", "duplicates"),),
    "index_copy_": (("index_add_", "duplicates"),),
    "scatter": (("scatter_add", "duplicates"),),
    "scatter_": (("scatter_add_", "duplicates"),),
    "real": (("imag", "conjugate"),),
    "imag": (("real", "conjugate"),),
    "searchsorted": (("bucketize", "permuted"),),
}
"""Functions that are taken for each other, and the cause where they are."""

DROPPED_CALLS: dict[str, str] = {
    "t": "transposed",
    "transpose": "transposed",
    "permute": "transposed",
    "conj": "conjugate",
    "flip": "permuted",
    "roll": "permuted",
    "cumsum": "permuted",
    "tril": "region",
    "triu": "region",
    "neg": "missing-term",
    "abs": "operand",
    "sqrt": "operand",
    "rsqrt": "operand",
    "square": "operand",
    "pow": "operand",
    "exp": "operand",
    "log": "operand",
    "sigmoid": "operand",
    "tanh": "operand",
    "relu": "branch",
    "clamp": "branch",
    "clamp_min": "branch",
    "clamp_max": "branch",
    "mean": "wrong-reduction-dim",
    "sum": "wrong-reduction-dim",
    "softmax": "operand",
    "float": "float32-inside",
    "half": "float32-inside",
    "bfloat16": "float32-inside",
    "to": "float32-inside",
    "sign": "operand",
    "reciprocal": "operand",
}
"""Functions that may be one too many, and the cause where one is."""

_SCANS = frozenset({"cumsum", "cumprod", "logcumsumexp"})

_OF_TWO = frozenset({"matmul", "mm", "bmm", "outer", "ger", "sub", "div", "kron"})
"""Methods of two tensors that do not commute."""

_OF_PLACES = {"roll": "permuted", "flip": "permuted", "gather": "permuted", "transpose": "transposed"}
"""The cause where arguments of such functions are exchanged."""

MOST_ARGUMENTS = 5
"""Arguments of a call of which every two are exchanged."""


def of_call(slot: Slot, node: ast.Call) -> Iterator[Edit]:
    """Changes of a call by its function and its arguments."""
    func = node.func
    if isinstance(func, ast.Attribute):
        yield from _of_name(slot, node, func)
        yield from _of_scan(slot, node, func)
    yield from _of_arguments(slot, node)


def _of_name(slot: Slot, node: ast.Call, func: ast.Attribute) -> Iterator[Edit]:
    name, is_torchs = func.attr, is_module(func.value)
    for other, cause in TWINS.get(name, ()):
        twin = ast.Attribute(func.value, other, ast.Load())
        yield Edit(slot, ast.Call(twin, node.args, node.keywords), cause)
    if name in DROPPED_CALLS and (node.args or not is_torchs):
        yield Edit(slot, node.args[0] if is_torchs else func.value, DROPPED_CALLS[name])
    if name in _OF_TWO and len(node.args) == 1 and not is_torchs:
        turned = ast.Call(ast.Attribute(node.args[0], name, ast.Load()), [func.value], [])
        yield Edit(slot, turned, "transposed")


def _of_scan(slot: Slot, node: ast.Call, func: ast.Attribute) -> Iterator[Edit]:
    """From the other end: with flips where there are none, without them where there are."""
    if func.attr in _SCANS:
        own = [*node.args] if is_module(func.value) else [func.value, *node.args]
        if len(own) == 2:
            yield Edit(slot, expression(f"x.flip(d).{func.attr}(d).flip(d)", x=own[0], d=own[1]), "permuted")
    match func:
        case ast.Attribute(
            attr="flip",
            value=ast.Call(
                func=ast.Attribute(attr=scan, value=ast.Call(func=ast.Attribute(attr="flip", value=inner))),
                args=arguments,
            ),
        ) if scan in _SCANS:
            yield Edit(slot, ast.Call(ast.Attribute(inner, scan, ast.Load()), arguments, []), "permuted")
        case _:
            pass


def _of_arguments(slot: Slot, node: ast.Call) -> Iterator[Edit]:
    count = len(node.args)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    moved = _OF_PLACES.get(name, "operand")
    for a in range(count if count <= MOST_ARGUMENTS else 0):
        for b in range(a + 1, count):
            arguments = list(node.args)
            arguments[a], arguments[b] = arguments[b], arguments[a]
            yield Edit(slot, ast.Call(node.func, arguments, node.keywords), moved)
    for k, keyword in enumerate(node.keywords):
        left = [w for j, w in enumerate(node.keywords) if j != k]
        if keyword.arg not in {"keepdim", "dim"}:
            yield Edit(slot, ast.Call(node.func, node.args, left), "operand")


def of_letters(slot: Slot, text: str) -> Iterator[Edit]:
    """Of an einsum's letters, two of one operand exchanged."""
    if "->" not in text or not isinstance(slot.parent, ast.Call):
        return
    left, _, right = text.replace(" ", "").partition("->")
    operands = [*left.split(","), right]
    for k, letters in enumerate(operands):
        for a in range(len(letters)):
            for b in range(a + 1, len(letters)):
                turned = list(letters)
                turned[a], turned[b] = turned[b], turned[a]
                others = [*operands[:k], "".join(turned), *operands[k + 1 :]]
                yield Edit(slot, ast.Constant(",".join(others[:-1]) + "->" + others[-1]), "transposed")


def is_module(node: ast.expr) -> bool:
    """`torch`, `torch.linalg`, `F`: whose functions take all their tensors in brackets."""
    match node:
        case ast.Name(id=name):
            return name in {"torch", "F", "functional", "linalg", "math"}
        case ast.Attribute(value=inner):
            return is_module(inner)
        case _:
            return False
