"""The dot-product test on the graph of one call, for who asks for no more than tolerances.

uᵀ(J v) from forward against (Aᵀu)·v from backward, as in `witnesses/proof.py`, by two values of forward and
two backwards where these do: a drop-in asks this of thousands of small problems, where our own work would
cost as much as the function. J v is a difference along one line along which every input entry moves by its
own size, and u weighs each row by the inverse of |J v|_i. What does not close is tried with other stencils,
then with each input moving alone: one that makes forward jump says nothing of the others. Where nothing
closes, nothing is said.

(Claerbout, *Earth Soundings Analysis*, 1992, ch. 5, for the dot-product test of adjoint codes.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.probes import (
    FOUR_APART,
    OUTER_VALUES,
    TWO_VALUES,
    Asked,
    Cotangent,
    Differences,
    Line,
    Stencil,
    Weighed,
    cotangents_of,
    line_of,
    value_at,
    weigh,
)
from gradverify.verifier.numerics.problem import Gradients, Layout, vector_of

SHORT_STEPS = ((2.0**-32, 2.0**-17), (2.0**-36, 2.0**-15), (2.0**-39, 2.0**-14), (0.0, 2.0**-13))
"""What has to be seen of a residual, and the step for as much or more. At 2^-17 truncation by two values,
h²/6, and the rounding of ordinary values, 2^-53/h, are alike: 2^-36. With sums, and rows whose derivative is
small beside f, rounding is eight times that, and for 10^5 entries a hundred times. What is finer drowns in
it, and takes a longer step. No longer than these, since a step over a kink closes nothing. Measured on sums,
products and softmax of 10^3 to 10^5 entries, and on PyTorch's operator database."""

FINE = 2.0**-33
"""The residual that is allowed for one row of weight one."""

COARSE = 2.0**-28
"""The most that is allowed, where tolerances need no less."""

NEAR = 2.0**-5
"""How far a row that does not move is followed, in units of each entry's size, and has to stay on one side.
What rounds to bfloat16 inside makes two steps or more there, and `round` half a step for values up to 10."""

LESS = 0.5
"""Share of the first residual that may be left by other values at the same step: a gradient that is off
leaves the same by all, and shall not slip under what is allowed by a little less rounding."""

MAGNITUDES = (-(2.0**12), 2.0**-20)
"""Sizes of grad_output: a backward that clamps, thresholds or squares it can satisfy one of them only. No
larger, since a right backward may round relative to grad_output (`matrix_exp` scales it with its matrix)."""

ALONE = (1.0,)
"""The same where an input is probed alone: that backward is linear has been seen."""


@dataclass(frozen=True)
class Attempt:
    """One way to ask forward, and how far backward may be off then."""

    step: float
    """h, in units of each entry's size."""
    stencil: Stencil
    allowed: float
    """The residual allowed for one row of weight one."""
    less: float = math.inf
    """Share of the residual of the first attempt that may be left."""


@lru_cache(maxsize=64)
def attempts_for(visible: float) -> tuple[Attempt, ...]:
    """In order of cost, all at one step; `visible` is the residual that has to be seen."""
    allowed = max(FINE, min(COARSE, visible))
    step = next(step for least, step in SHORT_STEPS if visible >= least)
    stencils = (TWO_VALUES, FOUR_APART, OUTER_VALUES)
    return tuple(Attempt(step, s, allowed, LESS if s.outer else math.inf) for s in stencils)


@dataclass(frozen=True)
class Along:
    """What forward and backward have along a line."""

    line: Line
    weighed: Weighed
    beside: Tensor
    """f at x + T, M entries, in memory that may be f's own."""
    attempt: Attempt | None = None
    """The one that closed."""
    shares: Sequence[float] = ()
    """What each input has of the derivative then, for rows of weight one."""
    gradients: Sequence[Gradients] = ()


@dataclass(frozen=True)
class DotProductTest:
    """A map and its backward, and how they are asked."""

    asked: Asked
    attempts: tuple[Attempt, ...]
    rtol: float
    atol: float

    def along(
        self, line: Line, magnitudes: tuple[float, ...], known: Gradients | None = None
    ) -> Along | None:
        """The first attempt that closes along a line; None where forward raises or is not finite there.

        `known` are the gradients for every grad_output, where that is known.
        """
        first, taken = self.attempts[0], Differences(self.asked, line)
        change, beside = taken.by(first.stencil), taken.beside
        if change is None or beside is None:
            return None
        unit = first.stencil.factor * line.length
        weighed = weigh(self.asked.outputs, change, beside, unit)
        if weighed is None:
            return None
        found = Along(line, weighed, beside)
        if weighed.flat or not self._sees(found, first.allowed):
            return found
        probes = cotangents_of(self.asked.outputs, magnitudes, unit)
        lines = [probe.weighed(weighed.size) for probe in probes]
        gradients = self.pull_back(probes, lines) if known is None else [known] * len(probes)
        if gradients is None:
            return found
        same = _same_again(probes, gradients)
        reported = slice(0, 1) if same else slice(None)
        closed = self._closed(found, taken, probes[reported], lines[reported], gradients[reported])
        if closed is None or same or magnitudes is ALONE:
            return closed or found
        again = self.pull_back(probes[:1], lines[:1])
        return closed if again is not None and identical(gradients[0], again[0], 1.0) else found

    def _closed(
        self,
        found: Along,
        taken: Differences,
        probes: Sequence[Cotangent],
        lines: Sequence[Tensor],
        gradients: Sequence[Gradients],
    ) -> Along | None:
        """By which attempt forward along the line, weighed by the probes, is what backward gave for them."""
        first, weighed, left = self.attempts[0], found.weighed, math.inf
        for attempt in self.attempts:
            change = taken.by(attempt.stencil)
            if change is None or (attempt is not first and not change.any()):
                continue
            expected = [_expected(p, u, change) for p, u in zip(probes, lines, strict=True)]
            unit = weighed.unit / taken.line.length
            residual = 0.0
            shares: list[float] = []
            for probe, wanted, given in zip(probes, expected, gradients, strict=True):
                own = _shares(taken.line, given)
                off = abs(wanted / attempt.stencil.factor - sum(own)) * unit / probe.scale
                residual = max(residual, off) if math.isfinite(off) else math.inf
                shares = shares or [share * unit / probe.scale for share in own]
            if residual <= min(attempt.allowed, attempt.less * left):
                return Along(found.line, weighed, found.beside, attempt, shares, gradients)
            left = min(left, residual) if attempt is first else left
        return None

    def _sees(self, found: Along, allowed: float) -> bool:
        """Whether errors of rtol are larger than what is allowed, in every row that is not below atol."""
        return found.weighed.sees(allowed, self.rtol, lambda: found.line.noticed(self.atol))

    def pull_back(self, probes: Sequence[Cotangent], lines: Sequence[Tensor]) -> list[Gradients] | None:
        """What backward gives for weighed probes; None where it raises."""
        outputs = self.asked.outputs
        shaped = [probe.shaped(line, outputs) for probe, line in zip(probes, lines, strict=True)]
        result = self.asked.back_each(shaped)
        return None if isinstance(result, Raised) else result.value

    def closes(self, line: Line) -> bool:
        """Whether it closes for all inputs."""
        found = self.along(line, MAGNITUDES)
        if found is None:
            return False
        if found.attempt is not None:
            return self._faint_close(found, found.attempt)
        moving = [k for k, length in enumerate(line.inputs.lengths) if length]
        if found.weighed.flat:
            # Inputs that move at once may all leave what forward is at x: a label that is compared.
            here = found.beside if len(moving) == 1 else value_at(self.asked, line.point(0))
            if here is not None and self._is_flat(found, here.clone()) and self._gives_zeros():
                return True
        if len(moving) == 1 or not found.weighed.flat:
            return False
        return all(self._closes_alone(line, k, MAGNITUDES) for k in moving)

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
        """Whether each row stays what it is `here` far along the line, on one side at least."""
        far, left = found.line.stretched(NEAR), torch.ones_like(here, dtype=torch.bool)
        for side in (1, -1):
            value = value_at(self.asked, far.point(side))
            if value is None:
                return False
            left &= value != here
            if not left.any():
                return True
        return False

    def _gives_zeros(self, number: int | None = None) -> bool:
        """Whether backward gives zeros for every grad_output; to one input, where `number` says which."""
        probes = cotangents_of(self.asked.outputs, MAGNITUDES, 1.0)
        gradients = self.pull_back(probes, [probe.values for probe in probes])
        own = slice(None) if number is None else slice(number, number + 1)
        return gradients is not None and all(_is_zero(g) for given in gradients for g in given[own])


def _expected(probe: Cotangent, line: Tensor, change: Tensor) -> float:
    """U · change."""
    return torch.dot(line, change if probe.only is None else change[probe.rows]).item()


def _shares(line: Line, gradients: Gradients) -> list[float]:
    """What each input has of G(u)·T."""
    return [
        0.0
        if g is None or step is None
        else torch.dot(vector_of(g, block), step if step.dim() == 1 else step.reshape(-1)).item()
        for g, step, block in zip(gradients, line.steps, line.inputs.blocks, strict=True)
    ]


def _same_again(probes: Sequence[Cotangent], gradients: Sequence[Gradients]) -> bool:
    """Whether there is one output, and backward gives the same at another magnitude, to the last bit.

    Both are powers of two: no product rounds differently, and what closes for one closes for the other.
    """
    if len(gradients) != 2 or probes[1].only is not None:
        return False
    return identical(gradients[0], gradients[1], MAGNITUDES[1] / MAGNITUDES[0])


def identical(actual: Gradients, expected: Gradients, factor: float) -> bool:
    """Whether `expected` is `factor` times `actual`, to the last bit; None agrees with None."""
    for a, e in zip(actual, expected, strict=True):
        if a is None or e is None:
            if a is not e:
                return False
        elif not torch.equal(a * factor, e):
            return False
    return True


def proves(asked: Asked, rtol: float, atol: float) -> bool:
    """Whether backward is the derivative of forward, to within the tolerances, and gives it each time.

    `rtol` is the relative error in the gradient of any one input that must be visible, except where it is
    below `atol`. False says nothing but that the proof did not close. Two forwards; up to four where two are
    too rough, up to five to show that forward is flat. Through the one graph, a backward for each of two
    magnitudes, or, where there are several outputs, one for all, one for each and one again. Inputs whose
    share of the derivative is too small to be seen among the others are probed once more, alone.
    """
    primals = asked.primals
    inputs = Layout.of(primals)
    attempts = attempts_for(rtol / math.sqrt(asked.outputs.size * inputs.size))
    line = line_of(primals, inputs, attempts[0].step)
    return DotProductTest(asked, attempts, rtol, atol).closes(line)


def _is_zero(gradient: Tensor | None) -> bool:
    return gradient is None or not gradient.count_nonzero().item()
