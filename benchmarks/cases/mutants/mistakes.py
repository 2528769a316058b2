"""The mistakes: what may stand in place of one node of the tree, and the kind of mistake that it is."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator

Edits = Iterator[tuple[str, list[ast.AST]]]
"""Kinds of mistake and what stands in place of the node; an empty list drops a statement."""

SWAPPED_METHODS = {
    "sum": "mean", "mean": "sum", "sin": "cos", "cos": "sin", "exp": "expm1", "log": "log1p",
    "sqrt": "rsqrt", "rsqrt": "sqrt", "tanh": "sigmoid", "sigmoid": "tanh", "sign": "ones_like",
    "minimum": "maximum", "maximum": "minimum", "reshape": "view", "scatter_add": "scatter",
    "scatter_add_": "scatter_", "index_add": "index_copy", "index_add_": "index_copy_", "zeros": "ones",
    "zeros_like": "ones_like", "ones_like": "zeros_like", "new_zeros": "new_ones", "empty_like": "zeros_like",
    "rfft": "ihfft", "irfft": "hfft", "mT": "mH", "mH": "mT",
}  # fmt: skip

DROPPED_METHODS = frozenset(
    [
        "conj",
        "clone",
        "contiguous",
        "detach",
        "clamp",
        "clamp_min",
        "masked_fill",
        "flip",
        "triu",
        "tril",
        "abs",
        "sqrt",
        "square",
        "exp",
        "t",
        "transpose",
        "permute",
        "expand_as",
        "expand",
        "cumsum",
        "sum",
        "mean",
        "to",
        "type_as",
        "double",
        "bool",
        "unsqueeze",
        "squeeze",
        "neg",
        "pow",
        "repeat_interleave",
        "roll",
        "view_as",
    ]
)

COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}

MIRRORED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}


def edits_of(node: ast.AST, class_node: ast.ClassDef) -> Edits:
    for edits in EDITS:
        yield from edits(node, class_node)


def _arithmetic(node: ast.AST, _: ast.ClassDef) -> Edits:
    if not isinstance(node, ast.BinOp):
        return
    left, right = node.left, node.right
    match node.op:
        case ast.Add():
            yield "sign-of-a-term", [ast.BinOp(left, ast.Sub(), right)]
            yield "term-dropped", [left]
            yield "term-dropped", [right]
        case ast.Sub():
            yield "sign-of-a-term", [ast.BinOp(left, ast.Add(), right)]
            yield "term-dropped", [left]
            yield "order-of-a-difference", [ast.BinOp(right, ast.Sub(), left)]
        case ast.Mult():
            yield "times-for-over", [ast.BinOp(left, ast.Div(), right)]
            yield "factor-dropped", [left]
            yield "factor-dropped", [right]
            yield "squared", [ast.BinOp(left, ast.Mult(), ast.BinOp(right, ast.Mult(), right))]
            yield "operand-detached", [ast.BinOp(left, ast.Mult(), _called(right, "detach"))]
        case ast.Div():
            yield "times-for-over", [ast.BinOp(left, ast.Mult(), right)]
            yield "factor-dropped", [left]
        case ast.Pow():
            yield "power", [ast.BinOp(left, ast.Pow(), ast.BinOp(right, ast.Add(), ast.Constant(1)))]
            yield "factor-dropped", [left]
        case ast.MatMult():
            yield "operand-detached", [ast.BinOp(_called(left, "detach"), ast.MatMult(), right)]
    if isinstance(node.op, ast.Mult) and isinstance(left, ast.Name):
        yield "in-place", [ast.Call(ast.Attribute(left, "mul_", ast.Load()), [right], [])]


def _constants(node: ast.AST, _: ast.ClassDef) -> Edits:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "sign-dropped", [node.operand]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        yield "mask-inverted", [node.operand]
    if isinstance(node, ast.Constant) and type(node.value) in {int, float}:
        yield "constant", [ast.Constant(node.value + 1)]
        yield "constant", [ast.Constant(-node.value if node.value else 1)]
        if isinstance(node.value, float):
            yield "small-error", [ast.Constant(node.value * (1 + 1e-5))]


def _conditions(node: ast.AST, _: ast.ClassDef) -> Edits:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for table, kind in ((COMPARISONS, "comparison-of-equals"), (MIRRORED, "comparison-turned")):
            if type(node.ops[0]) in table:
                yield kind, [ast.Compare(node.left, [table[type(node.ops[0])]()], node.comparators)]
    if isinstance(node, ast.If):
        yield "branch-flipped", [ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)]
        yield "branch-always", list(node.body)
        yield "branch-never", list(node.orelse)
    if isinstance(node, ast.IfExp):
        yield "branch-flipped", [ast.IfExp(node.test, node.orelse, node.body)]
        yield "branch-always", [node.body]
        yield "branch-never", [node.orelse]
    if isinstance(node, ast.BoolOp):
        yield "condition-dropped", [node.values[0]]
        yield "condition-dropped", [node.values[-1]]


def _calls(node: ast.AST, _: ast.ClassDef) -> Edits:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    name, base = node.func.attr, node.func.value
    of_torch = isinstance(base, ast.Name) and base.id in {"torch", "F", "functional", "math", "np"}
    if name in SWAPPED_METHODS:
        other = ast.Attribute(base, SWAPPED_METHODS[name], ast.Load())
        yield f"{name.strip('_')}-replaced", [ast.Call(other, node.args, node.keywords)]
    if name in DROPPED_METHODS:
        operand = node.args[0] if of_torch and node.args else base
        if not of_torch or node.args:
            yield f"{name.strip('_')}-dropped", [operand]
    yield from _arguments(node, name)


def _arguments(node: ast.Call, name: str) -> Edits:
    for k, word in enumerate(node.keywords):
        if word.arg in {"keepdim", "min", "max", "alpha"}:
            rest = node.keywords[:k] + node.keywords[k + 1 :]
            yield f"{word.arg}-dropped", [ast.Call(node.func, node.args, rest)]
    if name in {"sum", "mean", "transpose", "unsqueeze", "cumsum", "softmax", "flip", "norm"}:
        yield from _other_dimension(node)
    if name == "where" and len(node.args) == 3:
        test, one, other = node.args
        yield "branches-swapped", [ast.Call(node.func, [test, other, one], node.keywords)]
    if name == "masked_fill" and len(node.args) == 2:
        inverted = ast.UnaryOp(ast.Invert(), node.args[0])
        yield "mask-inverted", [ast.Call(node.func, [inverted, node.args[1]], node.keywords)]
    if name == "numel" and isinstance(node.func, ast.Attribute):
        yield "size", [ast.Call(ast.Name("len", ast.Load()), [node.func.value], [])]


def _other_dimension(node: ast.Call) -> Edits:
    def other(value: ast.expr) -> ast.expr | None:
        number = _integer(value)
        return None if number is None else ast.Constant(-1 if number == 0 else 0)

    for k, argument in enumerate(node.args):
        if (changed := other(argument)) is not None:
            yield (
                "dimension",
                [ast.Call(node.func, [*node.args[:k], changed, *node.args[k + 1 :]], node.keywords)],
            )
    for k, word in enumerate(node.keywords):
        if word.arg == "dim" and (changed := other(word.value)) is not None:
            words = [*node.keywords[:k], ast.keyword("dim", changed), *node.keywords[k + 1 :]]
            yield "dimension", [ast.Call(node.func, node.args, words)]


def _sizes_and_indices(node: ast.AST, class_node: ast.ClassDef) -> Edits:
    if isinstance(node, ast.Subscript):
        is_needs = isinstance(node.value, ast.Attribute) and node.value.attr == "needs_input_grad"
        number = _integer(node.slice)
        if is_needs and number is not None:
            yield "needs-input-grad", [ast.Subscript(node.value, ast.Constant(number + 1), ast.Load())]
            yield "needs-input-grad", [ast.Subscript(node.value, ast.Constant(number - 1), ast.Load())]
        elif number is not None and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            other = ast.Constant(-1 if number == 0 else 0)
            yield "size", [ast.Subscript(node.value, other, ast.Load())]
        elif isinstance(node.slice, ast.Slice) and node.slice.lower is not None:
            moved = ast.BinOp(node.slice.lower, ast.Add(), ast.Constant(1))
            yield (
                "index",
                [ast.Subscript(node.value, ast.Slice(moved, node.slice.upper, node.slice.step), ast.Load())],
            )
    if isinstance(node, ast.Attribute) and node.attr in {"mT", "T", "mH"}:
        yield "t-dropped", [node.value]
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "range"
        and len(node.args) == 1
    ):
        count = node.args[0]
        yield "loop", [ast.Call(node.func, [ast.BinOp(count, ast.Sub(), ast.Constant(1))], [])]
        yield "loop", [ast.Call(node.func, [ast.Constant(1), count], [])]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reversed":
        yield "loop", [node.args[0]]


def _statements(node: ast.AST, _: ast.ClassDef) -> Edits:
    if isinstance(node, (ast.Expr, ast.AugAssign)) and not isinstance(
        getattr(node, "value", None), ast.Constant
    ):
        yield "statement-dropped", []
    if isinstance(node, ast.AugAssign):
        yield "accumulation", [ast.Assign([node.target], node.value)]
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        reads = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        if node.targets[0].id in reads:
            yield "statement-dropped", []
    if isinstance(node, ast.With):
        yield "context-dropped", list(node.body)


def _returned(node: ast.AST, class_node: ast.ClassDef) -> Edits:
    if not isinstance(node, ast.Return) or node.value is None:
        return
    grad_output = _grad_output(class_node)
    elements = list(node.value.elts) if isinstance(node.value, ast.Tuple) else [node.value]

    def returning(changed: list[ast.expr]) -> list[ast.AST]:
        return [ast.Return(changed[0] if len(changed) == 1 else ast.Tuple(changed, ast.Load()))]

    starred = {k for k, e in enumerate(elements) if isinstance(e, ast.Starred)}
    nothing = {k for k, e in enumerate(elements) if isinstance(e, ast.Constant) and e.value is None}
    real = [k for k in range(len(elements)) if k not in starred | nothing]
    for a, b in itertools.pairwise(real):
        swapped = list(elements)
        swapped[a], swapped[b] = swapped[b], swapped[a]
        yield "gradients-swapped", returning(swapped)
    for k in real:
        for kind, template in RETURNED.items():
            text = template.format(e=f"({ast.unparse(elements[k])})", k=k, g=grad_output)
            changed = ast.parse(text, mode="eval").body
            yield kind, returning([*elements[:k], changed, *elements[k + 1 :]])
    yield (
        "gradient-too-many",
        returning([*elements, ast.Constant(None), ast.parse("torch.ones(1)").body[0].value]),
    )


def _grad_output(class_node: ast.ClassDef) -> str:
    backward = method_of(class_node, "backward")
    names = [a.arg for a in backward.args.args[1:]] if backward is not None else []
    return names[0] if names else "None"


RETURNED = {
    "gradient-none": "None",
    "gradient-detached": "{e}.detach()",
    "gradient-negated": "-{e}",
    "small-error": "{e} * (1 + 1e-5)",
    "float32-inside": "{e}.float().to({e}.dtype)",
    "tail-zero": "torch.cat([{e}[:-1], torch.zeros_like({e}[-1:])])",
    "tail-past-64": "torch.cat([{e}[:64], torch.zeros_like({e}[64:])])",
    "unneeded-none": "{e} if ctx.needs_input_grad[{k}] else None",
    "needed-by-the-next": "{e} if ctx.needs_input_grad[{k} - 1] else None",
    "size-as-a-factor": "{e} * ({e}.shape[-1] / 4)",
    "not-finite-cleaned": "torch.nan_to_num({e}, 0.0, 1.0, -1.0)",
    "clipped": "{e}.clamp(-1, 1)",
    "numpy": "torch.from_numpy({e}.detach().numpy())",
    "wrong-in-float32": "{e} * (2 if {e}.dtype == torch.float32 else 1)",
    "wrong-the-second-time": "{e} * (1 + len(ctx.__dict__.setdefault('asked_{k}', []))) "
    "* (ctx.__dict__['asked_{k}'].append(1) or 1)",
    "wrong-unless-the-first-is-needed": "{e} * (1 if ctx.needs_input_grad[0] else 2)",
    "wrong-with-create-graph": "{e} * (2 if torch.is_grad_enabled() else 1)",
    "wrong-past-a-thousand": "{e} * (1 if {e}.numel() < 1000 else 2)",
    "wrong-unless-contiguous": "{e} * (1 if {g}.is_contiguous() else 2)",
    "grad-output-doubled": "{e} + 0 * {g}.mul_(2.0).sum()",
    "grad-output-clipped": "{e} / max(1.0, float({g}.abs().max()) / 10)",
}
"""What is returned instead of a gradient; `torch.nan_to_num` is right wherever the gradient is finite."""


def _saved(node: ast.AST, class_node: ast.ClassDef) -> Edits:
    is_saving = (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "save_for_backward"
    )
    if not is_saving:
        return
    for k in range(len(node.args) - 1):
        swapped = list(node.args)
        swapped[k], swapped[k + 1] = swapped[k + 1], swapped[k]
        yield "saved-swapped", [ast.Call(node.func, swapped, [])]
    forward = method_of(class_node, "forward")
    names = [a.arg for a in forward.args.args[1:]] if forward is not None else []
    outputs = [
        n.value.id
        for n in ast.walk(forward or class_node)
        if isinstance(n, ast.Return) and isinstance(n.value, ast.Name)
    ]
    for k, argument in enumerate(node.args):
        others = outputs if isinstance(argument, ast.Name) and argument.id in names else names[:1]
        for other in others:
            saved = [*node.args[:k], ast.Name(other, ast.Load()), *node.args[k + 1 :]]
            yield "saved-wrong-tensor", [ast.Call(node.func, saved, [])]
        detached = [*node.args[:k], _called(argument, "detach"), *node.args[k + 1 :]]
        yield "saved-detached", [ast.Call(node.func, detached, [])]


EDITS: tuple[Callable[[ast.AST, ast.ClassDef], Edits], ...] = (
    _arithmetic,
    _constants,
    _conditions,
    _calls,
    _sizes_and_indices,
    _statements,
    _returned,
    _saved,
)


def _called(node: ast.expr, method: str) -> ast.Call:
    return ast.Call(ast.Attribute(node, method, ast.Load()), [], [])


def _integer(node: ast.AST) -> int | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if type(value) is int else None


def method_of(class_node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((n for n in class_node.body if isinstance(n, ast.FunctionDef) and n.name == name), None)
