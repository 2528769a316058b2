"""The certificate: a backward verified by a few random probes, whatever the size of its Jacobian.

For a tangent v and a cotangent u, uᵀ(J v) from forward alone must equal (Aᵀu)·v from backward. J v is a
central difference D (`central.py`) along one direction in which every input entry moves by its own size, and
u weighs each row by the inverse of |D_i|, so that every row counts by its *relative* error. No error estimate
is needed: a residual below the threshold is itself the proof, because a wrong gradient and an error of the
difference cancel with a probability of nothing. Where it does not close, nothing is said, and the whole
Jacobian is measured instead.

(Random probing of a vector-Jacobian product is the dot-product test of adjoint codes: Claerbout, *Earth
Soundings Analysis*, 1992, ch. 5.)
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
    FOUR_POINTS,
    CentralDifference,
    Level,
    Weighed,
    central_difference,
)
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.probes import signed_values, tangent_of
from gradverify.verifier.numerics.problem import Gradients, Problem

LEVELS = (Level(2.0**-12, 2.0**-33), Level(2.0**-19, 2.0**-28))
"""The first resolves smooth functions, the second straddles fewer kinks. Measured on PyTorch's operator
database."""

FAR = Level(2.0**-4, 0.0)
"""A forward that is flat is asked once more at this step, in units of each entry's size: one that rounds to
bfloat16 (2^-8) inside looks flat at a smaller one."""

MAGNITUDES = (-(2.0**12), 2.0**-20)
"""Sizes of grad_output: a backward that clamps, thresholds or squares it can satisfy one of them only. No
larger, since a right backward may round relative to grad_output (`matrix_exp` scales it with its matrix)."""

ALONE = (1.0,)
"""The same where an input is probed alone: that backward is linear has been seen."""

KEPT_ROWS = 4096
"""Probes for outputs of up to this many rows are kept, since the same sizes come again."""

BackEach = Callable[[Sequence[Sequence[Tensor | None]]], Returned[list[Gradients]] | Raised]
"""The gradients for several sets of grad_outputs."""


@dataclass(frozen=True)
class Certificate:
    """Backward is the derivative at this point, by a proof that closed."""

    visible: float
    """The relative error of a typical entry that would have kept the proof from closing."""


@dataclass(frozen=True)
class _Point:
    """Where the proof is tried."""

    problem: Problem
    inputs: Layout
    x: Tensor
    """The inputs, N entries."""
    tangent: Tensor
    """v, N entries."""
    key: int
    back_each: BackEach | None
    rtol: float
    atol: float | None

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """How forward is asked, one after the other."""
        return LEVELS if self.atol is None else _coarser(self.rtol / self.typical)

    @cached_property
    def typical(self) -> float:
        """What one entry of ordinary size counts among all, inverted."""
        return math.sqrt(self.problem.outputs.size * self.inputs.size)

    def visible(self, found: CentralDifference, level: Level) -> bool:
        """Whether errors of rtol are larger than what is allowed, in every row that is not below atol."""
        return found.weighed.sees(level.allowed, self.rtol, lambda: noticed(self.atol or 0.0, self.tangent))

    @cached_property
    def unmoved(self) -> Sequence[Tensor]:
        """For each input its entries (bool) that are not finite.

        No step moves them, so the derivative of forward by them is exactly zero.
        """
        return self.inputs.cut(~self.x.isfinite())

    def along(self, tangent: Tensor, level: Level) -> CentralDifference | None:
        """What forward has along a direction."""
        return central_difference(self.problem, self.inputs, self.x, tangent, level)


@dataclass(frozen=True)
class _Probes:
    """Values of several grad_outputs before they are weighed."""

    values: Tensor
    """One line of M entries for each, its magnitude included; zero where an output stays undefined."""
    only: tuple[int | None, ...]
    """The one output that each is defined for, by number; None for all of them."""
    scales: tuple[float, ...]
    """The size of each, times the root of the number of rows that it weighs."""


@dataclass(frozen=True)
class _Functionals:
    """Several grad_outputs u and what backward gave for them."""

    probes: _Probes
    weighed: Weighed
    """By whose sizes the probes were divided."""
    expected: list[float]
    """u · change of that difference for every u: worked out before user code could write into u."""
    gradients: tuple[tuple[Tensor | None, ...], ...]
    """For each u a vector for each input."""

    def close(self, inputs: Layout, found: CentralDifference, allowed: float) -> list[float] | None:
        """What each input has of G(u)·T for the first u, if all sum to u·J T, for every u; else None.

        Told for rows of weight one, as `allowed` is.
        """
        expected = self.expected
        if found.weighed is not self.weighed:
            expected = (self.probes.values / self.weighed.size @ found.weighed.change).tolist()
        relative = found.weighed.unit / self.weighed.unit
        steps = inputs.cut(found.step)
        first: list[float] = []
        for number, gradients in enumerate(self.gradients):
            shares = [_dot(g, step) for g, step in zip(gradients, steps, strict=True)]
            residual = expected[number] - FOUR_POINTS * sum(shares)
            scale = relative * self.probes.scales[number]
            if not abs(residual) <= allowed * scale:  # also where it is NaN
                return None
            first = first or [FOUR_POINTS * s / scale for s in shares]
        return first

    def vanish(self, number: int | None = None) -> bool:
        """Whether every gradient, or every one for one input, is exactly zero."""
        wanted = (
            g for line in self.gradients for g in (line if number is None else line[number : number + 1])
        )
        return not any(g is not None and g.count_nonzero().item() for g in wanted)

    def vanish_where(self, unmoved: Sequence[Tensor]) -> bool:
        """Whether every gradient is exactly zero at the entries that cannot be moved."""
        return all(
            g is None or not g[mask].count_nonzero().item()
            for line in self.gradients
            for g, mask in zip(line, unmoved, strict=True)
        )


def certify(
    problem: Problem,
    *,
    rtol: float,
    key: int = 0,
    back_each: BackEach | None = None,
    atol: float | None = None,
) -> Certificate | None:
    """Try to prove a problem's backward with probes; None where the proof does not close.

    `rtol` is the relative error in the gradient of any one input that must be visible. `key` chooses the
    probes. `back_each` goes back through a graph that is there already. With an `atol` it tries for what rtol
    asks for and no more, and need not see what in a noisy row is below `atol`. At most 8
    forwards and one graph with a backward for each grad_output; inputs whose share of
    the derivative is too small to be seen among the others are probed once more, alone.
    """
    inputs = Layout.of(problem.primals)
    if not inputs.size or not problem.outputs.size:
        return None
    x = inputs.flatten(problem.primals)
    point = _Point(
        problem, inputs, x, tangent_of(x, inputs, key, short=atol is None), key, back_each, rtol, atol
    )
    functionals: _Functionals | None = None
    for level in point.levels:
        found = point.along(point.tangent, level)
        if found is None:
            break
        if found.weighed.flat:
            return Certificate(level.allowed * point.typical) if _is_flat(point, found) else None
        functionals = functionals or _pull_back(point, found)
        if functionals is None or (found.held and not functionals.vanish_where(point.unmoved)):
            break
        shares = functionals.close(inputs, found, level.allowed)
        if shares is not None and point.visible(found, level):
            least = level.allowed / rtol
            proven = all(_closes_alone(point, number) for number in _faint(inputs, shares, least))
            return Certificate(level.allowed * point.typical) if proven else None
        if found.smooth:
            break
    return None


def _coarser(wanted: float) -> tuple[Level, ...]:
    """Levels that allow what an error in one typical entry makes, where that is more."""
    fine, coarse = LEVELS
    allowed = max(fine.allowed, min(coarse.allowed, wanted))
    return Level(fine.step, allowed), coarse


def noticed(atol: float, tangent: Tensor) -> float:
    """What an error of atol in one entry makes in the derivative along an ordinary tangent."""
    size: float = torch.linalg.vector_norm(tangent).item()
    return atol * size / math.sqrt(tangent.numel())


def _faint(inputs: Layout, shares: Sequence[float], least: float) -> list[int]:
    """Inputs, by number, whose gradient could be off by rtol without being seen among the others."""
    moving = [number for number, length in enumerate(inputs.lengths) if length]
    return [number for number in moving if abs(shares[number]) < least] if len(moving) > 1 else []


def _closes_alone(point: _Point, number: int) -> bool:
    """The same proof with one input moving alone."""
    tangent = torch.zeros_like(point.tangent)
    block = point.inputs.blocks[number]
    tangent[block.start : block.stop] = point.tangent[block.start : block.stop]
    for level in point.levels:
        found = point.along(tangent, level)
        functionals = None if found is None else _pull_back(point, found, ALONE)
        if found is None or functionals is None:
            return False
        if found.weighed.flat:
            return functionals.vanish(number)
        closed = functionals.close(point.inputs, found, level.allowed)
        if closed is not None and point.visible(found, level):
            return True
    return False


def _is_flat(point: _Point, near: CentralDifference) -> bool:
    """Whether forward is constant to the last bit far around, and backward says so: zeros, for every u."""
    far = point.along(point.tangent, FAR)
    constant = far is not None and far.weighed.flat
    functionals = _pull_back(point, near) if constant else None
    return functionals is not None and functionals.vanish()


def _pull_back(
    point: _Point, found: CentralDifference, magnitudes: tuple[float, ...] = MAGNITUDES
) -> _Functionals | None:
    """Gradients for all outputs together, at each magnitude; or at one, and for each output alone."""
    outputs = point.problem.outputs
    draw = _kept_probes if outputs.size <= KEPT_ROWS else _drawn_probes
    weighed = found.weighed
    probes = draw(tuple(outputs.lengths), point.key, tuple(m * weighed.unit for m in magnitudes))
    # Where forward is flat nothing weighs a row: all count alike.
    u = probes.values.clone() if weighed.flat else probes.values / weighed.size
    expected = (u @ weighed.change).tolist()
    lines = u.unbind(0)
    cotangents = [_cotangent(outputs, line, only) for line, only in zip(lines, probes.only, strict=True)]
    result = (
        point.problem.pull_back_each(point.problem.primals, cotangents)
        if point.back_each is None
        else point.back_each(cotangents)
    )
    if isinstance(result, Raised):
        return None
    gradients = tuple(point.inputs.flattened(given) for given in result.value)
    return _Functionals(probes, weighed, expected, gradients)


def _drawn_probes(lengths: tuple[int, ...], key: int, magnitudes: tuple[float, ...]) -> _Probes:
    """One grad_output for each magnitude; for several outputs one for all, and one for each output alone."""
    count = sum(lengths)
    asked: list[tuple[float, int | None]]
    asked = [(m, None) for m in magnitudes]
    if len(lengths) > 1:
        asked = [asked[0], *((magnitudes[-1], k) for k, length in enumerate(lengths) if length)]
    values = torch.zeros(len(asked), count, dtype=torch.float64)
    for number, (magnitude, only) in enumerate(asked):
        start = 0 if only is None else sum(lengths[:only])
        stop = count if only is None else start + lengths[only]
        values[number, start:stop] = signed_values(stop - start, key + 7 * number + 1) * magnitude
    scales = tuple(abs(m) * math.sqrt(count if only is None else lengths[only]) for m, only in asked)
    return _Probes(values, tuple(only for _, only in asked), scales)


_kept_probes = lru_cache(maxsize=64)(_drawn_probes)


def _cotangent(outputs: Layout, flat: Tensor, only: int | None) -> Sequence[Tensor | None]:
    shaped = outputs.shaped(flat)
    return shaped if only is None else [t if number == only else None for number, t in enumerate(shaped)]


def _dot(gradient: Tensor | None, step: Tensor) -> float:
    return 0.0 if gradient is None else torch.dot(gradient, step).item()
