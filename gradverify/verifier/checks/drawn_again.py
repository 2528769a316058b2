"""Whether a gradient is wrong for nothing but random numbers that backward draws for itself.

A mask that is drawn again in backward is forward's only where the generator is where it was then. That
is so in no training step, and not here either: backward starts from random states of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradverify.model import Finding, Severity
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.proof import certify

OF_NUMBERS = frozenset({"GV101", "GV107"})
"""Codes of gradients that are no derivative."""

DRAW_IN_FORWARD = (
    "Backward draws random numbers of its own: with those that forward drew, the gradient is right (tried "
    "here). Draw in forward and save what was drawn (ctx.save_for_backward). To draw it again, keep the "
    "random state in forward, and set it in backward inside torch.random.fork_rng()."
)


def explained_by_draws(sample: Sample, findings: Iterable[Finding]) -> list[Finding]:
    """The findings, those of wrong numbers with this cause where it is theirs."""
    reported = list(findings)
    wrong = [f for f in reported if f.code in OF_NUMBERS and f.severity is Severity.ERROR and not f.cause]
    if not wrong or not _is_right_with_forwards(sample):
        return reported
    return [replace(f, cause="random-numbers", hint=DRAW_IN_FORWARD) if f in wrong else f for f in reported]


def _is_right_with_forwards(sample: Sample) -> bool:
    """Whether backward draws, and is right where it finds the random states that forward found."""
    problem = sample.problem
    u = random_signs(problem.outputs.size, sample.case.seed)
    result = problem.pull_back(problem.primals, problem.outputs.unflatten(u))
    if isinstance(result, Raised) or problem.random_states.untouched():
        return False
    alone = replace(problem, random_states=problem.random_states.forwards_alone())
    return certify(alone, rtol=sample.subject.settings.rtol, key=sample.key) is not None
