"""A factor that changes with the sizes: which of them, and how."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Every tensor of a call, by name."""

SAME = 1e-6
"""A law holds when it gives the fitted factor to within this share."""

_FORMS: tuple[tuple[str, Callable[[float], float]], ...] = (
    ("{}", lambda n: n),
    ("1 / {}", lambda n: 1 / n),
    ("sqrt({})", math.sqrt),
    ("1 / sqrt({})", lambda n: 1 / math.sqrt(n)),
    ("{}**2", lambda n: n * n),
    ("1 / {}**2", lambda n: 1 / (n * n)),
    ("n / (n - 1) with n = {}", lambda n: n / (n - 1)),
    ("(n - 1) / n with n = {}", lambda n: (n - 1) / n),
    ("sqrt(n / (n - 1)) with n = {}", lambda n: math.sqrt(n / (n - 1))),
    ("sqrt((n - 1) / n) with n = {}", lambda n: math.sqrt((n - 1) / n)),
    ("n - 1 with n = {}", lambda n: n - 1),
    ("1 / (n - 1) with n = {}", lambda n: 1 / (n - 1)),
)
_MULTIPLES: tuple[tuple[str, float], ...] = (("", 1.0), ("-", -1.0), ("2 * ", 2.0), ("1/2 * ", 0.5))


def size_law(factors: Sequence[tuple[Shapes, float]]) -> str:
    """The simplest law of the sizes that gives the factor at every point; empty where none does.

    Needs points of at least two sizes: at one size everything is a law.
    """
    names = [name for name, _ in _numbers(factors[0][0])]
    tables = [dict(_numbers(shapes)) for shapes, _ in factors]
    for (multiple, times), (form, law), name in itertools.product(_MULTIPLES, _FORMS, names):
        if all(
            name in table and _holds(law, times, table[name], c)
            for table, (_, c) in zip(tables, factors, strict=True)
        ):
            return _written(multiple, form.format(name))
    return _quotient(tables, [c for _, c in factors])


def _quotient(tables: Sequence[dict[str, int]], factors: Sequence[float]) -> str:
    """One dimension over another one, where that gives every factor, and these differ."""
    if len({round(c, 6) for c in factors}) < 2:
        return ""
    names = [name for name in tables[0] if name.endswith("]") and all(name in table for table in tables)]
    for above, below in itertools.permutations(names, 2):
        values = [table[above] / max(1, table[below]) for table in tables]
        if all(abs(v - c) <= SAME * abs(c) for v, c in zip(values, factors, strict=True)):
            return f"{above} / {below}"
    return ""


def _written(multiple: str, form: str) -> str:
    """`2 / n`, and not `2 * 1 / n`."""
    if not form.startswith("1 / "):
        return multiple + form
    return {"2 * ": "2 / ", "1/2 * ": "1/2 / "}.get(multiple, f"{multiple}1 / ") + form.removeprefix("1 / ")


def sizes_equal_to(shapes: Shapes, factor: float) -> list[str]:
    """Which sizes have the value of a factor, or its inverse: where one size was seen, it may be these."""
    named = [(name, n) for name, shape in shapes for name, n in _dimensions(name, shape)]
    return [name for name, n in named if n > 1 and (n == factor or abs(1 / n - factor) < SAME)]


def always_two(points: Sequence[Shapes]) -> list[str]:
    """Which sizes are 2 at every point: a law with a 2 in it may mean them."""
    tables = [dict(_numbers(shapes)) for shapes in points]
    return [name for name in tables[0] if all(table.get(name) == 2 for table in tables)]


def _holds(law: Callable[[float], float], times: float, n: int, factor: float) -> bool:
    value = times * _safe(law, n)
    return n >= 1 and math.isfinite(value) and abs(value - factor) <= SAME * abs(factor)


def _safe(law: Callable[[float], float], n: float) -> float:
    try:
        return law(n)
    except ZeroDivisionError:
        return math.inf


def _numbers(shapes: Shapes) -> Iterator[tuple[str, int]]:
    """Dimensions of every tensor, then how many entries each has, then products of two dimensions."""
    for name, shape in shapes:
        yield from _dimensions(name, shape)
    for name, shape in shapes:
        if len(shape) > 1:
            yield f"{name}.numel()", math.prod(shape)
    for name, shape in shapes:
        if len(shape) > 2:
            for a, b in itertools.combinations(range(len(shape)), 2):
                yield f"({name}.shape[{a}] * {name}.shape[{b}])", shape[a] * shape[b]
            for a in range(len(shape)) if len(shape) > 3 else ():
                yield f"({name}.numel() / {name}.shape[{a}])", math.prod(shape) // max(1, shape[a])


def _dimensions(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    for dim, n in enumerate(shape):
        yield f"{name}.shape[{dim}]", n
