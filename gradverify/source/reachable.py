"""What a target uses of its module: integers that a size may be held against (blocks, chunks, thresholds).

A kernel that works in blocks of 128 is right at every size up to 128 whatever it does with the rest. So the
constants are read off the source, from the target and everything of its module that it uses, and cases past
them are tried. One too many costs a call or two; one that is missed may cost a false pass.

What a target uses of the other modules of its own package, read from their source: nothing is imported.

Numbers that its values may be held against: comparisons and clamps. A window between the threshold of forward
and another one in backward is narrow: values drawn over a wide range seldom lie in it, and those beside a
number that is written down do.

Whether it is about complex numbers, and whether it communicates with other ranks.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gradverify.model import POWER_OF_TWO, SizeConstant, Target
from gradverify.module_files import imported_file
from gradverify.source.module import Module, module_of
from gradverify.source.tree import (
    ORDERING,
    assigned,
    bindings,
    called_name,
    defaults_of,
    dotted,
    each,
    integer,
    last_name,
    name_of,
    names_in,
    number,
    parameters_of,
    rounds_of,
)

MOST_MODULES = 32
"""Other modules that are read for one target."""


def _statements(path: Path | None, source: str, attribute: str) -> Iterator[tuple[str, ast.stmt]]:
    """What a target uses of its module, and, given its path, of others of its package, by their file."""
    waiting, seen, read = [(path, source, attribute)], {(path, attribute)}, {path: source}
    while waiting:
        here, text, name = waiting.pop()
        for statement in module_of(text).behind(name):
            if here != path or name == attribute:
                yield "" if here is None or here == path else here.name, statement
            for file, used in _used_of_others(here, text, statement) if here is not None else ():
                if (file, used) in seen or (file not in read and len(read) > MOST_MODULES):
                    continue
                seen.add((file, used))
                read.setdefault(file, _text(file))
                waiting.append((file, read[file], used))


def _used_of_others(path: Path, source: str, statement: ast.stmt) -> Iterator[tuple[Path, str]]:
    """(file, name in it) of what a statement uses of other modules of the package."""
    imports = module_of(source).imports
    imported = {one.alias or one.name or one.module: one for one in imports}
    for node in ast.walk(statement):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in imported:
                one, module, used = imported[name], imported[name].full, attr
            case ast.Name(id=name) if name in imported and imported[name].name:
                one, module, used = imported[name], imported[name].module, imported[name].name
            case _:
                continue
        if (file := imported_file(path, one.level, module.lstrip("."))) is not None:
            yield file, used


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""


LEAST_BARE = 8
"""A number that has no name counts from here on: smaller ones are dimensions, strides and powers."""

LEAST_EQUAL = 4
"""A number that something is equal to counts from here on: smaller ones are modes, axes and usual sizes."""

MOST_BITS = 16
"""Shifts and masks of so many bits, or more, are hashes and no blocks."""

_RANK = frozenset({"dim", "ndim", "ndimension", "len", "get_device", "dtype"})
"""Names in a comparison that is not about a size."""

_STEPPING = frozenset(
    {"arange", "cdiv", "ceil_div", "min", "minimum", "split", "tensor_split", "narrow", "divmod"}
)
"""Calls whose integer arguments bound or cut sizes."""

_ROUNDING = frozenset({"next_power_of_2", "bit_length", "log2"})
"""What rounds a size up to a power of two: at such a size nothing is left over."""

_COUNTED_IN = {"uint8": 8, "byte": 8, "int8": 7, "char": 7, "int16": 15, "short": 15}
"""Bits that narrow integers count with, by what a call casts to: an index beyond is another one."""

_LAUNCHING = ("num_warps", "num_stages", "num_ctas")
"""Ends of names that say how a kernel is launched: no size is held against them."""


def size_constants(source: str, attribute: str, path: Path | None = None) -> tuple[SizeConstant, ...]:
    """The constants of one target of a module, by value; empty where the source cannot be read.

    `attribute` is how the module calls the target. With the module's `path`, what the target uses of other
    modules of its package counts, too.
    """
    found: dict[int, SizeConstant] = {}
    module = module_of(source)
    for file, node in _statements(path, source, attribute):
        for constant in _constants(node, _options(node, module)):
            if constant.name.lower().endswith(_LAUNCHING):
                continue
            named = replace(constant, file=file)
            known = found.get(named.value)
            if known is None or (named.name and not known.name):
                found[named.value] = named
    return tuple(found[value] for value in sorted(found))


def _options(function: ast.stmt, module: Module) -> set[str]:
    """The parameters of a function that every call in its module gives a written number: no sizes."""
    if not isinstance(function, ast.FunctionDef):
        return set()
    given = []
    for call in each(ast.Call, module.tree):
        if called_name(call) == function.name:
            by_name = ((keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg)
            values = (*zip(parameters_of(function), call.args, strict=False), *by_name)
            given.append({name for name, value in values if integer(value) is not None})
    options = set.intersection(*given) if given else set()
    bound = bindings(function.body).items()
    return options - {n for n, values in bound if any(v is None or names_in(v) - options for v in values)}


def _constants(statement: ast.stmt, options: set[str]) -> Iterator[SizeConstant]:
    least = 2 if isinstance(statement, ast.Assign | ast.AnnAssign) else LEAST_BARE
    rounds = [call for node in ast.walk(statement) if (call := rounds_of(node)) is not None]
    counts = [name_of(call.args[0]) for call in rounds]
    read = [node.id for node in each(ast.Name, statement)]
    for node in ast.walk(statement):
        named = _with_a_name(node, least)
        yield from (one for one in named if not 0 < read.count(one.name) == counts.count(one.name))
        names = names_in(node) if isinstance(node, ast.Compare | ast.BinOp) else set()
        if node not in rounds and not (names and names <= options):
            yield from _without(node)
        if isinstance(node, ast.For):
            yield from _counted_to(node)


def _counted_to(loop: ast.For) -> Iterator[SizeConstant]:
    """`t != 64` in a loop over t: what a counter may be is a size."""
    counters = names_in(loop.target)
    for node in each(ast.Compare, loop):
        if name_of(node.left) in counters:
            yield from _bare(node.comparators, LEAST_BARE)


def _with_a_name(node: ast.AST, least: int) -> Iterator[SizeConstant]:
    """`BLOCK = 128`, `kernel[grid](x, BLOCK=128)`, `Config({"BLOCK": 128})`, `def f(x, block=128)`."""
    if (pair := assigned(node)) is not None:
        yield from _given(*pair, least)
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=parts)):
            for one, part in zip(names, parts, strict=False):
                yield from _with_a_name(ast.Assign([one], part), least)
        case ast.keyword(arg=str(name), value=value) if name.isupper():
            yield from _named(name, value, least)
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and str(key.value).isupper():
                    yield from _named(str(key.value), value, least)
        case ast.arguments():
            for argument, default in defaults_of(node):
                yield from _named(argument.arg, default, LEAST_BARE) if default is not None else ()
        case _:
            pass


def _given(name: str, value: ast.expr, least: int) -> Iterator[SizeConstant]:
    yield from _named(name, value, least)
    if name.isupper():  # `BLOCKS = {torch.float32: 64, torch.float64: 48}`: one of them is taken
        held = value.values if isinstance(value, ast.Dict) else _entries(value)
        yield from (replace(constant, name=name) for constant in _bare(held, LEAST_BARE))


def _without(node: ast.AST) -> Iterator[SizeConstant]:
    """`n > 64`, `n == 64`, `n in (32, 64)`, `n // 16`, `x[:64]`, `range(0, n, 32)`, `tl.arange(0, 128)`."""
    match node:
        case ast.Compare(ops=ops):
            if not {last_name(n) for n in ast.walk(node)} & _RANK:
                equal = any(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in ops)
                sides = [one for side in (node.left, *node.comparators) for one in _entries(side)]
                yield from _bare(sides, LEAST_EQUAL if equal else 2)
        case ast.BinOp():
            yield from _divided(node)
        case ast.Slice(lower=lower, upper=upper, step=step):
            ends = [e.right if isinstance(e, ast.BinOp) else e for e in (lower, upper, step) if e]
            yield from _bare(ends, 2)
        case ast.Attribute(attr=attr) if attr in _ROUNDING:
            yield SizeConstant(2, POWER_OF_TWO, node.lineno)
        case ast.Call(func=func, args=args):
            called = last_name(func)
            yield from _cast(node)
            if called == "range":
                yield from _bare(args[-1:], 2)
            elif called in _STEPPING:
                yield from _bare(args, 4)
        case _:
            pass


def _cast(call: ast.Call) -> Iterator[SizeConstant]:
    """`i.to(torch.uint8)`, `i.byte()`, `torch.empty(n, dtype=torch.int8)`: what is kept counts so far."""
    by_name = (keyword.value for keyword in call.keywords)
    for one in (*(call.args or [call.func]), *by_name):
        if isinstance(one, ast.Attribute) and one.attr in _COUNTED_IN:
            yield SizeConstant(1 << _COUNTED_IN[one.attr], f"indices in {one.attr}", one.lineno)


def _entries(node: ast.expr) -> list[ast.expr]:
    """What a tuple, list or set holds that is written out; the expression itself where it is none."""
    return node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]


def _divided(node: ast.BinOp) -> Iterator[SizeConstant]:
    """`n // 16`, `n % 16`, `n & 15`, and `n >> 5`, which counts blocks of 32."""
    match node.op:
        case ast.FloorDiv() | ast.Mod():
            yield from _bare([node.right], 2)
        case ast.RShift():
            bits = _value(node.right) or 0
            if 1 <= bits < MOST_BITS:
                yield SizeConstant(1 << bits, "", node.right.lineno)
        case ast.BitAnd():
            yield from (c for side in (node.left, node.right) for c in _masked(side))
        case _:
            pass


def _masked(mask: ast.expr) -> Iterator[SizeConstant]:
    """`n & 31` is what blocks of 32 leave over, `n & ~31` and `n & -32` what fills them."""
    match mask:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            block = _value(operand) or 0
        case ast.UnaryOp(op=ast.Invert(), operand=rest) | rest:
            block = (_value(rest) or 0) + 1
    if 1 < block <= 1 << MOST_BITS and block & (block - 1) == 0:
        yield SizeConstant(block, "", mask.lineno)


def _named(name: str, value: ast.expr, least: int) -> Iterator[SizeConstant]:
    """A constant from a least value on; a name in capitals is one of a block from 2 on."""
    size = _value(value) or 0
    if size >= (2 if name.isupper() else least):
        yield SizeConstant(size, name, value.lineno)


def _bare(values: list[ast.expr], least: int) -> Iterator[SizeConstant]:
    return (constant for value in values for constant in _named("", value, least))


def _value(node: ast.expr) -> int | None:
    """The value of an integer that the source writes out: `128`, `2 * 64`, `1 << 7`, `tl.constexpr(128)`."""
    match node:
        case ast.Constant():
            return integer(node)
        case ast.Call(func=ast.Attribute(attr="constexpr") | ast.Name(id="constexpr"), args=[inner]):
            return _value(inner)
        case ast.BinOp(left=left, op=op, right=right):
            return _folded(_value(left), op, _value(right))
        case _:
            return None


_FOLDED: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}


def _folded(left: int | None, op: ast.operator, right: int | None) -> int | None:
    if left is None or right is None or type(op) not in _FOLDED:
        return None
    grows = isinstance(op, ast.Pow | ast.LShift)
    return None if grows and not 0 <= right <= MOST_BITS else _FOLDED[type(op)](left, right)


CLAMPS = frozenset({"clamp", "clip", "clamp_", "clip_", "clamp_min", "clamp_max", "hardtanh", "threshold"})
"""Calls whose numbers bound values."""


def thresholds(source: str, attribute: str) -> tuple[float, ...]:
    """The numbers, none of them zero, each once; empty where the source cannot be read.

    Those of backward come first: another threshold than forward's is a mistake there. A constant of the
    module is its number. `attribute` is how the module calls the target.
    """
    statements = [*module_of(source).behind(attribute)]
    given = filter(None, map(assigned, statements))
    constants = {name: value for name, node in given if (value := number(node)) is not None}
    found: list[float] = []
    for statement in statements:
        methods = statement.body if isinstance(statement, ast.ClassDef) else [statement]
        for part in sorted(methods, key=lambda one: getattr(one, "name", "") != "backward"):
            held = (one for node in ast.walk(part) for one in _held(node))
            found += (value for one in held if (value := number(one, constants)))
    return tuple(dict.fromkeys(map(float, found)))


def _held(node: ast.AST) -> list[ast.expr]:
    """What a node compares, or clamps to."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others) if any(isinstance(o, ORDERING) for o in ops):
            return [left, *others]
        case ast.Call(args=args, keywords=keywords) if called_name(node) in CLAMPS:
            return [*args, *(keyword.value for keyword in keywords)]
        case _:
            return []


COMPLEX_WORDS = frozenset(
    {"conj", "conj_physical", "resolve_conj", "mH", "vdot"}
    | {"view_as_complex", "view_as_real", "imag", "is_complex"}
    | {"complex", "complex32", "complex64", "complex128", "chalf", "cfloat", "cdouble"}
)
"""Attributes and names that only complex tensors need; not those with another meaning, too (`angle`)."""


def uses_complex(source: str, attribute: str) -> bool:
    """Whether a target, or what it uses of its module, names such an operation, dtype or annotation.

    `attribute` is how the module calls the target; False where the source cannot be read.
    """
    nodes = [node for statement in module_of(source).behind(attribute) for node in ast.walk(statement)]
    quoted = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}  # annotations
    return bool(COMPLEX_WORDS & {*quoted, *map(last_name, nodes)})


HOME = "torch.distributed."

COLLECTIVES = frozenset(
    {"all_reduce", "all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "broadcast"}
    | {"gather", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "all_reduce_coalesced"}
    | {"send", "recv", "isend", "irecv", "batch_isend_irecv", "all_gather_tensor", "permute_tensor"}
    | {"all_gather_tensor_autograd", "reduce_scatter_tensor_autograd", "all_to_all_single_autograd"}
    | {"all_gather_object", "broadcast_object_list", "barrier"}
)
"""Functions of `torch.distributed` and of what lies in it that wait for other ranks."""

GROUPS = frozenset({"group", "process_group", "pg", "tp_group", "ep_group", "cp_group", "dp_group"})
"""What authors call a parameter that takes a process group."""


def communicates(source: str, target: Target) -> str:
    """Why a target runs on several ranks, as `it calls dist.all_reduce, line 12`; empty where it does not.

    A parameter with the name of a group counts in a module that imports `torch.distributed`: without a call
    of a collective it may be what is missing. What another module calls is not seen.
    """
    module = module_of(source)
    names = module.imported
    for statement in module.behind(target.attribute) if "distributed" in source else ():
        for call in each(ast.Call, statement):
            home, _, name = dotted(call.func, names).rpartition(".")
            if f"{home}.".startswith(HOME) and name in COLLECTIVES:
                return f"it calls {ast.unparse(call.func)}, line {call.lineno}"
    group = next((p.name for p in target.parameters if p.name in GROUPS), "")
    imported = any(f"{name}.".startswith(HOME) for name in names.values())
    return f"it takes a process group, `{group}`" if group and imported else ""
