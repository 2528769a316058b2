"""Whether a gradient that is right says anything: a loop of no rounds has a backward of any kind."""

from __future__ import annotations

from dataclasses import replace

from gradverify.verifier.checks.manifolds import mismatched
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.subject import Sample, prepare
from gradverify.verifier.guard import Raised

NOTHING = "no output depends on any input, so that no gradient was seen"
"""What is said of a gradient that is zero, rightly, where something was invented."""

REDRAWN = tuple(range(101, 909, 101))
"""Offsets from a case's seed to those of other masks, labels and dropped entries: one draw may hide all."""


def depends_on_nothing(sample: Sample) -> bool:
    """Whether the gradient at a sample where it is verified is zero in every entry.

    Not where other draws of the same case have a gradient, which is right there.
    """
    if not _is_zero(sample):
        return False
    for offset in REDRAWN:
        case = replace(sample.case, seed=sample.case.seed + offset)
        other = prepare(sample.subject, case, sample.point, sample.draw)
        if isinstance(other, Sample) and not _is_zero(other) and mismatched(other) is False:
            return False
    return True


def _is_zero(sample: Sample) -> bool:
    problem = sample.problem
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.key))
    result = problem.pull_back(problem.primals, u)
    return not isinstance(result, Raised) and all(t is None or not t.any() for t in result.value)
