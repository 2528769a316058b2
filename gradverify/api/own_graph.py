"""The proof through the caller's own graph: one call on the caller's tensors, a few on moved copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradverify.api.original import Original, all_zero, identical
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.calling import differentiate_each
from gradverify.verifier.numerics.certificate import certify
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import CallProblem, Gradients, Tensors, VjpProblem
from gradverify.verifier.numerics.quick import is_constant, proves

Cotangents = Sequence[Tensor | None]


class OwnGraph(NamedTuple):
    """The caller's graph, and what the function gives at other values of its differentiable inputs."""

    original: Original
    outputs: Layout
    """What `evaluate` returns: it may be more than the outputs that require grad."""
    here: Sequence[Tensor | None]
    """What it returned on the caller's tensors; None for zeros."""
    places: Sequence[int]
    """Where the outputs that require grad lie among these."""
    evaluate: Callable[[Sequence[Tensor]], Tensors]
    """Called with fresh tensors, which it may keep, outside of grad mode. Raises whatever the function
    raises."""

    @property
    def primals(self) -> Tensors:
        """The inputs that require grad, detached."""
        return tuple([x.detach() for x in self.original.leaves])

    def evaluate_fresh(self, primals: Sequence[Tensor]) -> Returned[Tensors] | Raised:
        """The outputs at other values."""
        return guard.call(self.evaluate, primals)

    def back_each(self, cotangents: Sequence[Cotangents]) -> Returned[list[Gradients]] | Raised:
        """Backward for several sets of grad_outputs."""
        return guard.call(self._gradients, cotangents)

    def _gradients(self, cotangents: Sequence[Cotangents]) -> list[Gradients]:
        _, _, _, leaves, outputs = self.original
        places = self.places
        if len(places) != len(self.outputs.blocks):
            cotangents = [[given[k] for k in places] for given in cotangents]
        return differentiate_each(outputs, leaves, cotangents)

    @property
    def is_empty(self) -> bool:
        """Whether there are no entries to differentiate, or by."""
        return not (self.outputs.size and any(map(Tensor.numel, self.original.leaves)))

    def proves_quickly(self, rtol: float, atol: float) -> bool:
        """Whether backward is the derivative of what forward does on moved copies, and gives it each time.

        Nothing is set back to the same random numbers: who draws some is not proven right here, nor wrong.
        Without inputs or outputs there is nothing to prove but that backward runs. Once for all evaluations,
        no graph is recorded: to say so each time takes as long as a small operation.
        """
        if self.is_empty:
            return self._runs()
        with torch.no_grad():
            return proves(self, rtol, atol)

    @property
    def stays(self) -> bool:
        """Whether the function gives the same around here: its derivative is zero, and backward not asked."""
        return not self.is_empty and is_constant(self)

    def _runs(self) -> bool:
        """Whether backward runs, and gives zeros: all that is right without entries."""
        result = guard.call(self.original.gradients, [torch.ones_like(o) for o in self.original.outputs])
        return isinstance(result, Returned) and all_zero(result.value)

    def proves(self, problem: CallProblem | VjpProblem, rtol: float, atol: float) -> bool:
        """The same by finer differences of the function as a problem, where the quick proof did not close."""
        if self.is_empty:
            return False
        asked: list[tuple[Cotangents, Gradients]] = []

        def back_each(cotangents: Sequence[Cotangents]) -> Returned[list[Gradients]] | Raised:
            result = self.back_each(cotangents)
            if isinstance(result, Returned) and not asked:
                asked.append((cotangents[0], result.value[0]))
            return result

        if certify(problem, rtol=rtol, atol=atol, back_each=back_each) is None:
            return False
        cotangents, gradients = asked[0]
        again = self.back_each([cotangents])
        return isinstance(again, Returned) and identical(again.value[0], gradients)
