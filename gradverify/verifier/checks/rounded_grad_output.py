"""Whether backward rounds grad_output, or what it makes of it, to fewer digits than it has.

The rows of a Jacobian need not show it: unit grad_outputs are ones and zeros, which any precision holds. A
mixed one shows it, and one that is rounded to the suspected precision beforehand does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradverify.verifier.checks.mismatch import is_float32
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.flat import Block

_Mixture = tuple[Tensor, Tensor, Tensor]
"""A grad_output, what backward makes of it, and the sum of its rows."""

DRAWS = 3
"""Mixed grad_outputs that are tried; each must say the same."""

SHOWS = 1e-9
"""Share of its largest value by which a gradient must be off to be asked about: float32 rounds by 6e-8."""

VANISHES = 1e-3
"""What may be left of that for a grad_output that the precision holds: float64 rounds by far less."""

COARSE = (torch.float16, torch.bfloat16)
"""What else a kernel may cast to."""


def rounded_to_single(sample: Sample, analytical: Tensor) -> tuple[str, ...]:
    """Names of the inputs whose gradient has only float32's digits for grad_outputs that have more."""
    mixtures = _mixtures(sample, analytical)
    if not mixtures:
        return ()
    values, expected = (torch.stack(part) for part in zip(*((g, e) for _, g, e in mixtures), strict=True))
    return tuple(
        name
        for name, block in zip(sample.problem.input_names, sample.inputs.blocks, strict=True)
        if is_float32(values[:, block.start : block.stop], expected[:, block.start : block.stop])
        or _rounds_to(torch.float32, sample, analytical, block, mixtures)
    )


def rounded_to_16_bits(sample: Sample, analytical: Tensor, name: str) -> str:
    """The 16-bit precision to which grad_output is rounded for the gradient of an input; empty for none."""
    block = sample.inputs.blocks[sample.problem.input_names.index(name)]
    mixtures = _mixtures(sample, analytical)
    found = (d for d in COARSE if mixtures and _rounds_to(d, sample, analytical, block, mixtures))
    return next((str(dtype).removeprefix("torch.") for dtype in found), "")


def _mixtures(sample: Sample, analytical: Tensor) -> list[_Mixture]:
    """Random grad_outputs; none where backward raises for one."""
    seed, size = sample.case.seed, sample.problem.outputs.size
    found = [_mixture(sample, analytical, random_signs(size, seed + draw)) for draw in range(DRAWS)]
    known = [one for one in found if one is not None]
    return known if len(known) == DRAWS else []


def _mixture(sample: Sample, analytical: Tensor, u: Tensor) -> _Mixture | None:
    problem = sample.problem
    result = problem.pull_back(problem.primals, problem.outputs.unflatten(u))
    if isinstance(result, Raised):
        return None
    # A copy: backward may return a buffer of its own, and it runs again.
    return u, sample.inputs.flatten(result.value).clone(), u @ analytical


def _rounds_to(
    dtype: torch.dtype, sample: Sample, analytical: Tensor, block: Block, mixtures: Sequence[_Mixture]
) -> bool:
    """Whether a gradient is off for mixed grad_outputs, and not for those that `dtype` holds."""
    if not sample.problem.outputs.is_double:
        return False  # there are no more digits to be lost
    for mixture in mixtures:
        off = _off(mixture, block)
        if not off > SHOWS:  # nor where it is NaN
            return False
        held = _mixture(sample, analytical, mixture[0].to(dtype).to(torch.float64))
        if held is None or not _off(held, block) <= VANISHES * off:
            return False
    return True


def _off(mixture: _Mixture, block: Block) -> float:
    """How far a gradient is from the sum of its rows, as a share of the largest value of that."""
    gradient, expected = (part[block.start : block.stop] for part in mixture[1:])
    largest = expected.abs().max().item() if expected.numel() else 0.0
    return (gradient - expected).abs().max().item() / largest if largest else 0.0
