"""A factor of the chain rule that varies over the entries: a function of the data for each row or column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.cause import Cause, Strength
from gradverify.verifier.numerics.diagnosis.evidence import Pair, Pairs
from gradverify.verifier.numerics.diagnosis.factor import SAME_FACTOR, factor_of

LEAST_TELLING = 8
"""Distinct values of the factor that must have been seen: fewer fit too many formulas."""

MULTIPLES = {1.0: "", -1.0: "-", 2.0: "2 * ", -2.0: "-2 * ", 0.5: "1/2 * ", -0.5: "-1/2 * "}
"""Numbers that the function may be multiplied by, and how they are written."""

_Function = Callable[[Tensor], Tensor]

_FUNCTIONS: tuple[tuple[str, _Function], ...] = (
    ("{}", lambda v: v),
    ("1 / {}", lambda v: 1 / v),
    ("{}**2", lambda v: v * v),
    ("1 / {}**2", lambda v: 1 / (v * v)),
    ("(1 - {})", lambda v: 1 - v),
    ("1 / (1 - {})", lambda v: 1 / (1 - v)),
    ("(1 - {}**2)", lambda v: 1 - v * v),
    ("1 / (1 - {}**2)", lambda v: 1 / (1 - v * v)),
    ("(1 + {}**2)", lambda v: 1 + v * v),
    ("1 / (1 + {}**2)", lambda v: 1 / (1 + v * v)),
    ("({} * (1 - {}))", lambda v: v * (1 - v)),
    ("1 / ({} * (1 - {}))", lambda v: 1 / (v * (1 - v))),
    ("exp({})", torch.exp),
    ("exp(-{})", lambda v: torch.exp(-v)),
    ("sqrt({})", torch.sqrt),
    ("1 / sqrt({})", lambda v: 1 / torch.sqrt(v)),
    ("sign({})", torch.sign),
    ("log({})", torch.log),
    ("1 / log({})", lambda v: 1 / torch.log(v)),
)
"""Factors that derivatives are made of, and their inverses: for one too many, and for a missing one."""


@dataclass(frozen=True)
class _Values:
    """A value for every entry of one side of the block."""

    name: str
    of: Callable[[Pair], Tensor | None]
    """One value for each column, or for each row."""


def chain_factor(pairs: Pairs) -> Cause | None:
    """What backward gives is the true block with each column, or each row, times a function of the data."""
    for side in ("column", "row"):
        for values in _values(pairs[0], side):
            found = _matching(pairs, side, values)
            if found is not None:
                return Cause("chain-factor", Strength.WEAK, law=found)
    return None


def _matching(pairs: Pairs, side: str, values: _Values) -> str | None:
    given = [values.of(pair) for pair in pairs]
    if any(v is None for v in given):
        return None
    known = [v for v in given if v is not None]
    for text, function in _FUNCTIONS:
        factors = [function(v) for v in known]
        multiple = _multiple(pairs[0], side, factors[0]) if _telling(factors) else None
        if multiple is not None and all(
            _holds(p, side, multiple * f) for p, f in zip(pairs, factors, strict=True)
        ):
            return MULTIPLES[multiple] + text.replace("{}", values.name)
    return None


def _multiple(pair: Pair, side: str, factor: Tensor) -> float | None:
    """Which of `MULTIPLES` a point allows."""
    spread = factor[None, :] if side == "column" else factor[:, None]
    c = factor_of(pair.claimed[pair.known], (spread * pair.true)[pair.known])
    return None if c is None else next((k for k in MULTIPLES if abs(c - k) <= SAME_FACTOR), None)


def _telling(factors: list[Tensor]) -> bool:
    """Whether the factor takes several values, and is finite: one value is no function of the data."""
    joined = torch.cat(factors)
    return bool(joined.isfinite().all()) and torch.unique(joined).numel() >= LEAST_TELLING


def _holds(pair: Pair, side: str, factor: Tensor) -> bool:
    spread = factor[None, :] if side == "column" else factor[:, None]
    return pair.explained_by(spread * pair.true, spread.abs() * pair.bound)


def _values(pair: Pair, side: str) -> Iterator[_Values]:
    """The side's own tensor, others of its shape, then reductions along each dimension of all of these."""
    shape = pair.source_block.shape if side == "column" else pair.output_block.shape
    for name, of in _tensors(pair):
        yield _Values(name, _if_shaped(of, side))
    for name, of in _tensors(pair):
        for dim in range(len(shape)):
            for kind, reduce in _REDUCTIONS:
                yield _Values(f"{name}.{kind}({dim})", _reduced(of, side, dim, reduce))


_Tensor = Callable[[Pair], Tensor]

_REDUCTIONS: tuple[tuple[str, Callable[[Tensor, int], Tensor]], ...] = (
    ("norm", lambda t, dim: t.norm(dim=dim, keepdim=True)),
    ("sum", lambda t, dim: t.sum(dim, keepdim=True)),
    ("mean", lambda t, dim: t.mean(dim, keepdim=True)),
    ("std", lambda t, dim: t.std(dim, keepdim=True, correction=0)),
)


def _tensors(pair: Pair) -> Iterator[tuple[str, _Tensor]]:
    """The inputs and the output of a block, shaped; the block's own input first."""
    blocks = range(len(pair.point.inputs.blocks))
    for k in sorted(blocks, key=lambda k: k != pair.source):
        yield pair.point.input_names[k], _input(k)
    yield pair.output_name, lambda p: p.y.reshape(p.output_block.shape)


def _input(k: int) -> _Tensor:
    def values(pair: Pair) -> Tensor:
        block = pair.point.inputs.blocks[k]
        return pair.point.x[block.start : block.stop].reshape(block.shape)

    return values


def _side_shape(pair: Pair, side: str) -> tuple[int, ...]:
    return pair.source_block.shape if side == "column" else pair.output_block.shape


def _if_shaped(of: _Tensor, side: str) -> Callable[[Pair], Tensor | None]:
    """Values that broadcast to the side's shape."""

    def values(pair: Pair) -> Tensor | None:
        tensor, shape = of(pair), _side_shape(pair, side)
        try:
            return tensor.expand(shape).reshape(-1)
        except RuntimeError:
            return None

    return values


def _reduced(
    of: _Tensor, side: str, dim: int, reduce: Callable[[Tensor, int], Tensor]
) -> Callable[[Pair], Tensor | None]:
    def values(pair: Pair) -> Tensor | None:
        tensor, shape = of(pair), _side_shape(pair, side)
        if dim >= tensor.dim() or tensor.shape != shape:
            return None
        return reduce(tensor, dim).expand(shape).reshape(-1)

    return values
