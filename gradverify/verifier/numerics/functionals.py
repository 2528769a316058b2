"""Random grad_outputs u, what backward gives for them, and whether forward has that along a direction.

For a tangent v, uᵀ(J v) from forward alone must equal (Aᵀu)·v from backward; each row of u is divided by what
it counts (`central.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.central import (
    DAMPING,
    FOUR_POINTS,
    CentralDifference,
    Level,
    Weighed,
    central_difference,
    value_at,
)
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.probes import signed_values
from gradverify.verifier.numerics.problem import Gradients, Problem

MAGNITUDES = (-(2.0**12), 2.0**-20)
"""Sizes of grad_output: a backward that clamps, thresholds or squares it can satisfy one of them only. No
larger, since a right backward may round relative to grad_output (`matrix_exp` scales it with its matrix)."""

ALONE = (1.0,)
"""The same where an input is probed alone: that backward is linear has been seen."""

KEPT_ROWS = 4096
"""Probes for outputs of up to this many rows are kept, since the same sizes come again."""

BESIDE = 2.0**-5
"""How far a row that does not move is followed, in units of each entry's size, and has to stay on one side:
one that rounds to bfloat16 (2^-8) inside makes two steps there at least."""

Asked = tuple[tuple[float, int | None], ...]
"""For each grad_output its magnitude, and the one output that it is defined for, by number; None for all."""

BackEach = Callable[[Sequence[Sequence[Tensor | None]]], Returned[list[Gradients]] | Raised]
"""The gradients for several sets of grad_outputs."""


@dataclass(frozen=True)
class ProofPoint:
    """Where a proof is tried."""

    problem: Problem
    inputs: Layout
    x: Tensor
    """The inputs, N entries."""
    tangent: Tensor
    """v, N entries."""
    key: int
    """Chooses the probes."""
    back_each: BackEach | None
    """Backward through a graph that is there already."""
    rtol: float
    atol: float | None
    least: float = 0.0
    """The derivative along v by which a row counts at least."""
    damping: float = DAMPING
    """A row counts by no less than the mean of its output's over this."""

    @cached_property
    def typical(self) -> float:
        """What one entry of ordinary size counts among all, inverted."""
        return math.sqrt(self.problem.outputs.size * self.inputs.size)

    @property
    def moving(self) -> list[int]:
        """The inputs that have entries, by number."""
        return [number for number, length in enumerate(self.inputs.lengths) if length]

    def visible(self, weighed: Weighed, level: Level) -> bool:
        """Whether errors of rtol are larger than what is allowed, in every row that is not below atol."""
        return weighed.sees(level.allowed, self.rtol, lambda: noticed(self.atol or 0.0, self.tangent))

    @cached_property
    def unmoved(self) -> Sequence[Tensor]:
        """For each input its entries (bool) that are not finite.

        No step moves them, so the derivative of forward by them is exactly zero.
        """
        return self.inputs.cut(~self.x.isfinite())

    def alone(self, number: int) -> Tensor:
        """The direction in which one input moves alone, N entries."""
        tangent = torch.zeros_like(self.tangent)
        block = self.inputs.blocks[number]
        tangent[block.start : block.stop] = self.tangent[block.start : block.stop]
        return tangent

    def flat_beside(self, tangent: Tensor, near: float, below: float = 0.0) -> Tensor | None:
        """Rows (bool, M) that are far along a direction, on one side, what they are at a share `near` of it.

        Or differ from it by what a derivative of no more than `below` makes. None where forward raises.
        """
        moved = self.inputs.moving(self.x, tangent)
        values: list[Tensor] = []
        for share in (near, BESIDE, -BESIDE):
            value = value_at(self.problem, moved(share))
            if value is None:
                return None
            values.append(value.clone())  # forward may return the same memory every time
        here, ahead, behind = values
        if below:
            ahead, behind = (
                torch.where((v - here).abs() <= below * BESIDE, here, v) for v in (ahead, behind)
            )
        return (ahead == here) | (behind == here)

    def along(self, tangent: Tensor, level: Level) -> CentralDifference | None:
        """What forward has along a direction."""
        return central_difference(self.problem, self.inputs, self.x, tangent, level, self.least, self.damping)


@dataclass(frozen=True)
class Probes:
    """Several grad_outputs before they are weighed, drawn when they are asked for."""

    lengths: tuple[int, ...]
    """How many rows each output has, M together."""
    key: int
    asked: Asked
    rows: Tensor | None = None
    """Those that count (bool, M); None for all."""

    @property
    def values(self) -> Tensor:
        """One line of M entries for each, magnitude included; zero where nothing counts. Read only."""
        kept = sum(self.lengths) <= KEPT_ROWS
        drawn = (_kept_lines if kept else _drawn_lines)(self.lengths, self.key, self.asked)
        return drawn if self.rows is None else drawn * self.rows

    def weighed(self, by: Weighed) -> Tensor:
        """The same with every row divided by what it counts; fresh."""
        values = self.values
        if self.rows is None and sum(self.lengths) > KEPT_ROWS:  # nobody else holds it
            return values.div_(by.size)
        return values / by.size

    @property
    def scales(self) -> tuple[float, ...]:
        """The size of each, times the root of the number of rows that it weighs."""
        counts = [sum(self.lengths) if only is None else self.lengths[only] for _, only in self.asked]
        if self.rows is not None:
            counting = self.values != 0
            counts = counting.sum(dim=1).tolist()
        return tuple(abs(m) * math.sqrt(n) for (m, _), n in zip(self.asked, counts, strict=True))


@dataclass(frozen=True)
class Functionals:
    """Several grad_outputs u and what backward gave for them."""

    probes: Probes
    weighed: Weighed
    """By whose sizes the probes were divided."""
    expected: list[float]
    """u · change of that difference for every u: worked out before user code could write into u."""
    gradients: tuple[tuple[Tensor | None, ...], ...]
    """For each u a vector for each input."""

    def close(self, inputs: Layout, step: Tensor, weighed: Weighed, allowed: float) -> list[float] | None:
        """What each input has of G(u)·T for the first u, if all sum to u·J T, for every u; else None.

        `step` is T, by which `weighed` changed. Told for rows of weight one, as `allowed` is.
        """
        expected = self.expected
        if weighed is not self.weighed:
            expected = (self.probes.weighed(self.weighed) @ weighed.change).tolist()
        relative = weighed.unit / self.weighed.unit
        steps, scales = inputs.cut(step), self.probes.scales
        first: list[float] = []
        for number, gradients in enumerate(self.gradients):
            shares = [_dot(g, part) for g, part in zip(gradients, steps, strict=True)]
            residual = expected[number] - FOUR_POINTS * sum(shares)
            scale = relative * scales[number]
            if not abs(residual) <= allowed * scale:  # also where it is NaN
                return None
            first = first or [FOUR_POINTS * s / scale for s in shares]
        return first

    def left(self, inputs: Layout, step: Tensor, weighed: Weighed) -> list[float]:
        """u·J T less G(u)·T for every u, for rows of weight one."""
        relative = weighed.unit / self.weighed.unit
        expected = (self.probes.weighed(self.weighed) @ weighed.change).tolist()
        steps = inputs.cut(step)
        return [
            (wanted - FOUR_POINTS * sum(_dot(g, part) for g, part in zip(gradients, steps, strict=True)))
            / (relative * scale)
            for wanted, gradients, scale in zip(expected, self.gradients, self.probes.scales, strict=True)
        ]

    def vanish(self, number: int | None = None, below: float = 0.0) -> bool:
        """Whether every gradient, or every one for one input, is exactly zero.

        Or no entry is more than `below`, for grad_outputs of ordinary size.
        """
        root = math.sqrt(sum(self.probes.lengths))
        return all(
            g is None or not bool((~(g.abs() <= below * scale / root)).any())
            for scale, line in zip(self.probes.scales, self.gradients, strict=True)
            for g in (line if number is None else line[number : number + 1])
        )

    def vanish_where(self, unmoved: Sequence[Tensor]) -> bool:
        """Whether every gradient is exactly zero at the entries that cannot be moved."""
        return all(
            g is None or not g[mask].count_nonzero().item()
            for line in self.gradients
            for g, mask in zip(line, unmoved, strict=True)
        )


def noticed(atol: float, tangent: Tensor) -> float:
    """What an error of atol in one entry makes in the derivative along an ordinary tangent."""
    size: float = torch.linalg.vector_norm(tangent).item()
    return atol * size / math.sqrt(tangent.numel())


def pull_back(
    point: ProofPoint,
    weighed: Weighed,
    magnitudes: tuple[float, ...] = MAGNITUDES,
    rows: Tensor | None = None,
) -> Functionals | None:
    """Gradients for all outputs together, at each magnitude; or at one, and for each output alone.

    `rows` (bool, M) are those that count, None for all. None where backward raises.
    """
    outputs = point.problem.outputs
    probes = probes_of(outputs, point.key, tuple(m * weighed.unit for m in magnitudes), rows)
    # Where forward is flat nothing weighs a row: all count alike.
    u = probes.values.clone() if weighed.flat else probes.weighed(weighed)
    expected = (u @ weighed.change).tolist()
    lines = u.unbind(0)
    cotangents = [
        _cotangent(outputs, line, only) for line, (_, only) in zip(lines, probes.asked, strict=True)
    ]
    result = (
        point.problem.pull_back_each(point.problem.primals, cotangents)
        if point.back_each is None
        else point.back_each(cotangents)
    )
    if isinstance(result, Raised):
        return None
    gradients = tuple(point.inputs.flattened(given) for given in result.value)
    return Functionals(probes, weighed, expected, gradients)


def probes_of(outputs: Layout, key: int, magnitudes: tuple[float, ...], rows: Tensor | None = None) -> Probes:
    """One grad_output for each magnitude; for several outputs one for all, and one for each output alone."""
    lengths = tuple(outputs.lengths)
    asked: list[tuple[float, int | None]] = [(m, None) for m in magnitudes]
    if len(lengths) > 1:
        asked = [asked[0], *((magnitudes[-1], k) for k, length in enumerate(lengths) if length)]
    return Probes(lengths, key, tuple(asked), rows)


def _drawn_lines(lengths: tuple[int, ...], key: int, asked: Asked) -> Tensor:
    """One line for each."""
    count = sum(lengths)
    values = torch.zeros(len(asked), count, dtype=torch.float64)
    for number, (magnitude, only) in enumerate(asked):
        start = 0 if only is None else sum(lengths[:only])
        stop = count if only is None else start + lengths[only]
        drawn = signed_values(stop - start, key + 7 * number + 1)
        torch.mul(drawn, magnitude, out=values[number, start:stop])
    return values


_kept_lines = lru_cache(maxsize=64)(_drawn_lines)


def _cotangent(outputs: Layout, flat: Tensor, only: int | None) -> Sequence[Tensor | None]:
    shaped = outputs.shaped(flat)
    return shaped if only is None else [t if number == only else None for number, t in enumerate(shaped)]


def _dot(gradient: Tensor | None, step: Tensor) -> float:
    return 0.0 if gradient is None else torch.dot(gradient, step).item()
