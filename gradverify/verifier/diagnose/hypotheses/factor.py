"""The whole block is the true one times one number: nothing, a constant, or a size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from gradverify.verifier.checks.wording import number
from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.evidence import (
    Pair,
    Pairs,
    Shapes,
    has_other_sizes,
    same_everywhere,
    wrong_ones,
)
from gradverify.verifier.diagnose.words import of_gradient, times_too_large

SAME_FACTOR = 1e-6
"""Factors that are fitted at two points are the same number within this share."""

ADVICE = {
    -1.0: "Turn the sign.",
    2.0: "Is a term counted twice, or a 1/2 dropped?",
    0.5: "Was the 2 of a square dropped?",
}
"""What to do about a factor that has mostly one reason."""


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


def zero(pairs: Pairs) -> Cause | None:
    """Backward gives zeros where the function does depend on the input."""
    if any(pair.claimed.any() for pair in pairs):
        return None
    first = wrong_ones(pairs)[0]
    name, output = first.name, first.output_name
    others = [k for k in range(len(first.point.outputs.blocks)) if k != first.output]
    if any(Pair(first.point, k, first.source).claimed.any() for k in others):
        return Cause(
            "ignored-output",
            f"the part of the gradient of `{name}` that comes through output `{output}` is missing",
            f"Backward does not use the grad_output of `{output}` for `{name}`: add its term.",
        )
    return Cause(
        "zero",
        f"{of_gradient(first)} is zero at every entry",
        "Is it None, or zeros, or do the terms that it is made of cancel? If none is intended, say so in "
        f"the spec: `{name}: {{..., requires_grad: false}}`.",
        factor=0.0,
    )


def constant_factor(pairs: Pairs) -> Cause | None:
    """Every entry is off by one factor: the same at all points, or a law of the sizes."""
    factors = _fitted(pairs)
    if not factors:
        return None
    c = factors[0][1]
    what = f"{of_gradient(pairs[0])} {times_too_large(c)} at every entry"
    if same_everywhere([c for _, c in factors], SAME_FACTOR):
        return Cause("constant-factor", what, _of_constant(c, pairs), factor=c)
    law = size_law(factors) if _depends_on_sizes_alone(factors) else ""
    if not law:
        return None
    other = next(
        times_too_large(other) for _, other in factors if not same_everywhere([c, other], SAME_FACTOR)
    )
    what += f" (at another size it {other}): the factor is `{law}`"
    return Cause("constant-factor", what, _of_law(law), factor=c)


def factor_of(claimed: Tensor, true: Tensor) -> float | None:
    """The least-squares factor; None where nothing depends on anything."""
    square = (true @ true).item()
    return (claimed @ true).item() / square if square > 0 else None


def _fitted(pairs: Pairs) -> list[tuple[Shapes, float]] | None:
    """The factor of each point that has one to show; None where some entry has another one."""
    factors = []
    for pair in pairs:
        if not pair.informative.any():
            continue
        c = factor_of(pair.claimed[pair.known], pair.true[pair.known])
        if c is None or c == 0 or not pair.explained_by(c * pair.true, abs(c) * pair.bound):
            return None
        factors.append((pair.point.shapes, c))
    return factors


def _depends_on_sizes_alone(factors: Sequence[tuple[Shapes, float]]) -> bool:
    by_size: dict[Shapes, list[float]] = {}
    for shapes, c in factors:
        by_size.setdefault(shapes, []).append(c)
    return all(same_everywhere(values, SAME_FACTOR) for values in by_size.values())


def _of_constant(c: float, pairs: Pairs) -> str:
    """What to do about a factor that is the same everywhere, and what it may also be."""
    divide = f"Divide by {number(c)}." if abs(c) > 1 else f"Multiply by {number(1 / c)}."
    point = pairs[0].point
    same = [] if has_other_sizes(pairs) else sizes_equal_to(point.shapes, abs(c))
    same += [name for name, value in point.scalars if value and abs(c) in {abs(value), abs(1 / value)}]
    also = f" Here it may also be {' or '.join(f'`{name}`' for name in same[:2])}." if same else ""
    return ADVICE.get(round(c, 6), divide) + also


def _of_law(law: str) -> str:
    """What to do about a factor that follows the sizes."""
    above, _, below = law.partition(" / ")
    if below and " " not in above + below:
        inverse = {"1": below, "1/2": f"2 * {below}"}.get(above, f"{below} / {above}")
        return f"Multiply by `{inverse}`."
    mean = (
        " Is a sum taken where a mean is meant?" if law.endswith(("]", "numel()")) and " " not in law else ""
    )
    return f"Divide by `{law}`.{mean}"


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
    return [
        name
        for name, n in _dimensions(shapes)
        if n > 1 and (n == factor or abs(1 / n - factor) < SAME_FACTOR)
    ]


def _written(multiple: str, form: str) -> str:
    """`2 / n`, and not `2 * 1 / n`."""
    if not form.startswith("1 / "):
        return multiple + form
    return {"2 * ": "2 / ", "1/2 * ": "1/2 / "}.get(multiple, f"{multiple}1 / ") + form.removeprefix("1 / ")


def _is_near(law: Callable[[float], float], times: float, n: float, factor: float) -> bool:
    try:
        return n > 0 and abs(times * law(n) - factor) <= SAME_FACTOR * abs(factor)
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
