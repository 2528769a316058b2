"""Wrong exactly where a value of the data satisfies a condition.

The tensors of a call by the names that a user would write: what a factor or a condition can be made of.

A factor of the chain rule that varies over the entries: one for each column, row, or slice of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradverify.verifier.diagnose.evidence import (
    Cause,
    Pair,
    Pairs,
    of_gradient,
    same_everywhere,
    times_too_large,
)
from gradverify.verifier.diagnose.hypotheses.factor import SAME_FACTOR, factor_of
from gradverify.verifier.numerics.problem import Block
from gradverify.verifier.questions.findings import number

Side = Literal["column", "row"]
"""`column` for the entries of the block's input, `row` for those of its output."""


def named_values(pair: Pair) -> dict[str, Tensor]:
    """The block's own input and output first, then the other inputs, the other outputs, and constants.

    Of complex tensors the parts, along a last dimension, and the magnitude.
    """
    point = pair.point
    inputs = list(_shaped(point.input_names, point.inputs.blocks, point.x))
    outputs = list(_shaped(point.output_names, point.outputs.blocks, point.y))
    own = (inputs.pop(pair.source), outputs.pop(pair.output))
    found = {name: values for name, _, values in (*own, *inputs, *outputs)}
    magnitudes = {
        f"{name}.abs()": values.norm(dim=-1, keepdim=True)
        for name, block, values in (*own, *inputs, *outputs)
        if block.is_complex
    }
    return {**found, **magnitudes, **dict(point.constants)}


def side_shape(pair: Pair, side: Side) -> tuple[int, ...]:
    """The shape of the tensor whose entries a side has."""
    return pair.source_block.shape if side == "column" else pair.output_block.shape


def spread(tensor: Tensor, pair: Pair, side: Side) -> Tensor | None:
    """A value for every entry of a side, where the tensor broadcasts to it."""
    try:
        return tensor.expand(side_shape(pair, side)).reshape(-1)
    except RuntimeError:
        return None


def _shaped(
    names: Iterable[str], blocks: Iterable[Block], flat: Tensor
) -> Iterator[tuple[str, Block, Tensor]]:
    for name, block in zip(names, blocks, strict=True):
        yield name, block, flat[block.start : block.stop].reshape(block.shape)


BY_CHANCE = 1e-5
"""Most chance that a condition separates so many values, right and wrong, without being the reason."""

LEAST_JUDGED = 12
"""Distinct values that must have been seen."""

LEAST_ON_EACH_SIDE = 2
"""... and on each side of the threshold."""

MINUS = " - "
"""Between the names of two values whose difference decides."""

NARROW = 0.5
"""A threshold is guessed only between values no further apart than this: inputs are mostly within ±2."""


@dataclass(frozen=True)
class _Split:
    """A condition that holds exactly where the gradient is wrong, and the values next to its threshold."""

    condition: str
    low: float
    high: float


def branch(pairs: Pairs) -> Cause | None:
    """The wrong entries are exactly those where a value lies above, below or beyond a threshold."""
    tables = [_variables(pair) for pair in pairs]
    for name in tables[0]:
        pooled = _pooled(pairs, [table.get(name) for table in tables])
        split = None if pooled is None else _split(name, *pooled, hypotheses=3 * len(tables[0]))
        if split is not None:
            right = sum(int((pair.informative & ~pair.wrong).sum()) for pair in pairs)
            factor = _factor(pairs)
            inside = "" if factor is None else f", where it {times_too_large(factor)}"
            return Cause(
                "branch",
                f"{of_gradient(pairs[0])} is wrong only where {_where(split, pairs[0])}{inside}; {right} "
                "other entries are right",
                "Backward takes another branch there than forward does, or has none.",
                factor=factor,
            )
    return None


def _where(split: _Split, pair: Pair) -> str:
    """The condition with what is known of its thresholds."""
    low, high = number(split.low), number(split.high)
    if not split.condition.endswith(" c"):
        return f"`{split.condition}`, a just below {low} and b just above {high}"
    if MINUS in split.condition and "|" not in split.condition:
        return f"`{split.condition.removesuffix('c')}0`"
    likely = {0.0, 1.0, -1.0} | {sign * value for _, value in pair.point.scalars for sign in (1, -1)}
    # A threshold that people write, where it is the only one between the values seen.
    inside = [n for n in likely if split.low <= n <= split.high and split.high - split.low <= NARROW]
    guess = f" ({number(inside[0])}?)" if len(inside) == 1 else ""
    return f"`{split.condition}`, c between {low} and {high}{guess}"


def _variables(pair: Pair) -> dict[str, Tensor]:
    """Values that every entry of a block has, broadcast to m × n, by name.

    The entry's own input and output first, then whatever has the shape of either, then differences.
    """
    (name, own), (output, _), *others = named_values(pair).items()
    found = {name: pair.x[None, :], output: pair.y[:, None]}
    if pair.source_block.is_complex:
        parts = {f"{name}.real": own[..., :1], f"{name}.imag": own[..., 1:]}
        found = {part: v.expand(own.shape).reshape(1, -1) for part, v in parts.items()} | found
    for other, values in others:
        column, row = spread(values, pair, "column"), spread(values, pair, "row")
        if column is not None:
            found[other], found[f"{name}{MINUS}{other}"] = column[None, :], (pair.x - column)[None, :]
        elif row is not None:
            found[other] = row[:, None]
    return found


def _pooled(pairs: Pairs, values: Sequence[Tensor | None]) -> tuple[Tensor, Tensor] | None:
    """Distinct values at right and at wrong entries of all points; None where there are too few."""
    right, wrong = [], []
    for pair, one in zip(pairs, values, strict=True):
        if one is None:
            return None
        spread_out = one.expand_as(pair.claimed)
        right.append(spread_out[pair.nonzero & ~pair.wrong])
        wrong.append(spread_out[pair.wrong])
    good, bad = torch.unique(torch.cat(right)), torch.unique(torch.cat(wrong))
    if not (good.isfinite().all() and bad.isfinite().all()):
        return None
    enough = min(good.numel(), bad.numel()) >= LEAST_ON_EACH_SIDE
    return (good, bad) if enough and good.numel() + bad.numel() >= LEAST_JUDGED else None


def _split(name: str, good: Tensor, bad: Tensor, *, hypotheses: int) -> _Split | None:
    chance = hypotheses * 2 / math.comb(good.numel() + bad.numel(), bad.numel())
    if chance > BY_CHANCE:
        return None
    for text, g, b in ((name, good, bad), (f"|{name}|", good.abs(), bad.abs())):
        found = _threshold(text, g, b)
        # Of two values, only which of them is larger is a condition that people write.
        if found is not None and (MINUS not in text or text != name or found.low < 0 < found.high):
            return found
    # One more threshold: as many more ways to draw them.
    if chance * good.numel() <= BY_CHANCE and not ((good > bad.min()) & (good < bad.max())).any():
        return _Split(f"a < {name} < b", bad.min().item(), bad.max().item())
    if chance * bad.numel() <= BY_CHANCE and not ((bad > good.min()) & (bad < good.max())).any():
        return _Split(f"{name} < a or {name} > b", good.min().item(), good.max().item())
    return None


def _threshold(text: str, good: Tensor, bad: Tensor) -> _Split | None:
    if bad.min() > good.max():
        return _Split(f"{text} > c", good.max().item(), bad.min().item())
    if bad.max() < good.min():
        return _Split(f"{text} < c", bad.max().item(), good.min().item())
    return None


def _factor(pairs: Pairs) -> float | None:
    """The one factor at all wrong entries, if it is one."""
    factors = []
    for pair in pairs:
        inside = pair.wrong & pair.nonzero
        if inside.any():
            c = factor_of(pair.claimed[inside], pair.true[inside])
            if c is None or not torch.allclose(
                pair.claimed[inside], c * pair.true[inside], rtol=1e-6, atol=1e-9 * pair.scale
            ):
                return None
            factors.append(c)
    if not factors or not same_everywhere(factors, SAME_FACTOR):
        return None
    return 0.0 if abs(factors[0]) < SAME_FACTOR else factors[0]


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
