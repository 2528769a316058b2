"""A factor of the chain rule that varies over the entries: one for each column, row, or slice of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.diagnose.evidence import Cause, Pair, Pairs, of_gradient
from gradverify.verifier.diagnose.hypotheses.branch import Side, named_values, side_shape, spread

LEAST_TELLING = 8
"""Distinct values of the factor that must have been seen: fewer fit too many formulas."""

NONE = 1e-5
"""Factors that are 1 within this share are none: anything that is about 1 would be a law of them."""

ABOUT = 1e-6
"""A factor is a function of the data if it is that within this share: a measured one has some nine digits."""

TINIEST = torch.finfo(torch.float64).tiny

MULTIPLES = {1.0: "", -1.0: "-", 2.0: "2 * ", -2.0: "-2 * ", 0.5: "1/2 * ", -0.5: "-1/2 * "}
"""Numbers that the function may be multiplied by, and how they are written."""

FUNCTIONS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("{}", lambda v: v),
    ("{}**2", lambda v: v * v),
    ("(1 - {})", lambda v: 1 - v),
    ("(1 + {})", lambda v: 1 + v),
    ("(1 - {}**2)", lambda v: 1 - v * v),
    ("(1 + {}**2)", lambda v: 1 + v * v),
    ("({} * (1 - {}))", lambda v: v * (1 - v)),
    ("exp({})", torch.exp),
    ("exp(2 * {})", lambda v: torch.exp(2 * v)),
    ("sqrt({})", torch.sqrt),
    ("sign({})", torch.sign),
    ("log({})", torch.log),
    ("sigmoid({})", torch.sigmoid),
    ("sigmoid(-{})", lambda v: torch.sigmoid(-v)),
    ("(sigmoid({}) * sigmoid(-{}))", lambda v: torch.sigmoid(v) * torch.sigmoid(-v)),
    ("tanh({})", torch.tanh),
    ("(1 - tanh({})**2)", lambda v: 1 - torch.tanh(v) ** 2),
    ("(1 + tanh({}))", lambda v: 1 + torch.tanh(v)),
    ("sin({})", torch.sin),
    ("cos({})", torch.cos),
)
"""Factors that derivatives are made of: one too many, or their inverse where one is missing."""

REDUCTIONS: tuple[tuple[str, Callable[[Tensor, int], Tensor]], ...] = (
    ("norm(dim={dim}, keepdim=True)", lambda t, dim: t.norm(dim=dim, keepdim=True)),
    ("sum({dim}, keepdim=True)", lambda t, dim: t.sum(dim, keepdim=True)),
    ("mean({dim}, keepdim=True)", lambda t, dim: t.mean(dim, keepdim=True)),
    ("std({dim}, keepdim=True, correction=0)", lambda t, dim: t.std(dim, keepdim=True, correction=0)),
)
"""Numbers that a slice comes to, as they can be copied: `x.norm(1)` is another one."""

SIDES: tuple[Side, ...] = ("column", "row")


@dataclass(frozen=True)
class _Lines:
    """The factor of every column, or row, of a block."""

    pair: Pair
    factors: Tensor
    judged: Tensor
    """bool: lines in which the function depends on anything."""


def chain_factor(pairs: Pairs) -> Cause | None:
    """What backward gives is the true block with each column, or each row, times a function of the data."""
    laws = (_law(lines, side) for side in SIDES if (lines := _fitted(pairs, side)) is not None)
    law = next(filter(None, laws), "")
    if not law:
        return None
    inverse = law.removeprefix("1 / ")
    return Cause(
        "chain-factor",
        f"{of_gradient(pairs[0])} is `{law}` times what it should be, entry by entry",
        f"Multiply by `{inverse}`: this factor of the chain rule is missing."
        if inverse != law
        else "Divide by it: a factor of the chain rule is one too many, or another is missing.",
        is_weak=True,
    )


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


def _law(lines: Sequence[_Lines], side: Side) -> str:
    """The first function of the data that gives every factor; empty where none does."""
    factors = [each.factors[each.judged] for each in lines]
    joined = torch.cat(factors)
    if torch.unique(joined).numel() < LEAST_TELLING or bool((joined - 1).abs().max() <= NONE):
        return ""
    tables = [_values(each.pair, side) for each in lines]
    for name in tables[0]:
        values = [t[name][each.judged] for t, each in zip(tables, lines, strict=True) if name in t]
        for text, function in FUNCTIONS if len(values) == len(lines) else ():
            candidates = [function(v) for v in values]
            for before, of_it in (("", candidates), ("1 / ", [1 / c for c in candidates])):
                multiple = next((k for k in MULTIPLES if _is_near(factors[0], k * of_it[0])), None)
                if multiple and all(_is_near(f, multiple * c) for f, c in zip(factors, of_it, strict=True)):
                    return written(multiple, before + text.replace("{}", name))
    return ""


def written(multiple: float, formula: str) -> str:
    """A multiple of a formula as people write it: `1 / (2 * x)`, not `1/2 * 1 / x`."""
    if multiple == -1 and formula.startswith("1 / (1 - ") and formula.count("(") == 1:
        return f"1 / ({formula[len('1 / (1 - ') : -1]} - 1)"
    if not formula.startswith("1 / ") or abs(multiple) == 1:
        return MULTIPLES[multiple] + formula
    below, sign = formula.removeprefix("1 / "), "-" if multiple < 0 else ""
    return f"{sign}1 / (2 * {below})" if abs(multiple) < 1 else f"{sign}2 / {below}"


def _is_near(factors: Tensor, candidate: Tensor) -> bool:
    return bool((candidate - factors).abs().le(ABOUT * factors.abs()).all())


def _values(pair: Pair, side: Side) -> dict[str, Tensor]:
    """Tensors that broadcast to the side, also by rows, then reductions of those of its shape."""
    tensors, shape = named_values(pair), side_shape(pair, side)
    # The parts of a complex number lie along a dimension that is not declared.
    is_complex = (pair.source_block if side == "column" else pair.output_block).is_complex
    reduced = {
        f"{name}.{text.format(dim=dim)}": reduce(tensor, dim)
        for name, tensor in tensors.items()
        if tensor.shape == shape and not is_complex
        for dim in range(len(shape))
        for text, reduce in REDUCTIONS
    }
    leading = {f"{name}[..., None]": t[..., None] for name, t in tensors.items() if 0 < t.dim() < len(shape)}
    candidates = {**tensors, **leading, **reduced}
    found = {name: spread(tensor, pair, side) for name, tensor in candidates.items()}
    return {name: values for name, values in found.items() if values is not None}
