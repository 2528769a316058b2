"""The certificate: a backward verified by a few random probes, whatever the size of its Jacobian.

For a tangent v and a cotangent u, uᵀ(J v) from forward alone must equal (Aᵀu)·v from backward. J v is a
central difference along one direction in which every input entry moves by its own size,

    D = (8 (F₁ - F₋₁) - (F₂ - F₋₂)) / 12h,    F_k = f(x + k T),  T = fl(x + h v) - x,

and u weighs each row by the inverse of |D_i|, so that every row counts by its *relative* error. No error
estimate is needed: a residual below the threshold is itself the proof, because a wrong gradient and an
error of the difference cancel with a probability of nothing. Where it does not close, nothing is said, and
the whole Jacobian is measured instead.

(Random probing of a vector-Jacobian product is the dot-product test of adjoint codes: Claerbout, *Earth
Soundings Analysis*, 1992, ch. 5; for the weights of the difference see Fornberg, 1988.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.flat import Block, Layout
from gradverify.verifier.numerics.probes import signed_values, tangent_of
from gradverify.verifier.numerics.problem import Gradients, Problem

DAMPING = 1024.0
"""A row counts by its error relative to |D_i|, but to no less than its output's mean |D| over this."""

NOISY = 2.0**-7
"""Nor to less than this share of |f_i|: so the rounding of f, a few times 2^-52 |f_i|, over the step 2^-12
stays below the residual that is allowed."""

LEVELS = ((2.0**-12, 2.0**-33), (2.0**-19, 2.0**-28))
"""(Step in units of each entry's size, residual allowed for one row of weight one): the first resolves
smooth functions, the second straddles fewer kinks. Measured on PyTorch's operator database."""

SMOOTH = 3e-6
"""Where the second-order and the fourth-order difference agree to this share, the latter is off by about its
square, a tenth of what the first level allows: what does not close then is no matter of the step."""

FAR = 2.0**-4
"""A forward that is flat is asked once more at this step, in units of each entry's size: one that rounds to
bfloat16 (2^-8) inside looks flat at a smaller one."""

TINIEST = torch.finfo(torch.float64).tiny

MAGNITUDES = (-(2.0**12), 2.0**-20)
"""Sizes of grad_output: a backward that clamps, thresholds or squares it can satisfy one of them only. No
larger, since a right backward may round relative to grad_output (`matrix_exp` scales it with its matrix)."""

ALONE = (1.0,)
"""The same where an input is probed alone: that backward is linear has been seen."""

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


@dataclass(frozen=True)
class _Probe:
    """One direction: the exact step, and the derivative along it."""

    step: Tensor
    """T / h, N entries."""
    derivative: Tensor
    """D, M entries."""
    lower_order: Tensor
    """(F₁ - F₋₁) / 2h, M entries."""
    size: Tensor
    """By what an error in each row counts, M entries."""
    negligible: Tensor
    """|D| below which a row counts by more than its own, M entries or one for all."""

    @property
    def smooth(self) -> bool:
        """Whether no other step would give another derivative."""
        difference = (self.derivative - self.lower_order).abs()
        return bool((difference <= SMOOTH * self.size).all())

    def sees(self, allowed: float, rtol: float) -> bool:
        """Whether an error of rtol in a row of ordinary size is larger than what is allowed."""
        size = self.derivative.abs()
        return not bool(((size > self.negligible) & (self.size * (allowed / rtol) > size)).any())


@dataclass(frozen=True)
class _Functionals:
    """Several grad_outputs and what backward gave for them, each divided by its magnitude."""

    cotangents: Tensor
    """One line of M entries for each; zero where an output stays undefined."""
    gradients: Tensor
    """One line of N entries for each."""
    rows: Tensor
    """Root of the number of rows that each weighs."""

    def close(self, probe: _Probe, allowed: float) -> bool:
        """u·D = G(u)·T/h for every u."""
        residual = self.cotangents @ probe.derivative - self.gradients @ probe.step
        return bool((residual.abs() <= allowed * self.rows).all())


def certify(
    problem: Problem, *, rtol: float, key: int = 0, back_each: BackEach | None = None
) -> Certificate | None:
    """Try to prove a problem's backward with probes; None where the proof does not close.

    `rtol` is the relative error in the gradient of any one input that must be visible. `key` chooses the
    probes. `back_each` goes back through a graph that is there already. At most 8 forwards and one graph
    with a backward for each grad_output; inputs whose share of the derivative is too small to be seen among
    the others are probed once more, alone.
    """
    inputs = Layout.of(problem.primals)
    if not inputs.size or not problem.outputs.size:
        return None
    x = inputs.flatten(problem.primals)
    point = _Point(problem, inputs, x, tangent_of(x, inputs, key), key, back_each)
    functionals: _Functionals | None = None
    for step, allowed in LEVELS:
        probe = _probe(point, point.tangent, step)
        if probe is None:
            break
        if not probe.derivative.any():
            size = math.sqrt(problem.outputs.size * inputs.size)
            return Certificate(allowed * size) if _is_flat(point) else None
        functionals = functionals or _pull_back(point, probe.size)
        if functionals is None:
            break
        if functionals.close(probe, allowed) and probe.sees(allowed, rtol):
            faint = _faint_inputs(inputs, functionals, probe, allowed, rtol)
            proven = all(_closes_alone(point, block, rtol) for block in faint)
            return Certificate(allowed * math.sqrt(problem.outputs.size * inputs.size)) if proven else None
        if probe.smooth:
            break
    return None


def _faint_inputs(
    inputs: Layout, functionals: _Functionals, probe: _Probe, allowed: float, rtol: float
) -> list[Block]:
    """Inputs whose gradient could be off by more than rtol without being seen among the others."""
    moving = [block for block in inputs.blocks if block.stop > block.start]
    if len(moving) < 2:
        return []
    share = functionals.gradients[0] * probe.step
    least = allowed * math.sqrt(probe.derivative.numel()) / rtol
    return [block for block in moving if abs(share[block.start : block.stop].sum().item()) < least]


def _closes_alone(point: _Point, block: Block, rtol: float) -> bool:
    """The same proof with one input moving alone."""
    mask = torch.zeros_like(point.tangent)
    mask[block.start : block.stop] = 1.0
    for step, allowed in LEVELS:
        probe = _probe(point, point.tangent * mask, step)
        functionals = None if probe is None else _pull_back(point, probe.size, ALONE)
        if probe is None or functionals is None:
            return False
        if not probe.derivative.any():
            return not functionals.gradients[:, block.start : block.stop].any()
        if functionals.close(probe, allowed) and probe.sees(allowed, rtol):
            return True
    return False


def _is_flat(point: _Point) -> bool:
    """Whether forward is constant to the last bit far around, and backward says so: zeros, for every u."""
    far = _probe(point, point.tangent, FAR)
    if far is None or far.derivative.any():
        return False
    functionals = _pull_back(point, torch.ones_like(far.size))
    return functionals is not None and not bool(functionals.gradients.any())


def _probe(point: _Point, tangent: Tensor, step: float) -> _Probe | None:
    """The derivative along a direction; None where forward raises or is not finite there."""
    exact = (point.x + step * tangent) - point.x
    values = []
    for k in (1, -1, 2, -2):
        result = point.problem.evaluate_fresh(point.inputs.unflatten(point.x + k * exact))
        if isinstance(result, Raised):
            return None
        values.append(point.problem.outputs.flatten(result.value))
    near, far = values[0] - values[1], values[2] - values[3]
    derivative = (8 * near - far) / (12 * step)
    magnitude = derivative.abs()
    negligible = _means(point.problem.outputs, magnitude) / DAMPING
    if not bool(negligible.isfinite().all()):
        return None
    size = magnitude + negligible + NOISY * values[0].abs() + TINIEST
    return _Probe(exact / step, derivative, near / (2 * step), size, negligible)


def _means(outputs: Layout, size: Tensor) -> Tensor:
    """For each row the mean of its output's rows; one number where there is one output."""
    if len(outputs.blocks) == 1:
        return size.mean()
    means = [
        size[b.start : b.stop].mean().expand(b.stop - b.start) for b in outputs.blocks if b.stop > b.start
    ]
    return torch.cat(means)


def _pull_back(point: _Point, size: Tensor, magnitudes: Sequence[float] = MAGNITUDES) -> _Functionals | None:
    """Gradients for all outputs together at each magnitude, and for each output alone."""
    outputs, key = point.problem.outputs, point.key
    asked: list[tuple[Tensor, float, Block | None]] = []
    for number, magnitude in enumerate(magnitudes):
        asked.append((signed_values(outputs.size, key + 7 * number + 1) / size, magnitude, None))
    if len(outputs.blocks) > 1:
        for number, block in enumerate(outputs.blocks):
            if block.stop > block.start:
                alone = torch.zeros_like(size)
                part = slice(block.start, block.stop)
                alone[part] = signed_values(block.stop - block.start, key + 11 * number + 5) / size[part]
                asked.append((alone, magnitudes[-1], block))
    cotangents = [_cotangent(outputs, u * magnitude, block) for u, magnitude, block in asked]
    result = (
        point.problem.pull_back_each(point.problem.primals, cotangents)
        if point.back_each is None
        else point.back_each(cotangents)
    )
    if isinstance(result, Raised):
        return None
    lines = [
        point.inputs.flatten(gradients) / magnitude
        for (_, magnitude, _), gradients in zip(asked, result.value, strict=True)
    ]
    counts = [outputs.size if block is None else block.stop - block.start for _, _, block in asked]
    gradients = torch.stack(lines)
    if not bool(gradients.isfinite().all()):
        return None
    rows = torch.tensor([math.sqrt(count) for count in counts], dtype=torch.float64)
    return _Functionals(torch.stack([u for u, _, _ in asked]), gradients, rows)


def _cotangent(outputs: Layout, flat: Tensor, only: Block | None) -> list[Tensor | None]:
    return [
        t if only is None or block is only else None
        for t, block in zip(outputs.unflatten(flat), outputs.blocks, strict=True)
    ]
