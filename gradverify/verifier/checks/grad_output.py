"""What is linear in grad_output: how far rounding lets it be off, and which gradients do not depend on it."""

from __future__ import annotations

import torch

from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.compare import SINGLE
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.problem import CallProblem
from gradverify.verifier.numerics.tolerance import EPSILON

LINEAR = 1e-6
"""Relative deviation that is no longer rounding, not even that of one step in float32."""

MOST_ROUNDINGS = 64.0
"""Roundings, of the coarsest dtype that goes into a backward, that may add up there."""

FEW_ROUNDINGS = 4.0
"""The same of an output of 16 bits whose inputs have more: so many as above would be half of a value."""

OTHER = -3.0
"""Factor between two grad_outputs whose gradients must differ."""


def ignoring_grad_output(problem: CallProblem) -> frozenset[str]:
    """Names of the inputs whose gradient is not zero, and the same for three grad_outputs, zeros among them.

    The Jacobian of a loss has one row, for a grad_output of one, which is all that such a backward is
    right for.
    """
    u = random_signs(problem.outputs.size, 0)
    found = [problem.pull_back(problem.primals, problem.outputs.unflatten(v)) for v in (u, OTHER * u, 0 * u)]
    gradients = [one.value for one in found if not isinstance(one, Raised)]
    if len(gradients) < len(found):
        return frozenset()
    return frozenset(
        name
        for name, one, *others in zip(problem.input_names, *gradients, strict=True)
        if one is not None and one.any() and all(g is not None and torch.equal(one, g) for g in others)
    )


def roundings(sample: Sample) -> float:
    """What may add up in backward, relative: it gets what forward got, and a grad_output like each output."""
    own = (layout.rounding for layout in (sample.inputs, sample.problem.outputs))
    of_inputs, of_outputs = (r.max().item() if r.numel() else 0.0 for r in own)
    return max(MOST_ROUNDINGS * max(EPSILON, of_inputs, min(of_outputs, SINGLE)), FEW_ROUNDINGS * of_outputs)
