"""Mistakes that a Function's source can be given: edits of the syntax tree of its backward.

A mutant changes one place: an expression or statement of backward, or of what forward and `setup_context`
leave on the ctx. Names in the field's words: `sum-to-mean`, `conj-dropped`, `gradients-swapped`.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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

DROPPED_METHODS = {
    "conj", "clone", "contiguous", "detach", "clamp", "clamp_min", "masked_fill", "flip", "triu", "tril",
    "abs", "sqrt", "square", "exp", "t", "transpose", "permute", "expand_as", "expand", "cumsum", "sum", "mean",
    "to", "type_as", "double", "bool", "unsqueeze", "squeeze", "neg", "pow", "repeat_interleave", "roll", "view_as",
}  # fmt: skip

COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}

MIRRORED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}


@dataclass(frozen=True)
class Mutant:
    """A Function with one mistake."""

    function: str
    name: str
    kind: str
    line: str
    """The place as it was, and as it is."""
    source: str


def mutants_of(class_node: ast.ClassDef) -> list[Mutant]:
    """Every mutant of a Function, each source once."""
    seen = {ast.unparse(class_node)}
    found: list[Mutant] = []
    for kind, before, after, changed in _changed(class_node):
        source = ast.unparse(changed)
        if source in seen:
            continue
        seen.add(source)
        digest = hashlib.sha256(source.encode()).hexdigest()[:8]
        name = f"{class_node.name}__{kind.replace('-', '_')}_{digest}"
        line = f"{before}  →  {after}"
        found.append(Mutant(class_node.name, name, kind, line, _renamed(changed, name)))
    return found


def chosen(mutants: list[Mutant], count: int) -> list[Mutant]:
    """`count` of them, by hash: those that hide and the others in turn, no kind twice before all were taken."""

    def order(m: Mutant) -> str:
        return hashlib.sha256(m.name.encode()).hexdigest()

    ranked: list[tuple[int, int, bool, str, Mutant]] = []
    seen: dict[str, int] = {}
    for mutant in sorted(mutants, key=order):
        times = seen[mutant.kind] = seen.get(mutant.kind, 0) + 1
        of_these = [r for r in ranked if r[0] == times and r[2] == (mutant.kind in PLAIN)]
        ranked.append((times, len(of_these), mutant.kind in PLAIN, order(mutant), mutant))
    return [r[-1] for r in sorted(ranked, key=lambda r: r[:4])[:count]]


PLAIN = {"sign-of-a-term", "term-dropped", "order-of-a-difference", "times-for-over", "factor-dropped", "squared", "power",
         "sign-dropped", "constant", "small-error", "gradients-swapped", "gradient-none", "gradient-negated", "float32-inside",
         "tail-zero", "gradient-too-many", "saved-swapped", "saved-wrong-tensor"}  # fmt: skip
"""Mistakes that an ordinary backward shows; the others hide in layouts, subsets, sizes, calls or second derivatives."""


def _renamed(node: ast.ClassDef, name: str) -> str:
    node = copy.deepcopy(node)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner.id == node.name:
            inner.id = name
    node.name = name
    return ast.unparse(node)


def _changed(class_node: ast.ClassDef) -> Iterator[tuple[str, str, str, ast.ClassDef]]:
    nodes = list(ast.walk(class_node))
    for node in _places(class_node):
        number = nodes.index(node)
        for kind, replacement in _edits(node, class_node):
            copied = copy.deepcopy(class_node)
            place = list(ast.walk(copied))[number]
            changed = _Replacing(place, copy.deepcopy(replacement)).visit(copied)
            after = "; ".join(ast.unparse(ast.fix_missing_locations(r)) for r in replacement)
            yield kind, ast.unparse(node), after, ast.fix_missing_locations(changed)
    yield from _class_state(class_node)
    yield from _decorators(class_node)


class _Replacing(ast.NodeTransformer):
    def __init__(self, place: ast.AST, replacement: list[ast.AST]) -> None:
        self.place, self.replacement = place, replacement

    def visit(self, node: ast.AST):
        if node is not self.place:
            return self.generic_visit(node)
        if isinstance(node, ast.stmt):
            return self.replacement or [ast.Pass()]
        return self.replacement[0]


def _method(class_node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((n for n in class_node.body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def _places(class_node: ast.ClassDef) -> Iterator[ast.AST]:
    """What may be wrong: all of backward, and what is left on the ctx for it."""
    backward = _method(class_node, "backward")
    if backward is not None:
        for statement in backward.body:
            yield from ast.walk(statement)
    for name in ("forward", "setup_context"):
        method = _method(class_node, name)
        for statement in ast.walk(method) if method is not None else ():
            if isinstance(statement, (ast.Expr, ast.Assign)) and _leaves_on_ctx(statement, method):
                yield from ast.walk(statement)


def _ctx_of(method: ast.FunctionDef) -> str:
    return method.args.args[0].arg if method.args.args else ""


def _leaves_on_ctx(statement: ast.Expr | ast.Assign, method: ast.FunctionDef) -> bool:
    place = statement.value if isinstance(statement, ast.Expr) else statement.targets[0]
    if isinstance(place, ast.Call):
        place = place.func
    places = place.elts if isinstance(place, ast.Tuple) else [place]
    return any(
        isinstance(p, ast.Attribute) and isinstance(p.value, ast.Name) and p.value.id == _ctx_of(method)
        for p in places
    )


def _edits(node: ast.AST, class_node: ast.ClassDef) -> Edits:
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
    if name == "numel":
        yield "size", [ast.Call(ast.Name("len", ast.Load()), [base], [])]


def _other_dimension(node: ast.Call) -> Edits:
    def other(value: ast.expr) -> ast.expr | None:
        number = _integer(value)
        return None if number is None else ast.Constant(-1 if number == 0 else 0)

    for k, argument in enumerate(node.args):
        if (changed := other(argument)) is not None:
            yield "dimension", [ast.Call(node.func, [*node.args[:k], changed, *node.args[k + 1 :]], node.keywords)]
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
            yield "index", [ast.Subscript(node.value, ast.Slice(moved, node.slice.upper, node.slice.step), ast.Load())]
    if isinstance(node, ast.Attribute) and node.attr in {"mT", "T", "mH"}:
        yield "t-dropped", [node.value]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range" and len(node.args) == 1:
        count = node.args[0]
        yield "loop", [ast.Call(node.func, [ast.BinOp(count, ast.Sub(), ast.Constant(1))], [])]
        yield "loop", [ast.Call(node.func, [ast.Constant(1), count], [])]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reversed":
        yield "loop", [node.args[0]]


def _statements(node: ast.AST, _: ast.ClassDef) -> Edits:
    if isinstance(node, (ast.Expr, ast.AugAssign)) and not isinstance(getattr(node, "value", None), ast.Constant):
        yield "statement-dropped", []
    if isinstance(node, ast.AugAssign):
        yield "accumulation", [ast.Assign([node.target], node.value)]
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        reads = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        if node.targets[0].id in reads:
            yield "statement-dropped", []
    if isinstance(node, ast.With):
        yield "context-dropped", list(node.body)


def _returned(node: ast.AST, _: ast.ClassDef) -> Edits:
    if not isinstance(node, ast.Return) or node.value is None:
        return
    elements = list(node.value.elts) if isinstance(node.value, ast.Tuple) else [node.value]

    def returning(changed: list[ast.expr]) -> list[ast.AST]:
        return [ast.Return(changed[0] if len(changed) == 1 else ast.Tuple(changed, ast.Load()))]

    real = [k for k, e in enumerate(elements) if not (isinstance(e, ast.Constant) and e.value is None)]
    for a, b in zip(real, real[1:], strict=False):
        swapped = list(elements)
        swapped[a], swapped[b] = swapped[b], swapped[a]
        yield "gradients-swapped", returning(swapped)
    for k in real:
        for kind, template in RETURNED.items():
            text = template.format(e=f"({ast.unparse(elements[k])})", k=k)
            changed = ast.parse(text, mode="eval").body
            yield kind, returning([*elements[:k], changed, *elements[k + 1 :]])
    yield "gradient-too-many", returning([*elements, ast.Constant(None), ast.parse("torch.ones(1)").body[0].value])


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
    forward = _method(class_node, "forward")
    names = [a.arg for a in forward.args.args[1:]] if forward is not None else []
    outputs = [
        n.value.id for n in ast.walk(forward or class_node) if isinstance(n, ast.Return) and isinstance(n.value, ast.Name)
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


def _class_state(class_node: ast.ClassDef) -> Iterator[tuple[str, str, str, ast.ClassDef]]:
    """An attribute of ctx kept on the class, where the next call overwrites it."""
    own = {"save_for_backward", "saved_tensors", "needs_input_grad", "mark_dirty", "mark_non_differentiable",
           "set_materialize_grads", "materialize_grads", "save_for_forward"}  # fmt: skip

    def of_ctx(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ctx"

    names = sorted({n.attr for n in ast.walk(class_node) if of_ctx(n)} - own)
    for name in names:
        copied = copy.deepcopy(class_node)
        for node in ast.walk(copied):
            if of_ctx(node) and node.attr == name:
                node.value.id = class_node.name
        yield "kept-on-the-class", f"ctx.{name}", f"{class_node.name}.{name}", copied
    backward = _method(class_node, "backward")
    if backward is not None and any(of_ctx(n) and n.attr == "saved_tensors" for n in ast.walk(backward)):
        copied = copy.deepcopy(class_node)
        for node in ast.walk(copied):
            if isinstance(node, ast.Attribute) and node.attr == "saved_tensors":
                node.attr = "kept"
        rewritten = _Saving().visit(copied)
        yield "saved-as-attribute", "save_for_backward(…)", "ctx.kept = (…)", ast.fix_missing_locations(rewritten)


class _Saving(ast.NodeTransformer):
    """`ctx.save_for_backward(a, b)` as `ctx.kept = (a, b)`."""

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "save_for_backward":
            target = ast.Attribute(call.func.value, "kept", ast.Store())
            return ast.Assign([target], ast.Tuple(call.args, ast.Load()))
        return node


def _decorators(class_node: ast.ClassDef) -> Iterator[tuple[str, str, str, ast.ClassDef]]:
    backward = _method(class_node, "backward")
    for decorator in backward.decorator_list if backward is not None else ():
        if "once_differentiable" in ast.unparse(decorator):
            copied = copy.deepcopy(class_node)
            method = _method(copied, "backward")
            method.decorator_list = [d for d in method.decorator_list if ast.unparse(d) != ast.unparse(decorator)]
            yield "once-differentiable-dropped", "@once_differentiable", "", copied


def _called(node: ast.expr, method: str) -> ast.Call:
    return ast.Call(ast.Attribute(node, method, ast.Load()), [], [])


def _integer(node: ast.AST) -> int | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if type(value) is int else None
