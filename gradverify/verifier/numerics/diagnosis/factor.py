"""The whole block is the true one times one number: a constant, a size, or a function of the data."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.cause import Cause, Strength
from gradverify.verifier.numerics.diagnosis.evidence import Pair, Pairs, same_everywhere, sizes_of, wrong_ones
from gradverify.verifier.numerics.diagnosis.sizes import size_law

LEAST_FACTORS = 3
"""Points whose factors are compared, where no law of them is known."""

LEAST_EXPLAINED = 3
"""Entries that one factor must explain at every point: one entry has a factor anyway."""

SAME_FACTOR = 1e-6
"""Factors that are fitted at two points are the same number within this share."""


def zero(pairs: Pairs) -> Cause | None:
    """Backward gives zeros where the function does depend on the input."""
    if any(pair.claimed.any() for pair in pairs):
        return None
    rest = wrong_ones(pairs)[0]
    others = [k for k in range(len(rest.point.outputs.blocks)) if k != rest.output]
    if any(Pair(rest.point, k, rest.source).claimed.any() for k in others):
        return Cause("ignored-output", other=rest.output_name)
    return Cause("zero", factor=0.0)


def constant_factor(pairs: Pairs) -> Cause | None:
    """Every entry is off by one factor: the same at all points, or a law of the sizes."""
    factors = fitted(pairs)
    if factors is None:
        return None
    values = [c for _, c in factors]
    if same_everywhere(values, SAME_FACTOR):
        return Cause("constant-factor", factor=values[0], law=_literal(pairs[0], values[0]))
    if not _depends_on_sizes_alone(factors):
        return None
    law = size_law([(pair.point.shapes, c) for pair, c in factors]) or _size_and_literal(factors)
    return Cause("constant-factor", factor=values[0], law=law) if law else None


def _size_and_literal(factors: list[tuple[Pair, float]]) -> str:
    """A size, or its root, with a literal as the other factor, as in `alpha / rank`; empty if it is none."""
    for name, value in factors[0][0].point.scalars:
        same = all(dict(pair.point.scalars).get(name) == value for pair, _ in factors)
        if not same or value == 0 or abs(value) == 1:
            continue
        for part, form in ((value, "{0} * {1}"), (1 / value, "{1} / {0}")):
            size = size_law([(pair.point.shapes, c / part) for pair, c in factors], simple=True)
            if size.startswith("1 / "):
                inverse = {"{0} * {1}": "{0} / {1}", "{1} / {0}": "1 / ({0} * {1})"}[form]
                return inverse.format(name, size.removeprefix("1 / "))
            if size:
                return form.format(name, size)
    return ""


def scalar_chain(pairs: Pairs) -> Cause | None:
    """One factor for every entry of a point, and from point to point a power of a number in the data."""
    factors = fitted(pairs)
    if factors is None or len(factors) < 3 or _depends_on_sizes_alone(factors):
        return None
    tables = [dict(_data(pair)) for pair, _ in factors]
    for law in tables[0]:
        found = [table.get(law) for table in tables]
        if all(
            v is not None and abs(v - c) <= SAME_FACTOR * abs(c)
            for v, (_, c) in zip(found, factors, strict=True)
        ):
            return Cause("chain-factor", Strength.WEAK, law=law, kind="scalar")
    return None


def point_factor(pairs: Pairs) -> Cause | None:
    """One factor for every entry of a point, another at every draw, and no law of it is known."""
    factors = fitted(pairs)
    if factors is None or len(factors) < LEAST_FACTORS or _depends_on_sizes_alone(factors):
        return None
    entries = min(int(pair.informative.sum()) for pair, _ in factors)
    if entries < LEAST_EXPLAINED or not all(pair.is_wrong for pair, _ in factors):
        return None
    shown = dict.fromkeys(f"{c:.4g}" for _, c in factors)
    return Cause("chain-factor", Strength.WEAK, law=", ".join(shown), kind="points")


def fitted(pairs: Pairs) -> list[tuple[Pair, float]] | None:
    """The factor of each point that has one to show; None where some entry has another one."""
    factors = []
    for pair in pairs:
        if not pair.informative.any():
            continue
        c = factor_of(pair.claimed[pair.known], pair.true[pair.known])
        if c is None or c == 0 or not pair.explained_by(c * pair.true, abs(c) * pair.bound):
            return None
        factors.append((pair, c))
    return factors or None


def factor_of(claimed: Tensor, true: Tensor) -> float | None:
    """The least-squares factor; None where nothing depends on anything."""
    square = (true @ true).item()
    return (claimed @ true).item() / square if square > 0 else None


def _depends_on_sizes_alone(factors: list[tuple[Pair, float]]) -> bool:
    by_size: dict[object, list[float]] = {}
    for pair, c in factors:
        by_size.setdefault(sizes_of(pair), []).append(c)
    return all(same_everywhere(values, SAME_FACTOR) for values in by_size.values())


def contradicts(pair: Pair, cause: Cause) -> bool:
    """Whether a block that is wrong where literals have other values is not off by the factor of a cause."""
    factors = fitted([pair]) if pair.is_wrong else []
    if of_a_literal_and_size(pair, cause.law):
        return factors is None  # its value there is another one
    expected = dict(_literals(pair)).get(cause.law, cause.factor or 0.0)
    return factors is None or any(abs(c - expected) > SAME_FACTOR * abs(c) for _, c in factors)


def of_a_literal(pair: Pair, law: str) -> bool:
    """Whether a law is an expression in a literal argument: one that another value refutes holds nowhere."""
    return law in dict(_literals(pair))


def of_a_literal_and_size(pair: Pair, law: str) -> bool:
    """Whether it is a literal argument with a size as the other factor."""
    parts = law.replace("(", " ").replace(")", " ").split()
    return len(parts) > 1 and any(name in parts for name, _ in pair.point.scalars) and "shape" in law


def _literal(pair: Pair, factor: float) -> str:
    """The one expression in a literal argument with the value of a factor; empty where several have it."""
    if abs(factor) == 1.0:
        return ""
    found = [text for text, n in _literals(pair) if abs(n - factor) <= SAME_FACTOR * abs(factor)]
    return found[0] if len(found) == 1 else ""


def _literals(pair: Pair) -> Iterator[tuple[str, float]]:
    """Expressions in a literal argument that a factor may be, and their values."""
    for name, value in pair.point.scalars:
        yield from ((name, value), (f"-{name}", -value), (f"1 - {name}", 1 - value))
        yield f"1 / {name}", 1 / value if value else 0.0
        yield f"1 / (1 - {name})", 1 / (1 - value) if value != 1 else 0.0


def _data(pair: Pair) -> Iterator[tuple[str, float]]:
    """Numbers that the values of one tensor come to, and their powers."""
    tensors = [
        (name, pair.point.x[b.start : b.stop])
        for name, b in zip(pair.point.input_names, pair.point.inputs.blocks, strict=True)
    ]
    tensors.append((pair.output_name, pair.y))
    for name, values in tensors:
        if values.numel() == 1:
            named = [(name, values.reshape(()))]
        else:
            named = [(f"norm({name})", values.norm()), (f"{name}.sum()", values.sum())]
            named += [(f"{name}.max()", values.max()), (f"{name}.abs().max()", values.abs().max())]
        for text, v in named:
            if v != 0:
                yield from _powers(text, v)


def _powers(text: str, v: Tensor) -> Iterator[tuple[str, float]]:
    forms: tuple[tuple[str, Tensor], ...] = (
        (text, v),
        (f"1 / {text}", 1 / v),
        (f"{text}**2", v * v),
        (f"1 / {text}**2", 1 / (v * v)),
        (f"exp({text})", torch.exp(v)),
        (f"exp(-{text})", torch.exp(-v)),
    )
    for name, value in forms:
        yield name, value.item()
        yield f"-{name}", -value.item()
