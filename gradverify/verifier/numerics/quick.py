"""The short proof: two or three evaluations and two backwards, for who asks for no more than tolerances.

It is the certificate (`certificate.py`): for a tangent v and a cotangent u, uᵀ(J v) from forward must be (Aᵀu)·v
from backward. Here the value at x is known already, from the call whose graph is asked:

    two values:     2 J T = F₁ - F₋₁
    three values:   6 J T = 6 (F₁ - F₀) - 2 (F₋₁ - F₀) - (F₂ - F₀)

(For the weights see Fornberg, *Generation of finite difference formulas*, 1988.) A drop-in asks this of thousands
of small problems, where our own work would cost as much as the function: operations on tensors (1 to 3 µs each,
whatever their size) are few, and what follows from shapes alone is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.central import Forward, Weighed, difference, value_at, weigh
from gradverify.verifier.numerics.certificate import ALONE, KEPT_ROWS, LEVELS, MAGNITUDES, noticed
from gradverify.verifier.numerics.flat import Block, Layout, tensor_of, vector_of
from gradverify.verifier.numerics.probes import short_values, signed_values, sizes_of
from gradverify.verifier.numerics.problem import Gradients

STEP = 2.0**-17
"""Step of two values, for who asks for no more than rtol: there truncation, h²/6, and the rounding of ordinary
values, 2^-53/h, are alike: 2^-36."""

ROUGH = 1.5 * 2.0**-33
"""What has to be seen finer than this drowns in the rounding of two values at `STEP` too often: with sums, and
rows whose derivative is small beside f, it is about eight times the 2^-36 of one ordinary value."""

LONG_STEP = 2.0**-15
"""The step for that: rounding is 2^-38 there, and where truncation is too much, a third value makes it h³/12."""

STAIR = 2.0**-5
"""Step of the question put to a forward that is flat: two steps of bfloat16 at least, half a step of `round` at
most for values up to 10. Where it is flat on one side as far as that, it is flat there and no rounding."""

TWO_VALUES, THREE_VALUES = 2.0, 6.0
"""The difference of as many values is this times the derivative along T."""


class Asked(Forward, Protocol):
    """A map and its backward at one point."""

    @property
    def primals(self) -> Sequence[Tensor]:
        """The differentiable inputs, detached."""

    @property
    def here(self) -> Sequence[Tensor | None]:
        """The m outputs at these inputs; None for zeros."""

    def back_each(self, cotangents: Sequence[Sequence[Tensor | None]]) -> Returned[list[Gradients]] | Raised:
        """The gradients for several sets of grad_outputs."""


@dataclass(frozen=True)
class _Moves:
    """Each input, and how far it goes; None for one that stays."""

    inputs: Layout
    here: Sequence[Tensor]
    """Plain float64 tensors."""
    steps: Sequence[Tensor | None]
    length: float
    """h, in units of each entry's size."""

    def point(self, k: float) -> list[Tensor]:
        """Fresh tensors at x + k · step."""
        moved = [
            x.clone() if step is None else torch.add(x, step, alpha=k)
            for x, step in zip(self.here, self.steps, strict=True)
        ]
        if self.inputs.is_plain:
            return moved
        return [tensor_of(x.reshape(-1), b) for x, b in zip(moved, self.inputs.blocks, strict=True)]

    def alone(self, number: int) -> _Moves:
        """One input moving alone."""
        return replace(self, steps=[s if k == number else None for k, s in enumerate(self.steps)])

    def longer(self, length: float) -> _Moves:
        """The same with longer steps."""
        steps = [None if s is None else s * (length / self.length) for s in self.steps]
        return replace(self, steps=steps, length=length)

    def noticed(self, atol: float) -> float:
        """What an error of atol in one entry makes in the derivative along v."""
        steps = torch.cat([step.reshape(-1) for step in self.steps if step is not None])
        return noticed(atol, steps) / self.length


@dataclass(frozen=True)
class _Probe:
    """One grad_output before it is weighed."""

    values: Tensor
    """A vector of what it is defined for, its magnitude included."""
    only: int | None
    """The one output that it is defined for, by number; None for all of them."""
    rows: slice
    """Where that lies among all rows."""
    scale: float
    """Its size, times the root of the number of rows that it weighs."""

    def weighed(self, by: Weighed) -> Tensor:
        """The same with every row divided by what it counts."""
        return self.values / (by.size if self.only is None else by.size[self.rows])

    def shaped(self, values: Tensor, outputs: Layout) -> Sequence[Tensor | None]:
        """A grad_output for every output, None for those that stay undefined."""
        if self.only is None:
            return outputs.shaped(values)
        block = outputs.blocks[self.only]
        own = values.view(block.shape) if block.is_plain else tensor_of(values, block)
        return [own if number == self.only else None for number in range(len(outputs.blocks))]


@dataclass(frozen=True)
class _Trial:
    """One direction, and a difference of values along it."""

    asked: Asked
    moves: _Moves
    allowed: float
    """The residual allowed for one row of weight one."""
    weighed: Weighed
    """The difference of two values, by whose sizes rows are weighed."""
    here: Tensor
    """f(x), M entries."""
    ahead: Tensor
    """One of the two values, M entries, in memory that may be f's own."""
    change: Tensor
    """The difference, M entries."""
    factor: float
    """It is this times the derivative along T."""

    def expected(self, probe: _Probe, line: Tensor) -> float:
        """u · J T for a weighed probe u."""
        change = self.change if probe.only is None else self.change[probe.rows]
        return torch.dot(line, change).item() / self.factor

    def shares(self, probe: _Probe, expected: float, gradients: Gradients) -> list[float] | None:
        """What each input has of G(u)·T, for rows of weight one; None where they do not sum to u·J T."""
        found = [
            0.0 if g is None or step is None else _dot(g, step, block)
            for g, step, block in zip(gradients, self.moves.steps, self.moves.inputs.blocks, strict=True)
        ]
        unit = TWO_VALUES / probe.scale
        if not abs(expected - sum(found)) * unit <= self.allowed:  # also where it is NaN
            return None
        return [unit * share for share in found]

    def sums(self, probe: _Probe, gradients: Gradients) -> list[float] | None:
        """The same, with what is expected worked out anew: user code may have written into its grad_output."""
        return self.shares(probe, self.expected(probe, probe.weighed(self.weighed)), gradients)

    def finer(self) -> _Trial | None:
        """The same by three values; None where it is that already, or forward raises at the third.

        Or writes over one of the others.
        """
        further = None if self.factor == THREE_VALUES else value_at(self.asked, self.moves.point(2))
        if further is None or further.data_ptr() == self.ahead.data_ptr():
            return None
        here = self.here
        change = (self.weighed.change * 2).add_(self.ahead - here, alpha=4).sub_(further - here)
        return replace(self, change=change, factor=THREE_VALUES)

    def pull_back(self, probes: Sequence[_Probe], lines: Sequence[Tensor]) -> list[Gradients] | None:
        """What backward gives for weighed probes; None where it raises."""
        outputs = self.asked.outputs
        shaped = [probe.shaped(line, outputs) for probe, line in zip(probes, lines, strict=True)]
        result = self.asked.back_each(shaped)
        return None if isinstance(result, Raised) else result.value


def proves(asked: Asked, rtol: float, atol: float) -> bool:
    """Whether backward is the derivative of forward, to within the tolerances, and gives it each time.

    `rtol` is the relative error in the gradient of any one input that must be visible, except where it is below
    `atol`. False says nothing but that the proof did not close. Two forwards, three where two are too rough;
    and, through the one graph, a backward for each of two magnitudes, or, where there are several outputs, one
    for all, one for each and one again. Inputs whose share of the derivative is too small to be seen among the
    others are probed once more, alone.
    """
    primals = asked.primals
    inputs = Layout.of(primals)
    fine, coarse = LEVELS
    wanted = rtol / math.sqrt(asked.outputs.size * inputs.size)
    moves = _moves(primals, inputs, STEP if wanted > ROUGH else LONG_STEP)
    # A copy, before forward is called again: it may return the same memory every time.
    here = asked.outputs.flatten(asked.here)
    trial = _tried(asked, moves, here, max(fine.allowed, min(coarse.allowed, wanted)))
    if trial is None:
        return False
    if trial.weighed.flat:
        return _flat_on_one_side(trial) and _pulls_back_zeros(trial)
    if not trial.weighed.sees(trial.allowed, rtol, lambda: moves.noticed(atol)):
        return False
    probes = _probes_of(asked.outputs, MAGNITUDES, trial.weighed.unit)
    lines = [probe.weighed(trial.weighed) for probe in probes]
    expected = trial.expected(probes[0], lines[0])  # before user code could write into a grad_output
    gradients = trial.pull_back(probes, lines)
    if gradients is None:
        return False
    shares = trial.shares(probes[0], expected, gradients[0])
    if shares is None:
        trial = trial.finer()
        shares = None if trial is None else trial.sums(probes[0], gradients[0])
    if trial is None or shares is None or not _repeats(trial, probes, gradients):
        return False
    faint = [k for k, n in enumerate(inputs.lengths) if n and abs(shares[k]) < trial.allowed / rtol]
    if not faint or sum(map(bool, inputs.lengths)) == 1:
        return True
    return all(_closes_alone(trial, k, gradients, rtol, atol) for k in faint)


def _repeats(trial: _Trial, probes: Sequence[_Probe], gradients: Sequence[Gradients]) -> bool:
    """Whether the other grad_outputs close as well, and backward gives the same when it is asked again.

    For one output it is asked the same at another magnitude, both powers of two: no product rounds differently,
    and gradients that are the same to the last bit close as the first did.
    """
    first, *others = gradients
    if len(others) == 1 and probes[1].only is None:
        if _identical(first, others[0], MAGNITUDES[1] / MAGNITUDES[0]):
            return True
    if not all(trial.sums(probe, given) for probe, given in zip(probes[1:], others, strict=True)):
        return False
    again = trial.pull_back(probes[:1], [probes[0].weighed(trial.weighed)])
    return again is not None and _identical(first, again[0], 1.0)


def _closes_alone(
    whole: _Trial, number: int, gradients: Sequence[Gradients], rtol: float, atol: float
) -> bool:
    """The same proof with one input moving alone, for which `gradients` are known to other grad_outputs.

    Where these are exactly zero for random ones, they are for every one: backward need not be asked.
    """
    zero = all(_is_zero(given[number]) for given in gradients)
    trial = _tried(whole.asked, whole.moves.alone(number), whole.here, whole.allowed)
    if trial is None or trial.weighed.flat:
        return trial is not None and zero
    probes = _probes_of(trial.asked.outputs, ALONE, trial.weighed.unit)
    nothing: Gradients = (None,) * len(trial.moves.steps)
    lines = [probe.weighed(trial.weighed) for probe in probes]
    found = [nothing for _ in probes] if zero else trial.pull_back(probes, lines)
    if found is None or not trial.weighed.sees(trial.allowed, rtol, lambda: whole.moves.noticed(atol)):
        return False
    if all(trial.sums(probe, given) for probe, given in zip(probes, found, strict=True)):
        return True
    finer = trial.finer()
    return finer is not None and all(
        finer.sums(probe, given) for probe, given in zip(probes, found, strict=True)
    )


def _moves(primals: Sequence[Tensor], inputs: Layout, length: float) -> _Moves:
    """Steps that are exact: T = fl(x + h v) - x."""
    here: list[Tensor] = []
    steps: list[Tensor | None] = []
    for primal, block in zip(primals, inputs.blocks, strict=True):
        x = primal if block.is_plain else vector_of(primal, block)
        tangent = sizes_of(x).mul_(short_values(x.shape, block.start))
        here.append(x)
        steps.append(torch.add(x, tangent, alpha=length).sub_(x))
    return _Moves(inputs, here, steps, length)


def _tried(asked: Asked, moves: _Moves, here: Tensor, allowed: float) -> _Trial | None:
    """What forward has along the steps; None where it raises or is not finite there."""
    found = difference(asked, moves.point, 1)
    weighed = None if found is None else weigh(asked.outputs, *found, TWO_VALUES * moves.length)
    if found is None or weighed is None:
        return None
    return _Trial(asked, moves, allowed, weighed, here, found[1], found[0], TWO_VALUES)


def _flat_on_one_side(trial: _Trial) -> bool:
    """Whether no row of f moves by a long step both ways: each has its value at x on one side at least.

    A jump on the other side is a stair.
    """
    far = trial.moves.longer(STAIR)
    flat: list[Tensor] = []
    for k in (1, -1):
        value = value_at(trial.asked, far.point(k))
        if value is None:
            return False
        flat.append(value == trial.here)
    return bool((flat[0] | flat[1]).all())


def _pulls_back_zeros(trial: _Trial) -> bool:
    """Whether backward gives exact zeros, for every grad_output."""
    probes = _probes_of(trial.asked.outputs, MAGNITUDES, 1.0)
    gradients = trial.pull_back(probes, [probe.values.clone() for probe in probes])
    return gradients is not None and all(_is_zero(g) for given in gradients for g in given)


def _probes_of(outputs: Layout, magnitudes: tuple[float, ...], unit: float) -> Sequence[_Probe]:
    """Of such magnitudes in `unit`: one where J v is of ordinary size, once they are divided by J v times that."""
    make = _kept_probes if outputs.size <= KEPT_ROWS else _made_probes
    return make(tuple(outputs.lengths), tuple([m * unit for m in magnitudes]))


def _made_probes(lengths: tuple[int, ...], sizes: tuple[float, ...]) -> Sequence[_Probe]:
    """One grad_output for all outputs, and the same at the other sizes; or, of several, one for each alone."""
    count = sum(lengths)
    if len(lengths) == 1:
        return [_probe(0, slice(0, count), size, None) for size in sizes]
    stops = list(accumulate(lengths))
    rows = [slice(stop - length, stop) for stop, length in zip(stops, lengths, strict=True)]
    each = [_probe(k + 1, rows[k], sizes[-1], k) for k, length in enumerate(lengths) if length]
    return [_probe(0, slice(0, count), sizes[0], None), *each]


_kept_probes = lru_cache(maxsize=64)(_made_probes)


def _probe(key: int, rows: slice, size: float, only: int | None) -> _Probe:
    count = rows.stop - rows.start
    return _Probe(signed_values(count, 7 * key + 1) * size, only, rows, abs(size) * math.sqrt(count))


def _dot(gradient: Tensor, step: Tensor, block: Block) -> float:
    return torch.dot(vector_of(gradient, block), step.reshape(-1)).item()


def _is_zero(gradient: Tensor | None) -> bool:
    return gradient is None or not gradient.count_nonzero().item()


def _identical(actual: Gradients, expected: Gradients, factor: float) -> bool:
    """Whether `expected` is `factor` times `actual`, to the last bit; None agrees with None."""
    for a, e in zip(actual, expected, strict=True):
        if a is None or e is None:
            if a is not e:
                return False
        elif not torch.equal(a * factor, e):
            return False
    return True
