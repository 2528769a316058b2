"""Integers in the source of a target that a size may be held against: blocks, chunks, thresholds.

A kernel that works in blocks of 128 is right at every size up to 128 whatever it does with the rest. So the
constants are read off the source, from the target and everything of its module that it uses, and cases past
them are tried. One too many costs a call or two; one that is missed may cost a false pass.

What a target uses of the other modules of its own package, read from their source: nothing is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from gradverify.model import POWER_OF_TWO, SizeConstant
from gradverify.source.reachable import statements_behind
from gradverify.source.tree import KEPT_TREES, integer, last_name, rounds_of, tree_of

MOST_MODULES = 32
"""Other modules that are read for one target."""


@dataclass(frozen=True)
class _Imported:
    """A name as an import binds it."""

    level: int
    """Of a relative import, the dots."""
    module: str
    name: str = ""
    """What is taken of the module; empty for the module itself, `*` for everything."""


def statements_elsewhere(path: Path, source: str, attribute: str) -> Iterator[tuple[str, ast.stmt]]:
    """(file name, statement) of what a target of a module uses of other modules of its own package.

    `attribute` is how the module calls the target.
    """
    waiting, seen, read = [(path, source, attribute)], {(path, attribute)}, {path: source}
    while waiting:
        here, text, name = waiting.pop()
        for statement in statements_behind(text, name):
            if here != path:
                yield here.name, statement
            for file, used in _used_of_others(here, text, statement):
                if (file, used) in seen or (file not in read and len(read) > MOST_MODULES):
                    continue
                seen.add((file, used))
                read.setdefault(file, _text(file))
                waiting.append((file, read[file], used))


def _used_of_others(path: Path, source: str, statement: ast.stmt) -> Iterator[tuple[Path, str]]:
    """(file, name in it) of what a statement uses of other modules of the package."""
    imported = _imports(source)
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            whole = imported.get(node.value.id)
            if whole is not None and (file := _file_of(path, whole.level, _joined(whole))) is not None:
                yield file, node.attr
        elif isinstance(node, ast.Name) and (one := imported.get(node.id)) is not None and one.name:
            if (file := _file_of(path, one.level, one.module)) is not None:
                yield file, one.name
        elif isinstance(node, ast.Name) and node.id not in imported:
            for starred in (i for i in imported.values() if i.name == "*"):
                if (file := _file_of(path, starred.level, starred.module)) is not None:
                    yield file, node.id


def _joined(one: _Imported) -> str:
    return ".".join(filter(None, (one.module, one.name)))


@lru_cache(maxsize=KEPT_TREES)
def _imports(source: str) -> dict[str, _Imported]:
    """What each imported name of a module stands for; those of star imports under a name that is none."""
    try:
        tree = tree_of(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[str, _Imported] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name] = _Imported(0, alias.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                key = f"* of {node.module}" if alias.name == "*" else alias.asname or alias.name
                found[key] = _Imported(node.level, node.module or "", alias.name)
    return found


def _file_of(path: Path, level: int, dotted: str) -> Path | None:
    """The file of a module of the package that a file is in, or beside a lone file; None for any other."""
    if level:
        folder = path.parents[level - 1] if level <= len(path.parents) else None
    else:
        folder = path.parent
        while (folder / "__init__.py").is_file():
            folder = folder.parent
    if folder is None:
        return None
    stem = folder.joinpath(*filter(None, dotted.split(".")))
    candidates = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
    return next((file for file in candidates if file.is_file() and file != path), None)


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
    behind = [("", statement) for statement in statements_behind(source, attribute)]
    behind += [] if path is None else statements_elsewhere(path, source, attribute)
    for file, node in behind:
        for constant in _constants(node):
            if constant.name.lower().endswith(_LAUNCHING):
                continue
            named = replace(constant, file=file)
            known = found.get(named.value)
            if known is None or (named.name and not known.name):
                found[named.value] = named
    return tuple(found[value] for value in sorted(found))


def _constants(statement: ast.stmt) -> Iterator[SizeConstant]:
    on_its_own = isinstance(statement, ast.Assign | ast.AnnAssign)
    rounds = {id(rounds_of(node)) for node in ast.walk(statement)}
    for node in ast.walk(statement):
        yield from _with_a_name(node, module_level=on_its_own)
        if id(node) not in rounds:
            yield from _without(node)
        if isinstance(node, ast.For):
            yield from _counted_to(node)


def _counted_to(loop: ast.For) -> Iterator[SizeConstant]:
    """`t != 64` in a loop over t: what a counter may be is a size."""
    counters = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    for node in ast.walk(loop):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id in counters:
            yield from _bare(node.comparators, LEAST_BARE)


def _with_a_name(node: ast.AST, *, module_level: bool) -> Iterator[SizeConstant]:
    """`BLOCK = 128`, `kernel[grid](x, BLOCK=128)`, `Config({"BLOCK": 128})`, `def f(x, block=128)`."""
    match node:
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value)
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
        ):
            yield from _named(name, value, 2 if module_level or name.isupper() else LEAST_BARE)
            if isinstance(value, ast.Dict | ast.Tuple | ast.List | ast.Set) and name.isupper():
                yield from _table(name, value.values if isinstance(value, ast.Dict) else value.elts)
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=parts)):
            for one, part in zip(names, parts, strict=False):
                yield from _with_a_name(ast.Assign([one], part), module_level=module_level)
        case ast.keyword(arg=str() as name, value=value) if name.isupper():
            yield from _named(name, value, 2)
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value.isupper():
                    yield from _named(key.value, value, 2)
        case ast.arguments():
            yield from _defaults(node)
        case _:
            pass


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
    to = [one for one in (*call.args, *(k.value for k in call.keywords)) if isinstance(one, ast.Attribute)]
    for one in (*to, *([] if call.args else [call.func])):
        name = last_name(one)
        if isinstance(one, ast.Attribute) and name in _COUNTED_IN:
            yield SizeConstant(1 << _COUNTED_IN[name], f"indices in {name}", one.lineno)


def _entries(node: ast.expr) -> list[ast.expr]:
    """What a tuple, list or set holds that is written out; the expression itself where it is none."""
    return node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]


def _divided(node: ast.BinOp) -> Iterator[SizeConstant]:
    """`n // 16`, `n % 16`, `n >> 4`, `n & 15`."""
    match node.op:
        case ast.FloorDiv() | ast.Mod():
            yield from _bare([node.right], 2)
        case ast.RShift():
            yield from _shifted(node.right)
        case ast.BitAnd():
            yield from (c for side in (node.left, node.right) for c in _masked(side))
        case _:
            pass


def _shifted(bits: ast.expr) -> Iterator[SizeConstant]:
    """`n >> 5` counts blocks of 32."""
    number = _value(bits)
    if number is not None and 1 <= number < MOST_BITS:
        yield SizeConstant(1 << number, "", bits.lineno)


def _masked(mask: ast.expr) -> Iterator[SizeConstant]:
    """`n & 31` is what blocks of 32 leave over, `n & ~31` and `n & -32` what fills them."""
    match mask:
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            number = _value(operand)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            block = _value(operand)
            number = block - 1 if block is not None else None
        case _:
            number = _value(mask)
    if number is not None and number > 0 and number & (number + 1) == 0 and number < 1 << MOST_BITS:
        yield SizeConstant(number + 1, "", mask.lineno)


def _table(name: str, values: list[ast.expr]) -> Iterator[SizeConstant]:
    """`BLOCKS = {torch.float32: 64, torch.float64: 48}`: one of them is taken."""
    for value in values:
        yield from _named(name, value, LEAST_BARE)


def _defaults(arguments: ast.arguments) -> Iterator[SizeConstant]:
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = list(
        zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)
    )
    pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d]
    for argument, default in pairs:
        yield from _named(argument.arg, default, 2 if argument.arg.isupper() else LEAST_BARE)


def _named(name: str, value: ast.expr, least: int) -> Iterator[SizeConstant]:
    number = _value(value)
    if number is not None and number >= least:
        yield SizeConstant(number, name, value.lineno)


def _bare(values: list[ast.expr], least: int) -> Iterator[SizeConstant]:
    for value in values:
        number = _value(value)
        if number is not None and number >= least:
            yield SizeConstant(number, "", value.lineno)


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


def _folded(left: int | None, op: ast.operator, right: int | None) -> int | None:
    if left is None or right is None or not 0 <= right <= 1 << 16:
        return None
    match op:
        case ast.Mult():
            return left * right
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Pow() | ast.LShift() if abs(left) <= 16 and right <= 32:
            return left**right if isinstance(op, ast.Pow) else left << right
        case _:
            return None
