"""Two random directions: the cheapest certain evidence that a backward is wrong. It does not say where.

For a tangent v and a cotangent u, uᵀ(J v) from forward must equal (Aᵀu)·v from backward. Here J v comes with
a *measured* error for each row, so a difference beyond that is no accident of noise; two independent pairs
make it none of the direction. Some 20 calls, whatever the size: for targets that may run out of time before
their Jacobian is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.jacobian import NumericalJacobian, numerical_jacobian
from gradverify.verifier.numerics.probes import signed_values, tangent_of
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.submaps import Grouped, along
from gradverify.verifier.numerics.tolerance import SAFETY
from gradverify.verifier.numerics.verdict import NotJudged, centre_of

KEYS = (21, 22)
"""Probe keys of the two directions; any that no proof uses."""

LEAST = 1e-3
"""Relative difference that counts: a smaller one is left to the checks that look at entries."""

KNOWN = 0.1
"""Share of a derivative up to which its error may go: beyond, forward is too steep or too noisy to tell."""

SHORTER = 2.0**-9
"""The first direction is measured once more with steps so many times as long: what oscillates or bends within
a step has another difference there, however small the error that one stencil sees."""


@dataclass(frozen=True)
class _Slope:
    """uᵀ(J v), measured."""

    value: Tensor
    noise: Tensor
    """How far it may be off, absolute."""
    size: Tensor
    """The sum of what every row contributes."""


def contradiction(problem: Problem, among: int | None = None) -> float | None:
    """By how much backward is off along both directions, relative to all that moves; None where it agrees.

    None, too, where forward cannot be measured. Rows at a kink or a jump do not count. `among` is the one
    input that moves, by number; None for all.
    """
    inputs = Layout.of(problem.primals)
    centre = centre_of(problem) if inputs.size and problem.outputs.size else NotJudged("there is nothing")
    if isinstance(centre, NotJudged):
        return None
    x = inputs.flatten(problem.primals)
    sizes = []
    for key in KEYS:
        tangent = tangent_of(x, inputs, key)
        if among is not None:
            block = inputs.blocks[among]
            tangent[: block.start] = tangent[block.stop :] = 0.0
        line = along(problem, inputs, x, tangent)
        measured = numerical_jacobian(line, centre)
        cotangent = _cotangent(measured, key)
        slope = _slope(measured, cotangent)
        is_known = slope.noise <= KNOWN * slope.size
        if not is_known or (key == KEYS[0] and not _repeats(line, centre, cotangent, slope)):
            return None
        pulled = line.pull_back(line.primals, problem.outputs.unflatten(cotangent))
        claimed = None if isinstance(pulled, Raised) else pulled.value[0]
        if claimed is None:
            return None
        difference, scale = (claimed[0] - slope.value).abs(), torch.maximum(slope.size, claimed[0].abs())
        if not difference > slope.noise + LEAST * scale:  # a NaN contradicts nothing here
            return None
        sizes.append((difference / scale).item())
    return min(sizes)


def _cotangent(measured: NumericalJacobian, key: int) -> Tensor:
    """Random sizes, of the sign of each row's derivative, so that a factor does not cancel in their sum.

    Zero for rows at a kink or a jump.
    """
    smooth = measured.error[:, 0].isfinite() & (measured.kink[:, 0] == 0)
    sizes = signed_values(smooth.numel(), key)
    down = measured.value[:, 0] < 0
    return torch.where(smooth, torch.where(down, -sizes.abs(), sizes.abs()), 0.0)


def _slope(measured: NumericalJacobian, cotangent: Tensor) -> _Slope:
    parts = torch.where(cotangent != 0, cotangent * measured.value[:, 0], 0.0)
    error = torch.where(cotangent != 0, cotangent.abs() * measured.error[:, 0], 0.0)
    return _Slope(parts.sum(), SAFETY * error.sum(), parts.abs().sum())


def _repeats(line: Grouped, centre: Tensor, cotangent: Tensor, slope: _Slope) -> bool:
    """Whether forward has the same derivative at much shorter steps."""
    short = numerical_jacobian(replace(line, tangent=SHORTER * line.tangent), centre)
    other = _slope(short, cotangent)
    allowed = slope.noise + other.noise / SHORTER + LEAST * slope.size
    return bool((slope.value - other.value / SHORTER).abs() <= allowed)
