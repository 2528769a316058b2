"""Whether backward gives the same whatever grad_output it gets: rows for unit grad_outputs do not show that.

The Jacobian of a loss has one row, for a grad_output of one, which is all that such a backward is right for.
"""

from __future__ import annotations

import torch

from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import CallProblem

OTHER = -3.0
"""Factor between the two grad_outputs that are compared."""


def ignoring_grad_output(problem: CallProblem) -> frozenset[str]:
    """Names of the inputs whose gradient is not zero, and the same for two grad_outputs."""
    u = random_signs(problem.outputs.size, 0)
    found = []
    for cotangent in (u, OTHER * u):
        result = problem.pull_back(problem.primals, problem.outputs.unflatten(cotangent))
        if isinstance(result, Raised):
            return frozenset()
        found.append(result.value)
    return frozenset(
        name
        for name, one, other in zip(problem.input_names, *found, strict=True)
        if one is not None and other is not None and one.any() and torch.equal(one, other)
    )
