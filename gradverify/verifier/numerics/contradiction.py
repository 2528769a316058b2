"""Two random directions: the cheapest certain evidence that a backward is wrong. It does not say where.

For a tangent v and a cotangent u, uᵀ(J v) from forward must equal (Aᵀu)·v from backward. Here J v comes with
a *measured* error for each row, so a difference beyond that is no accident of noise; two independent pairs
make it none of the direction. Some 25 calls, whatever the size: for targets that may run out of time before
their Jacobian is measured.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.directional_derivative import has_kink
from gradverify.verifier.numerics.noise import noise_floor
from gradverify.verifier.numerics.probes import signed_values, tangent_of
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.refine import FIRST_STEP, KINK_STEPS, VISIBLE_KINK
from gradverify.verifier.numerics.sampling import Sampler, Samples
from gradverify.verifier.numerics.tolerance import SAFETY, is_known
from gradverify.verifier.numerics.verdict import NotJudged, centre_of

KEYS = (21, 22)
"""Probe keys of the two directions; any that no proof uses."""

LEAST = 1e-3
"""Relative difference that counts: a smaller one is left to the checks that look at entries."""


def contradiction(problem: Problem, among: int | None = None) -> float | None:
    """By how much backward is off along both directions, relative to all that moves; None where it agrees.

    None, too, where forward cannot be measured. Rows with a kink, or with another slope at a shorter step
    (they jump, oscillate or bend), do not count.
    `among` is the one input that moves, by number; None for all.
    """
    if not problem.outputs.size or not any(x.numel() for x in problem.primals):
        return None
    centre = centre_of(problem)
    if isinstance(centre, NotJudged):
        return None
    sampler, smooth, sizes = Sampler(problem, centre), None, []
    for key in KEYS:
        tangent = tangent_of(sampler.x, sampler.inputs, key)
        if among is not None:
            block = sampler.inputs.blocks[among]
            tangent[: block.start] = tangent[block.stop :] = 0.0
        samples = sampler.along(FIRST_STEP * tangent, FIRST_STEP)
        error = SAFETY * samples.error(noise_floor(samples.noise[None], sampler.own, problem.outputs))
        if smooth is None:
            smooth = _is_smooth(sampler, samples, error, tangent)
        # Of the sign of each row's derivative, so that a factor does not cancel in their sum.
        u = torch.where(smooth, signed_values(centre.numel(), key).abs() * samples.derivative.sign(), 0.0)
        slope = (u * samples.derivative).sum()
        off = torch.where(smooth, u.abs() * error, 0.0).sum()
        if not slope > 0 or not is_known(slope, slope, off):
            return None
        pulled = problem.pull_back(problem.primals, problem.outputs.unflatten(u))
        if isinstance(pulled, Raised):
            return None
        claimed = sampler.inputs.flatten(pulled.value) @ tangent
        difference, scale = (claimed - slope).abs(), torch.maximum(slope, claimed.abs())
        if not difference > off + LEAST * scale:  # a NaN contradicts nothing here
            return None
        sizes.append((difference / scale).item())
    return min(sizes)


def _is_smooth(sampler: Sampler, samples: Samples, error: Tensor, tangent: Tensor) -> Tensor:
    """Rows (bool, M) that have the same slope at a much shorter step, from both sides."""
    shorter = sampler.along(KINK_STEPS[0] * tangent, KINK_STEPS[0])
    allowed = error + SAFETY * shorter.error(sampler.own) + LEAST * samples.derivative.abs()
    same = (samples.derivative - shorter.derivative).abs() <= allowed
    kink = has_kink(samples, shorter, VISIBLE_KINK * sampler.own / shorter.step)
    return same & allowed.isfinite() & ~kink
