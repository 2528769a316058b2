"""Whether a gradient that is right says anything: a loop of no rounds has a backward of any kind."""

from __future__ import annotations

from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised

NOTHING = "no output depends on any input, so that no gradient was seen"
"""What is said of a gradient that is zero, rightly, where something was invented."""


def depends_on_nothing(sample: Sample) -> bool:
    """Whether the gradient at a sample where it is verified is zero in every entry."""
    problem = sample.problem
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.key))
    result = problem.pull_back(problem.primals, u)
    return not isinstance(result, Raised) and all(t is None or not t.any() for t in result.value)
