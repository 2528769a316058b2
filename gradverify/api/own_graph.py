"""The proof through the caller's own graph: one call on the caller's tensors, a few on moved copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gradverify.api.original import Original, identical, random_cotangents
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.certificate import MAGNITUDES, certify
from gradverify.verifier.numerics.problem import CallProblem, Gradients, VjpProblem

Cotangents = Sequence[Tensor | None]


@dataclass
class OwnGraph:
    """The caller's graph, asked in the terms of the problem: of which it may hold fewer outputs."""

    original: Original
    problem: CallProblem | VjpProblem
    asked: list[Cotangents] = field(default_factory=list)
    answered: list[Gradients] = field(default_factory=list)

    def proves(self, rtol: float, atol: float) -> bool:
        """Whether backward is the derivative of what forward does on moved copies, and gives it each time.

        Nothing is set back to the same random numbers: who draws some is not proven right here, nor wrong.
        A problem without inputs or outputs has nothing to prove but that backward runs.
        """
        if self.problem.outputs.size and any(x.numel() for x in self.original.leaves):
            proven = certify(self.problem, rtol=rtol, atol=atol, back_each=self.back_each) is not None
        else:
            cotangents = random_cotangents(self.original.outputs)
            proven = isinstance(guard.call(self._gradients, [cotangents]), Returned)
        return proven and self._repeats()

    def back_each(self, cotangents: Sequence[Cotangents]) -> Returned[list[Gradients]] | Raised:
        """Backward for several sets of grad_outputs; the first one is remembered."""
        places = {p: number for number, p in enumerate(self.problem.output_positions)}
        chosen = [places[p] for p in self.original.positions]
        return guard.call(self._gradients, [[given[k] for k in chosen] for given in cotangents])

    def _gradients(self, cotangents: Sequence[Cotangents]) -> list[Gradients]:
        found = [self.original.gradients(given) for given in cotangents]
        if not self.asked:
            self.asked, self.answered = list(cotangents), found
        return found

    def _repeats(self) -> bool:
        """Whether backward gives the same to the last bit when it is asked again.

        Or asked the same at another magnitude, both powers of two: then no product rounds differently.
        """
        first, *others = self.answered
        if len(others) == 1 and identical(scaled(first, MAGNITUDES[1] / MAGNITUDES[0]), others[0]):
            return True
        again = guard.call(self.original.gradients, self.asked[0])
        return isinstance(again, Returned) and identical(again.value, first)


def scaled(gradients: Gradients, factor: float) -> Gradients:
    """Each gradient times a number; None stays None."""
    return tuple(None if g is None else g * factor for g in gradients)
