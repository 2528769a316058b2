"""GV106: what backward makes of grad_outputs with zeros among their entries, and of zeros alone.

A loss that reads a part of an output sends zeros for the rest, one that is masked away sends nothing else. A
backward that skips rows by their first entry, or divides by the norm of grad_output, is right for every dense
grad_output: the probes of the proof are dense. So a gradient must be the sum of those for two halves of
grad_output, and of the one for zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.model import Finding, Point
from gradverify.verifier.checks.linearity import LINEAR, MOST_ROUNDINGS, roundings
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import number
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.compare import SINGLE
from gradverify.verifier.numerics.problem import VjpProblem
from gradverify.verifier.numerics.rounding import gradient_noise

NOISES = 10.0
"""A difference counts beyond so many times the measured round-off."""


def wrong_with_zeros(sample: Sample) -> Finding | None:
    """Judge the first typical draw of a case whose gradient is right for dense grad_outputs."""
    size = sample.problem.outputs.size
    if sample.point is not Point.TYPICAL or sample.draw != 0 or not size or not sample.inputs.size:
        return None
    u = random_signs(size, sample.case.seed + 57)
    half = torch.rand(size, generator=torch.Generator().manual_seed(sample.case.seed % 2**63)) < 0.5
    asked = [u, u * half, u * ~half, torch.zeros_like(u)]
    found = _of_one_graph(sample, asked)
    if found is None or not _off(found, _rounding(sample, found)).any():
        return None
    fresh = _each_by_itself(sample, asked)
    if fresh is None:
        return None
    noise = [gradient_noise(VjpProblem(sample.problem, sample.problem.outputs.unflatten(v))) for v in asked]
    wrong = _off(fresh, _rounding(sample, fresh) + NOISES * torch.stack(noise).sum(dim=0))
    return _finding(sample, fresh, wrong) if wrong.any() else None


def _of_one_graph(sample: Sample, asked: list[Tensor]) -> list[Tensor] | None:
    """The gradients (flat, N entries each); None where backward raises, or is not finite for dense ones."""
    problem = sample.problem
    result = problem.pull_back_each(problem.primals, (problem.outputs.unflatten(v) for v in asked))
    if isinstance(result, Raised):
        return None
    gradients = [sample.inputs.flatten(one) for one in result.value]
    return gradients if gradients[0].isfinite().all() else None


def _each_by_itself(sample: Sample, asked: list[Tensor]) -> list[Tensor] | None:
    """The same by a forward for each: what one backward leaves in the graph is another check's."""
    gradients = []
    for v in asked:
        result = sample.problem.pull_back(sample.problem.primals, sample.problem.outputs.unflatten(v))
        if isinstance(result, Raised):
            return None
        gradients.append(sample.inputs.flatten(result.value))
    return gradients if gradients[0].isfinite().all() else None


def _rounding(sample: Sample, gradients: list[Tensor]) -> float:
    """What rounding may leave in a sum of gradients.

    Of the largest entry, and of the entries of grad_output, which are one in size: where a gradient vanishes,
    as that of a saturated softmax does, numbers like these cancel, and what is left depends on the others.
    Of these no more than float32 rounds: in 16 bits that would be half of one.
    """
    largest = torch.stack([g.abs().nan_to_num(0.0, 0.0, 0.0) for g in gradients]).max().item()
    share = roundings(sample)
    return max(share * largest, min(share, MOST_ROUNDINGS * SINGLE))


def _off(gradients: list[Tensor], allowed: Tensor | float) -> Tensor:
    """Entries (bool, N) at which the parts do not add up to the whole, or zeros give more than nothing."""
    whole, one, other, none = gradients
    sizes = whole.abs() + one.abs() + other.abs()
    split = (one + other - whole).abs() - LINEAR * sizes - allowed
    return ~(split <= 0) | ~(none.abs() - allowed <= 0)


def _finding(sample: Sample, gradients: list[Tensor], wrong: Tensor) -> Finding:
    whole, one, other, none = gradients
    worst = int(wrong.int().argmax())
    name = sample.problem.input_names[sample.inputs.block_of(worst)]
    if none[worst] != 0:
        nothing = number(none[worst].item())
        message = f"for a grad_output of zeros alone the gradient of `{name}` is {nothing}, not 0"
        hint = (
            "Where a loss is masked away grad_output is all zeros: look for a division by its norm, its sum "
            "or its largest entry."
        )
    else:
        message = (
            "backward is not linear in grad_output: where some of its entries are zero, the gradient of "
            f"`{name}` is {number((one + other)[worst].item())} as the sum of two halves, "
            f"{number(whole[worst].item())} for both at once"
        )
        hint = "Is something skipped by a test of grad_output, as rows whose first entry is zero?"
    return sample.finding("GV106", message, hint=hint, input=name)
