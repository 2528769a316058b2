"""The function on copies of the caller's tensors, held against what it does on the tensors themselves.

A problem calls the function on copies. A function that captures its inputs instead of using its arguments,
one that minds their strides, or a backward that is not deterministic shows here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from gradverify.api.call import Cotangents, Original, identical, random_cotangents, same
from gradverify.api.messages import finding
from gradverify.model import Finding
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.problem import CallProblem, Gradients, Graph, VjpProblem


@dataclass(frozen=True)
class Right:
    """Verified. `finer` are findings below the tolerance."""

    finer: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Wrong:
    """Some entry is off by more than the tolerance, or backward breaks a rule."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Unsure:
    """Ours cannot tell: torch's own check decides."""

    reason: str = ""
    """What was not verified by us and why, in words; empty where there was nothing of ours to verify."""
    finer: tuple[Finding, ...] = ()
    """What was found below the tolerance in the rest."""


@dataclass
class Copied:
    """One graph on copies, and the first thing it was asked: what the caller's own graph is asked as well."""

    problem: CallProblem | VjpProblem
    graph: Graph
    asked: list[tuple[Cotangents, Gradients]] = field(default_factory=list)

    def back_each(self, cotangents: Sequence[Cotangents]) -> Returned[list[Gradients]] | Raised:
        """Backward through the graph for several sets of grad_outputs; the first one is remembered."""
        result = self.problem.back_each(self.graph, cotangents)
        if isinstance(result, Returned) and not self.asked:
            self.asked.append((cotangents[0], result.value[0]))
        return result

    def unlike(self, original: Original, nondet_tol: float) -> Wrong | Unsure | None:
        """What is to be said of a copy that gives other outputs or gradients; None where it gives the same.

        The caller's backward starts from another random state: one that draws numbers is not deterministic.
        """
        if not self.asked:
            failed = self.back_each([random_cotangents(self.graph.outputs)])
            if isinstance(failed, Raised):
                return Unsure(f"backward raises {failed.error.type} on copies of the inputs")
        cotangents, of_copy = self.asked[0]
        placed = dict(zip(self.problem.output_positions, cotangents, strict=True))
        given = [placed[p] for p in original.positions]
        torch.rand(1)
        gradients = original.gradients(given)
        if not identical(of_copy, gradients):
            if not identical(original.gradients(given), gradients):
                return _not_deterministic(nondet_tol)
            if not same(of_copy, gradients):
                return Unsure(
                    "the gradient is another one on copies of the inputs: the function does not depend "
                    "on its arguments alone, or minds their strides"
                )
        returned = dict(zip(self.problem.output_positions, self.graph.outputs, strict=True))
        if not same([returned[p] for p in original.positions], original.outputs):
            return Unsure("the function gives other values on copies of its inputs")
        return None


def _not_deterministic(nondet_tol: float) -> Wrong | Unsure:
    if nondet_tol > 0:
        return Unsure("backward is not deterministic")
    return Wrong(
        (
            finding(
                "GV106",
                "backward gives other gradients each time for the same input and grad_output (not reentrant)",
                hint="If it uses operations that are not deterministic, give `nondet_tol`.",
            ),
        )
    )
