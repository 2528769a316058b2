"""The answer where forward stands on stairs: what lies beside an edge is measured, and nothing else."""

from __future__ import annotations

from gradverify.api.acceptance import places, unverified
from gradverify.api.part_asked import entries_of
from gradverify.api.question import Right, Unsure
from gradverify.verifier.numerics.certificate import Certificate
from gradverify.verifier.numerics.problem import Problem, VjpProblem
from gradverify.verifier.numerics.rounding import gradient_noise
from gradverify.verifier.numerics.stairs import beside_edges
from gradverify.verifier.numerics.verdict import Judged, judge


def on_stairs(problem: Problem, rtol: float) -> Right | Unsure | None:
    """The answer where forward stands on stairs and backward gives zeros; None where it may be another.

    What is in conflict beside an edge is measured with all the rest, to be told.
    """
    left = beside_edges(problem, rtol=rtol)
    if left is None or isinstance(left, Certificate):
        return None if left is None else Right()
    noise = gradient_noise(problem) if isinstance(problem, VjpProblem) else None
    result = judge(left, rtol=rtol, noise=None if noise is None else noise[list(left.rows)])
    if not isinstance(result, Judged):
        return None
    found = result.comparison
    if (found.wrong | found.imprecise | found.nonfinite).any():
        return None
    missing = unverified(found)
    if not missing.any():
        return Right()
    return Unsure(places(problem, result, missing), entries=entries_of(missing, left.rows, left.columns))
