"""The dot-product test: a backward verified by a few random probes, whatever the size of its Jacobian.

For a tangent v and a cotangent u, uᵀ(J v) from forward alone must equal (Aᵀu)·v from backward. J v is a
finite difference along one line (`lines.py`) along which every input entry moves by its own size, and u
weighs each row by the inverse of |J v|_i, so that every row counts by its *relative* error. No error estimate
is needed: a residual below the threshold is itself the proof, because a wrong gradient and an error of the
difference cancel with a probability of nothing. What does not close is tried with other steps and stencils,
and with each input moving alone: one that makes forward jump says nothing of the others. Where nothing
closes, nothing is said, and the Jacobian is measured instead.

(Claerbout, *Earth Soundings Analysis*, 1992, ch. 5, for the dot-product test of adjoint codes.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.dot_product import (
    ALONE,
    MAGNITUDES,
    Along,
    Attempt,
    DotProductTest,
    identical,
    long_ladder,
    short_ladder,
)
from gradverify.verifier.numerics.flat import Layout, vector_of
from gradverify.verifier.numerics.lines import (
    DAMPING,
    Asked,
    BackEach,
    Line,
    Tangent,
    difference,
    line_of,
    value_at,
)
from gradverify.verifier.numerics.probes import cotangents_of
from gradverify.verifier.numerics.problem import Gradients, Problem
from gradverify.verifier.numerics.round_off import OF_ONE

STOPS = 8
"""Points on the way far along a line: between two of them bfloat16 makes a step at most, or little more."""

LARGEST_COUNT = 2.0**7
"""Whole numbers below this are neighbours of fractions in bfloat16, which has 8 digits (IEEE 754 float32's
upper half)."""

UNDAMPED = 4096
"""Entries of a Jacobian up to which every row counts by its own size alone, be it 1e-30 of the others': where
that does not close, this many entries are quickly measured."""


class _OfProblem(NamedTuple):
    """A problem, and how backward is asked."""

    primals: Sequence[Tensor]
    outputs: Layout
    evaluate_fresh: Callable[[Sequence[Tensor]], Returned[tuple[Tensor, ...]] | Raised]
    back_each: BackEach


@dataclass(frozen=True)
class Certificate:
    """Backward is the derivative at this point, by a proof that closed."""

    visible: float
    """The relative error of a typical entry that would have kept the proof from closing."""


def certify(
    problem: Problem,
    *,
    rtol: float,
    atol: float = 0.0,
    key: int = 0,
    back_each: BackEach | None = None,
    damping: float = DAMPING,
) -> Certificate | None:
    """Try to prove a problem's backward with probes; None where the proof does not close.

    `rtol` is the relative error in the gradient of any one input that must be visible, but where it is below
    `atol`. `key` chooses the probes. `back_each` goes back through a graph that is there already. A row
    counts by no less than the mean of its output's over `damping`. At most 8 forwards and one graph with a
    backward for each grad_output; inputs whose share of the derivative is too small to be seen among the
    others are probed once more, alone. Where that does not close, as many for each input.
    """
    inputs = Layout.of(problem.primals)
    if not inputs.size or not problem.outputs.size:
        return None
    typical = math.sqrt(problem.outputs.size * inputs.size)
    ladder = long_ladder(rtol / typical if atol else 0.0)
    line = line_of(problem.primals, inputs, ladder.attempts[0].step, Tangent(key))
    back_each = back_each or partial(problem.pull_back_each, problem.primals)
    asked = _OfProblem(problem.primals, problem.outputs, problem.evaluate_fresh, back_each)
    closed = _Proof(asked, ladder, rtol, atol, (key, key + 7), damping).closes_in_finite_part(line)
    return None if closed is None else Certificate(closed.allowed * typical)


def proves(asked: Asked, rtol: float, atol: float) -> bool:
    """Whether backward is the derivative of forward, to within the tolerances, and gives it each time.

    `rtol` is the relative error in the gradient of any one input that must be visible, except where it is
    below `atol`. False says nothing but that the proof did not close. Two forwards; up to four where two are
    too rough, up to ten to show that forward is flat or even. Through the one graph, a backward for each of
    two magnitudes, or, where there are several outputs, one for all, one for each and one again. Inputs whose
    share of the derivative is too small to be seen among the others are probed once more, alone. All of it
    twice where an entry is not finite.
    """
    primals = asked.primals
    inputs = Layout.of(primals)
    ladder = short_ladder(rtol / math.sqrt(asked.outputs.size * inputs.size))
    line = line_of(primals, inputs, ladder.attempts[0].step, Tangent(binary=False))
    return _Proof(asked, ladder, rtol, atol).closes_in_finite_part(line) is not None


def damping_of(problem: Problem) -> float:
    """The damping at which a proof sees a wrong tail of a function whose values span many decades."""
    few = problem.outputs.size * Layout.of(problem.primals).size <= UNDAMPED
    return math.inf if few else DAMPING


class _Proof(DotProductTest):
    """The same for all inputs."""

    def closes_in_finite_part(self, line: Line) -> Attempt | None:
        """The attempt by which it closes for all entries that can move."""
        closed = self.closes(line)
        held = None if closed is not None else line.held()
        return closed if held is None or not self.holds(held) else self.closes(held)

    def closes(self, line: Line) -> Attempt | None:
        """The attempt by which it closes for all inputs."""
        found = self.along(line, MAGNITUDES)
        if found is None:
            return None
        if found.attempt is not None:
            return found.attempt if self._faint_close(found, found.attempt) else None
        moving = [k for k, length in enumerate(line.inputs.lengths) if length]
        if found.weighed.flat:
            # Inputs that move at once may all leave what forward is at x: a label that is compared.
            here = found.beside if len(moving) == 1 else value_at(self.asked, line.point(0))
            stays = here is not None and self._is_flat(found, here.clone())
            stays = stays or (len(moving) == 1 and self._is_even(found))
            if stays and self._gives_zeros():
                return self.ladder.attempts[0]
        if len(moving) == 1 or not (self.ladder.each or found.weighed.flat):
            return None
        each = all(self._closes_alone(line, k, MAGNITUDES) for k in moving)
        return self.ladder.attempts[-1] if each else None

    def holds(self, line: Line) -> bool:
        """Whether backward gives exact zeros to entries that are not finite, which no step moves."""
        probe = cotangents_of(self.asked.outputs, ALONE, 1.0, self.keys)[0]
        found = self.pull_back([probe], [probe.values])
        return found is not None and all(
            g is None or not vector_of(g, block)[~x.reshape(-1).isfinite()].any()
            for g, x, block in zip(found[0], line.here, line.inputs.blocks, strict=True)
        )

    def _faint_close(self, whole: Along, attempt: Attempt) -> bool:
        """Whether it closes for each input whose gradient could be off by rtol unseen among the others."""
        lengths = whole.line.inputs.lengths
        if sum(map(bool, lengths)) == 1:
            return True
        least = attempt.allowed / self.rtol
        faint = [k for k, length in enumerate(lengths) if length and abs(whole.shares[k]) < least]
        zero = [k for k in faint if all(_is_zero(given[k]) for given in whole.gradients)]
        nothing: Gradients = (None,) * len(lengths)
        if len(zero) > 1:
            still = self.along(whole.line.only(zero), ALONE, nothing)
            if still is not None and still.weighed.flat and self._is_flat(still, still.beside.clone()):
                faint, zero = [k for k in faint if k not in zero], []
        return all(self._closes_alone(whole.line, k, ALONE, nothing if k in zero else None) for k in faint)

    def _closes_alone(
        self, line: Line, number: int, magnitudes: tuple[float, ...], known: Gradients | None = None
    ) -> bool:
        """The same proof with one input of the line moving alone."""
        found = self.along(line.only((number,)), magnitudes, known)
        if found is None or not found.weighed.flat:
            return found is not None and found.attempt is not None
        # Beside x: an input may have a value that makes forward jump at this point alone (a label).
        flat = self._is_flat(found, found.beside.clone())
        return flat and (known is not None or self._gives_zeros(number))

    def _is_flat(self, found: Along, here: Tensor) -> bool:
        """Whether each row stays what it is `here` far along the line, on one side at least.

        Or jumps there, so rarely that it rounds no number that moves: see `Ladder.jumps`.
        """
        far = found.line.stretched(self.ladder.far)
        left = torch.ones_like(here, dtype=torch.bool)
        for side in (1, -1):
            moved = self._moved(far, side, here)
            if moved is None:
                return False
            left &= moved
            if not left.any():
                return True
        for side in (1, -1) if self.ladder.jumps else ():
            left &= self._jumps_often(far, side, here, left)
            if not left.any():
                return True
        return False

    def _moved(self, line: Line, k: float, here: Tensor) -> Tensor | None:
        """Rows (bool, M) that are not what they are `here`; None where forward raises."""
        value = value_at(self.asked, line.point(k))
        return None if value is None else value != here

    def _jumps_often(self, line: Line, side: int, here: Tensor, asked: Tensor) -> Tensor:
        """Rows (bool, M), of those asked, that jump more often along the line than the ladder lets them.

        Those that count are none of them: they take whole numbers alone, where bfloat16 has fractions. All
        are where forward raises. It ends as soon as nothing more can be learned.
        """
        before, jumps = here, torch.zeros_like(here)
        counts = here.abs() < LARGEST_COUNT
        for k in range(1, STOPS + 1):
            value = value_at(self.asked, line.point(side * k / STOPS))
            if value is None:
                return asked
            jumps += value != before
            counts &= (value == value.round()) & (value.abs() < LARGEST_COUNT)
            before = value.clone()
            often = asked & (jumps > self.ladder.jumps) & ~counts
            if torch.equal(often, asked):
                break
        return often

    def _is_even(self, found: Along) -> bool:
        """Whether f has the same values on either side of x, near and far away, as |x| has at zero.

        Then its central differences are zero, and a gradient of zeros lies between its two slopes.
        """
        far = found.line.stretched(2.0**-4)
        for line, k in ((found.line, 2), (far, 1), (far, 2)):
            taken = difference(self.asked, line.point, k)
            if taken is None or taken[0].any():
                return False
        return True

    def _gives_zeros(self, number: int | None = None) -> bool:
        """Whether backward gives zeros, for every grad_output; to one input, where `number` says which.

        To the last bit, or what rounding leaves where numbers like one cancel, if that is below `atol`; and
        the same each time.
        """
        probes = cotangents_of(self.asked.outputs, MAGNITUDES, 1.0, self.keys)
        gradients = self.pull_back(probes, [probe.values for probe in probes])
        if gradients is None:
            return False
        own = [given if number is None else given[number : number + 1] for given in gradients]
        if all(_is_zero(g) for given in own for g in given):
            return True
        for probe, given in zip(probes, own, strict=True):
            most = min(self.atol, OF_ONE) * probe.scale / math.sqrt(probe.rows.stop - probe.rows.start)
            if not all(g is None or bool((g.abs() <= most).all()) for g in given):
                return False
        again = self.pull_back(probes[:1], [probes[0].values])
        return again is not None and identical(gradients[0], again[0], 1.0)


def _is_zero(gradient: Tensor | None) -> bool:
    return gradient is None or not gradient.count_nonzero().item()
