"""A factor of the chain rule that varies over the entries: one for each column, row, or slice of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.diagnose.cause import Cause, Strength
from gradverify.verifier.diagnose.evidence import Pair, Pairs
from gradverify.verifier.diagnose.formulas import (
    ABOUT,
    FUNCTIONS,
    MULTIPLES,
    POWERS_OF_SUM,
    REDUCTIONS,
    WITH_EPSILON,
)
from gradverify.verifier.diagnose.named_values import Side, named_tensors, side_shape, spread

LEAST_TELLING = 8
"""Distinct values of the factor that must have been seen: fewer fit too many formulas."""

NONE = 1e-5
"""Factors that are 1 within this share are none: anything that is about 1 would be a law of them."""


LARGEST_EPSILON = 0.1
"""What is added under a root to keep it from zero is smaller than this."""

SAME_EPSILON = 1e-6
"""... and the same everywhere, to within this share of the factor's square."""


@dataclass(frozen=True)
class _Lines:
    """The factor of every column, or row, of a block."""

    pair: Pair
    factors: Tensor
    judged: Tensor
    """bool: lines in which the function depends on anything."""


def chain_factor(pairs: Pairs) -> Cause | None:
    """What backward gives is the true block with each column, or each row, times a function of the data."""
    for side in ("column", "row"):
        lines = _fitted(pairs, side)
        law = _law(lines, side) if lines is not None else None
        if law is not None:
            return Cause("chain-factor", Strength.WEAK, law=law)
    return None


def _fitted(pairs: Pairs, side: Side) -> list[_Lines] | None:
    """The factors of all points; None where some entry has another one than its line, or a line is lost."""
    found = []
    for pair in pairs:
        axis = 0 if side == "column" else 1
        true = torch.where(pair.known, pair.true, 0.0)
        claimed = torch.where(pair.known, pair.claimed, 0.0)
        square = (true * true).sum(axis)
        judged = pair.nonzero.any(dim=axis)
        factors = torch.where(judged, (claimed * true).sum(axis) / square.clamp_min(TINIEST), 1.0)
        if bool((factors[judged] == 0).any()) or not judged.any():
            return None
        shaped = factors.unsqueeze(axis)
        if not pair.explained_by(shaped * pair.true, shaped.abs() * pair.bound):
            return None
        found.append(_Lines(pair, factors, judged))
    return found


TINIEST = torch.finfo(torch.float64).tiny


def _law(lines: Sequence[_Lines], side: Side) -> str | None:
    """The first function of the data that gives every factor."""
    factors = [each.factors[each.judged] for each in lines]
    joined = torch.cat(factors)
    if torch.unique(joined).numel() < LEAST_TELLING or bool((joined - 1).abs().max() <= NONE):
        return None
    for name, of in _values(lines[0].pair, side):
        given = [of(each.pair) for each in lines]
        if any(v is None for v in given):
            continue
        values = [v[each.judged] for v, each in zip(given, lines, strict=True) if v is not None]
        for text, function in FUNCTIONS:
            candidates = [function(v) for v in values]
            multiple = next((k for k in MULTIPLES if _same(factors[0], k * candidates[0])), None)
            if multiple is not None and all(
                _same(c, multiple * v) for c, v in zip(factors, candidates, strict=True)
            ):
                return written(multiple, text.replace("{}", name))
    return _with_epsilon(lines, side, factors)


def written(multiple: float, formula: str) -> str:
    """A multiple of a formula as people write it: `1 / (2 * x)`, not `1/2 * 1 / x`."""
    if multiple == -1 and formula.startswith("1 / (1 - ") and formula.count("(") == 1:
        return f"1 / ({formula[len('1 / (1 - ') : -1]} - 1)"
    if not formula.startswith("1 / ") or abs(multiple) == 1:
        return MULTIPLES[multiple] + formula
    below, sign = formula.removeprefix("1 / "), "-" if multiple < 0 else ""
    return f"{sign}1 / (2 * {below})" if abs(multiple) < 1 else f"{sign}2 / {below}"


def _same(factors: Tensor, candidate: Tensor) -> bool:
    return bool((candidate - factors).abs().le(ABOUT * factors.abs()).all())


def _values(pair: Pair, side: Side) -> Iterator[tuple[str, Callable[[Pair], Tensor | None]]]:
    """Tensors that broadcast to the side, then reductions of those of its shape along each dimension."""
    tensors = list(named_tensors(pair))
    for tensor in tensors:
        yield tensor.name, _spread_over(tensor.of, side)
    for tensor in tensors:
        for dim in range(len(side_shape(pair, side))):
            parts = tensor.is_complex and dim == len(side_shape(pair, side)) - 1
            for text, reduce in REDUCTIONS[:1] if parts else REDUCTIONS:
                name = f"{tensor.name}.abs()" if parts else f"{tensor.name}.{text.format(dim=dim)}"
                yield name, _reduced(tensor.of, side, dim, reduce)


def _spread_over(of: Callable[[Pair], Tensor], side: Side) -> Callable[[Pair], Tensor | None]:
    return lambda pair: spread(of(pair), pair, side)


def _reduced(
    of: Callable[[Pair], Tensor], side: Side, dim: int, reduce: Callable[[Tensor, int], Tensor]
) -> Callable[[Pair], Tensor | None]:
    def values(pair: Pair) -> Tensor | None:
        tensor = of(pair)
        if tensor.shape != side_shape(pair, side):
            return None
        return spread(reduce(tensor, dim), pair, side)

    return values


def _with_epsilon(lines: Sequence[_Lines], side: Side, factors: Sequence[Tensor]) -> str | None:
    """A variance or the like with one small number added everywhere; its root, or the inverse of these."""
    joined = torch.cat(list(factors))
    for tensor in named_tensors(lines[0].pair):
        for dim in range(len(side_shape(lines[0].pair, side))):
            for text, reduce in WITH_EPSILON:
                given = [_reduced(tensor.of, side, dim, reduce)(each.pair) for each in lines]
                if any(v is None for v in given):
                    continue
                values = torch.cat([v[e.judged] for v, e in zip(given, lines, strict=True) if v is not None])
                for form, power in POWERS_OF_SUM:
                    epsilon = _added(joined**power, values)
                    if epsilon is not None:
                        inner = text.format(name=tensor.name, dim=dim, epsilon=f"{epsilon:.2g}")
                        return form.format(inner)
    return None


def _added(sums: Tensor, values: Tensor) -> float | None:
    """The one small number by which all sums exceed the values."""
    added = sums - values
    epsilon = added.median()
    same = (added - epsilon).abs() <= SAME_EPSILON * epsilon + ABOUT * sums
    return epsilon.item() if 0 < epsilon.item() < LARGEST_EPSILON and bool(same.all()) else None
