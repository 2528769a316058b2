"""Changes of what stands in an expression: its operators, functions, numbers and indices."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from torch import Tensor

from gradverify.verifier.numerics.diagnosis.edits.edit import Edit, expression
from gradverify.verifier.numerics.diagnosis.edits.scene import Known, Value
from gradverify.verifier.numerics.diagnosis.edits.source import Slot

_OTHER_OPERATORS: dict[type[ast.operator], tuple[tuple[type[ast.operator], str], ...]] = {
    ast.Add: ((ast.Sub, "missing-term"),),
    ast.Sub: ((ast.Add, "missing-term"),),
    ast.Mult: ((ast.Div, "chain-factor"),),
    ast.Div: ((ast.Mult, "chain-factor"),),
    ast.BitAnd: ((ast.BitOr, "branch"),),
    ast.BitOr: ((ast.BitAnd, "branch"),),
}

_DROPPED = {
    ast.Add: "missing-term",
    ast.Sub: "missing-term",
    ast.Mult: "chain-factor",
    ast.Div: "chain-factor",
    ast.Pow: "chain-factor",
    ast.MatMult: "operand",
}

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.Gt, ast.LtE),
    ast.Gt: (ast.Lt, ast.GtE),
    ast.LtE: (ast.GtE, ast.Lt),
    ast.GtE: (ast.LtE, ast.Gt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}

TWINS: dict[str, tuple[tuple[str, str], ...]] = {
    "sum": (("mean", "wrong-reduction-dim"),),
    "mean": (("sum", "wrong-reduction-dim"),),
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
    "detach": "detached",
    "mean": "wrong-reduction-dim",
    "sum": "wrong-reduction-dim",
    "softmax": "operand",
    "sign": "operand",
    "reciprocal": "operand",
}
"""Functions that may be one too many, and the cause where one is."""

DROPPED_ATTRIBUTES = {"mT": "transposed", "T": "transposed", "mH": "transposed", "H": "transposed"}

_SCANS = frozenset({"cumsum", "cumprod", "logcumsumexp"})

NUMBERS = ("-e", "e + 1", "e - 1", "2 * e", "e / 2", "1 / e", "1 - e", "e ** 2", "e ** 0.5")
"""What may be meant where a number stands that is not written out."""


INDICES = ("e + 1", "e - 1")
"""... and where it is an index."""


def of_operators(slot: Slot, value: Value, known: list[Known], *, is_index: bool) -> Iterator[Edit]:
    """Changes of one expression by its own kind."""
    node = slot.node
    match node:
        case ast.BinOp():
            yield from _of_product(slot, node)
        case ast.Compare(ops=[operator]):
            for other in _COMPARISONS.get(type(operator), ()):
                yield Edit(slot, ast.Compare(node.left, [other()], node.comparators), "branch")
        case ast.UnaryOp(op=ast.USub() | ast.Invert(), operand=operand):
            yield Edit(slot, operand, "branch" if isinstance(node.op, ast.Invert) else "missing-term")
        case ast.Constant(value=str() as text):
            yield from _of_subscripts(slot, text)
        case ast.Constant(value=bool() as flag):
            yield Edit(slot, ast.Constant(not flag), "operand")
        case ast.Constant(value=int() | float() as number):
            yield from _of_number(slot, number, is_index=is_index)
        case ast.Call():
            yield from _of_call(slot, node)
        case ast.Attribute(attr=attribute) if attribute in DROPPED_ATTRIBUTES:
            yield Edit(slot, node.value, DROPPED_ATTRIBUTES[attribute])
        case ast.Attribute(attr=attribute) if attribute in TWINS:
            for other_name, cause in TWINS[attribute]:
                yield Edit(slot, ast.Attribute(node.value, other_name, ast.Load()), cause)
        case ast.Subscript(slice=ast.Slice() as part):
            yield from _of_slice(slot, node, part)
        case ast.IfExp(body=body, orelse=other_wise):
            yield Edit(slot, body, "branch")
            yield Edit(slot, other_wise, "branch")
        case ast.Tuple(elts=[_, _, *_]) if isinstance(slot.parent, ast.Return):
            yield from exchanged(slot, node, "swapped-inputs")
        case _:
            pass
    if type(value) in {int, float} and not isinstance(node, ast.Constant):
        for text in INDICES if is_index else NUMBERS:
            yield Edit(slot, expression(text, e=node), "operand")  # type: ignore[arg-type]
    if type(value) in {int, float, bool} and not (is_index and isinstance(node, ast.Constant)):
        for one in known:
            if type(one.value) in {int, float, bool} and one.value != value:
                yield Edit(slot, one.node, "operand")


def exchanged(slot: Slot, node: ast.Tuple, cause: str) -> Iterator[Edit]:
    """Every two elements of a tuple in each other's place."""
    count = len(node.elts)
    for a in range(count):
        for b in range(a + 1, count):
            elements = list(node.elts)
            elements[a], elements[b] = elements[b], elements[a]
            yield Edit(slot, ast.Tuple(elements, node.ctx), cause)


def _of_product(slot: Slot, node: ast.BinOp) -> Iterator[Edit]:
    for other, cause in _OTHER_OPERATORS.get(type(node.op), ()):
        yield Edit(slot, ast.BinOp(node.left, other(), node.right), cause)
    if isinstance(node.op, ast.Sub | ast.Div | ast.MatMult | ast.Pow):
        cause = {ast.Sub: "missing-term", ast.MatMult: "transposed"}.get(type(node.op), "operand")
        yield Edit(slot, ast.BinOp(node.right, node.op, node.left), cause)
    cause = _DROPPED.get(type(node.op), "operand")
    yield Edit(slot, node.left, cause)
    yield Edit(slot, node.right, cause)


def _of_number(slot: Slot, number: float, *, is_index: bool) -> Iterator[Edit]:
    others: list[float] = [-number, number + 1, number - 1]
    if not is_index:
        others += [2 * number, number / 2, 0, 1]
    if number and not is_index:
        others += [1 / number, number**2, 1 - number]
    if number > 0 and not is_index:
        others.append(math.sqrt(number))
    seen = {float(number)}
    for other in others:
        if float(other) in seen:
            continue
        seen.add(float(other))
        whole = int(other) if type(number) is int and float(other).is_integer() else other
        yield Edit(slot, ast.Constant(whole), "operand")


def _of_call(slot: Slot, node: ast.Call) -> Iterator[Edit]:
    func = node.func
    name = func.attr if isinstance(func, ast.Attribute) else ""
    for other, cause in TWINS.get(name, ()):
        assert isinstance(func, ast.Attribute)  # noqa: S101
        twin = ast.Attribute(func.value, other, ast.Load())
        yield Edit(slot, ast.Call(twin, node.args, node.keywords), cause)
    if name in DROPPED_CALLS and isinstance(func, ast.Attribute):
        inner = node.args[0] if _is_torch(func.value) and node.args else func.value
        yield Edit(slot, inner, DROPPED_CALLS[name])
    if name in _SCANS and isinstance(func, ast.Attribute) and node.args and not _is_torch(func.value):
        yield Edit(
            slot,
            expression(
                "x.flip(d).f(d).flip(d)".replace("f(d).f", f"{name}(d).f"), x=func.value, d=node.args[0]
            ),
            "permuted",
        )
    if name in _SCANS and isinstance(func, ast.Attribute) and len(node.args) == 2 and _is_torch(func.value):
        x, d = node.args
        yield Edit(slot, expression(f"x.flip(d).{name}(d).flip(d)", x=x, d=d), "permuted")
    match node:
        # x.flip(d).cumsum(d).flip(d)
        case ast.Call(
            func=ast.Attribute(
                attr="flip",
                value=ast.Call(
                    func=ast.Attribute(
                        attr=scan, value=ast.Call(func=ast.Attribute(attr="flip", value=inner))
                    ) as scanned,
                    args=arguments,
                ),
            )
        ) if scan in _SCANS:
            del scanned
            yield Edit(slot, ast.Call(ast.Attribute(inner, scan, ast.Load()), arguments, []), "permuted")
        case _:
            pass
    count = len(node.args)
    if 2 <= count <= 5:
        for a in range(count):
            for b in range(a + 1, count):
                arguments = list(node.args)
                arguments[a], arguments[b] = arguments[b], arguments[a]
                yield Edit(slot, ast.Call(func, arguments, node.keywords), "operand")
    if count == 1 and isinstance(func, ast.Attribute) and not _is_torch(func.value) and name in _OF_TWO:
        yield Edit(
            slot, ast.Call(ast.Attribute(node.args[0], name, ast.Load()), [func.value], []), "transposed"
        )
    for k, keyword in enumerate(node.keywords):
        left = [w for j, w in enumerate(node.keywords) if j != k]
        if keyword.arg in {"keepdim", "dim"}:
            continue
        yield Edit(slot, ast.Call(func, node.args, left), "operand")


_OF_TWO = frozenset({"matmul", "mm", "bmm", "outer", "ger", "sub", "div", "kron"})
"""Methods of two tensors that do not commute."""


def _is_torch(node: ast.expr) -> bool:
    """`torch`, `torch.linalg`, `F`: whose functions take all their tensors in brackets."""
    match node:
        case ast.Name(id=name):
            return name in {"torch", "F", "functional", "linalg", "math"}
        case ast.Attribute(value=inner):
            return _is_torch(inner)
        case _:
            return False


def _of_subscripts(slot: Slot, text: str) -> Iterator[Edit]:
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


def _of_slice(slot: Slot, node: ast.Subscript, part: ast.Slice) -> Iterator[Edit]:
    one, minus = ast.Constant(1), ast.UnaryOp(ast.USub(), ast.Constant(1))
    others = [
        ast.Slice(one, None, part.step),
        ast.Slice(None, minus, part.step),
        ast.Slice(None, None, part.step),
    ]
    for other in others:
        yield Edit(slot, ast.Subscript(node.value, other, node.ctx), "region")


def of_values(slot: Slot, value: Value) -> Iterator[Edit]:
    """Something lost around an expression: a transposition, a conjugate, a sign, a flip, a function."""
    node = slot.node
    if not isinstance(value, Tensor) or not isinstance(node, ast.expr):
        return
    yield from (Edit(slot, expression(text, e=node), cause) for text, cause in _around(value))


def _around(value: Tensor) -> Iterator[tuple[str, str]]:
    shape = tuple(value.shape)
    if value.is_complex():
        yield "e.conj()", "conjugate"
    for a in range(len(shape)):
        for b in range(a + 1, len(shape)):
            if shape[a] == shape[b]:
                yield (
                    ("e.mT" if (a, b) == (len(shape) - 2, len(shape) - 1) else f"e.transpose({a}, {b})"),
                    "transposed",
                )
    if str(value.dtype) == "torch.bool":
        yield "~e", "branch"
        return
    if value.is_floating_point() or value.is_complex():
        yield "-e", "missing-term"
        yield "2 * e", "missing-term"
        yield "e / 2", "missing-term"
        for text in (
            "1 - e",
            "e ** 2",
            "1 / e",
            "1 - e ** 2",
            "e * (1 - e)",
            "e.sqrt()",
            "e.exp()",
            "e.abs()",
        ):
            yield text, "operand"
    for dim, n in enumerate(shape):
        if n > 1:
            yield f"e.flip({dim})", "permuted"
            yield f"e.roll(1, {dim})", "permuted"
            yield f"e.roll(-1, {dim})", "permuted"
            if value.is_floating_point():
                yield f"e.cumsum({dim})", "permuted"
                yield f"e.flip({dim}).cumsum({dim}).flip({dim})", "permuted"
                yield f"e - e.mean({dim}, keepdim=True)", "missing-term"
                yield f"e.sum({dim}, keepdim=True).expand_as(e)", "wrong-reduction-dim"
    if not value.is_floating_point() and not value.is_complex():
        yield "e + 1", "permuted"
        yield "e - 1", "permuted"
