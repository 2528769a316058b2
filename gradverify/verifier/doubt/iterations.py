"""Whether a mismatch hangs on an iteration that does not converge: it is looked for again where most do.

A solver gives its fixed point the implicit gradient, whatever rounds lead there. Where forward stops before
it converges, its derivative is another one.
"""

from __future__ import annotations

import torch

from gradverify.source import iterates
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.neighbours import mismatched, one_like, with_values

SMALL = 0.1
"""Factor on inputs at which most iterations converge, alone or added to one: slopes are below one there."""


def iterates_alone(sample: Sample) -> bool:
    """Whether forward repeats a step until it converges, and backward does not."""
    function = sample.subject.function_class
    return function is not None and iterates(function.forward) and not iterates(own_backward(function))


def right_where_converged(sample: Sample) -> bool:
    """Whether backward is right at small values, or near one or the identity."""
    given = {a.name: a.value for a in sample.arguments if a.differentiable}
    for near in (torch.zeros_like, torch.ones_like, one_like):
        moved = {name: near(value) + SMALL * value for name, value in given.items()}
        if mismatched(with_values(sample, moved)) is False:
            return True
    return False
