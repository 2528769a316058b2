"""A factor that changes with the sizes: which of them, and how."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from gradverify.verifier.diagnose.evidence import Shapes

SAME = 1e-6
"""A law holds when it gives the fitted factor to within this share."""

_LAWS: tuple[tuple[str, Callable[[float], float]], ...] = (
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
    for numbers, laws in ((_numbers, _LAWS), (_quotients, _LAWS[:1])):
        tables = [dict(numbers(shapes)) for shapes, _ in factors]
        for (multiple, times), (form, law), name in itertools.product(_MULTIPLES, laws, tables[0]):
            if all(
                name in table and _is_near(law, times, table[name], c)
                for table, (_, c) in zip(tables, factors, strict=True)
            ):
                return _written(multiple, form.format(name))
    return ""


def sizes_equal_to(shapes: Shapes, factor: float) -> list[str]:
    """Which sizes have the value of a factor, or its inverse: where one size was seen, it may be these."""
    return [name for name, n in _dimensions(shapes) if n > 1 and (n == factor or abs(1 / n - factor) < SAME)]


def _written(multiple: str, form: str) -> str:
    """`2 / n`, and not `2 * 1 / n`."""
    if not form.startswith("1 / "):
        return multiple + form
    return {"2 * ": "2 / ", "1/2 * ": "1/2 / "}.get(multiple, f"{multiple}1 / ") + form.removeprefix("1 / ")


def _is_near(law: Callable[[float], float], times: float, n: float, factor: float) -> bool:
    try:
        return n > 0 and abs(times * law(n) - factor) <= SAME * abs(factor)
    except ZeroDivisionError:
        return False


def _numbers(shapes: Shapes) -> Iterator[tuple[str, float]]:
    """Dimensions of every tensor, then how many entries each has, then products of two dimensions."""
    yield from _dimensions(shapes)
    for name, shape in shapes:
        if len(shape) > 1:
            yield f"{name}.numel()", math.prod(shape)
    for name, shape in shapes:
        if len(shape) > 2:
            for a, b in itertools.combinations(range(len(shape)), 2):
                yield f"({name}.shape[{a}] * {name}.shape[{b}])", shape[a] * shape[b]
            for a in range(len(shape)) if len(shape) > 3 else ():
                yield f"({name}.numel() / {name}.shape[{a}])", math.prod(shape) // max(1, shape[a])


def _quotients(shapes: Shapes) -> Iterator[tuple[str, float]]:
    """One dimension over another one."""
    for (above, m), (below, n) in itertools.permutations(_dimensions(shapes), 2):
        yield f"{above} / {below}", m / max(1, n)


def _dimensions(shapes: Shapes) -> Iterator[tuple[str, int]]:
    for name, shape in shapes:
        for dim, n in enumerate(shape):
            yield f"{name}.shape[{dim}]", n
