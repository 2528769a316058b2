"""The verified gradient that every variation must reproduce, and when a difference from it counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Entries, Entry, Finding, TargetKind, indexed
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.variations.running import Call, backward, called
from gradverify.verifier.checks.wording import WORST_ENTRIES, number
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import Gradients, Tensors, copies
from gradverify.verifier.numerics.flat import Block, Layout
from gradverify.verifier.numerics.noise import own_noise
from gradverify.verifier.numerics.own_rounding import gradient_round_off, value_round_off
from gradverify.verifier.numerics.problem import CallProblem, VjpProblem
from gradverify.verifier.numerics.rounding import ROUND_OFF, SCALES, gradient_noise, nudged

ROUND_OFFS = 10.0
"""A difference counts beyond so many times the measured round-off: another layout sums in another order."""


@dataclass(frozen=True)
class Difference:
    """The worst place at which two gradients, or two results of forward, differ."""

    place: str
    """`x[0,2]`."""
    name: str
    """The input, or the output, it belongs to."""
    got: float
    wanted: float
    missing: bool = False
    """There is no gradient at all: None."""
    block: int = 0
    """The number of that input, or of that output."""
    entries: Entries | None = None
    """All of it that differs, the worst ones by name."""

    @property
    def values(self) -> str:
        """`0.5 instead of 0.25`."""
        got, wanted = number(self.got), number(self.wanted)
        if got == wanted:
            got, wanted = f"{self.got:.12g}", f"{self.wanted:.12g}"
        return f"{'None' if self.missing else got} instead of {wanted}"


@dataclass(frozen=True)
class Verified:
    """A sample whose first order is verified, with one gradient of it."""

    sample: Sample
    u: Tensor
    """The grad_outputs, flat: signed, never near zero, never all alike."""
    gradient: Tensor
    """What backward returns for them, flat."""
    values: Tensor
    """What forward returns, flat."""
    forward_draws: bool
    """Forward draws random numbers: with another layout it may draw others."""
    backward_draws: bool

    @cached_property
    def inputs(self) -> Layout:
        """Layout of the differentiable inputs."""
        return self.sample.inputs

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the differentiable inputs."""
        return self.sample.problem.input_names

    def is_passed(self, argument: Argument) -> bool:
        """Whether the caller passes this argument: a module allocates its own parameters."""
        is_module = self.sample.subject.target.kind is TargetKind.MODULE
        return not (is_module and argument.name.startswith("self."))

    def grad_outputs(self, flat: Tensor | None = None) -> Tensors:
        """Fresh grad_outputs, one for each output."""
        return self.sample.problem.outputs.unflatten(self.u if flat is None else flat)

    def gradient_for(self, flat: Tensor) -> Tensor | None:
        """The gradient for other grad_outputs by an ordinary call, flat; None where it raises."""
        result = self.sample.problem.pull_back(self.sample.problem.primals, self.grad_outputs(flat))
        return None if isinstance(result, Raised) else self.inputs.flatten(result.value)

    def difference(
        self,
        got: Gradients,
        wanted: Tensor | None = None,
        *,
        u: Tensor | None = None,
        only: frozenset[int] | None = None,
        rounding_of: CallProblem | None = None,
    ) -> Difference | None:
        """Where gradients differ from the verified one by more than rounding and the tolerance.

        `u` are the grad_outputs they were computed for, `only` the numbers of the inputs to look at.
        `rounding_of` is where they come from, if it rounds otherwise than the verified problem.
        """
        base = self.gradient if wanted is None else wanted
        flat = self.inputs.flatten(got)
        if torch.equal(flat, base):
            return None
        looked = torch.ones_like(flat, dtype=torch.bool)
        for position, block in enumerate(self.inputs.blocks):
            if only is not None and position not in only:
                looked[block.start : block.stop] = False
        off = torch.where(looked, _off(flat, base), 0.0)
        bound = self._tolerance(base, self.inputs)
        if not (off > bound).any():
            return None
        noise = gradient_noise(VjpProblem(self.sample.problem, self.grad_outputs(u)))
        if rounding_of is not None:
            there = rounding_of.outputs.unflatten(self.u if u is None else u)
            noise = noise + gradient_noise(VjpProblem(rounding_of, there))
        bound = torch.maximum(bound, ROUND_OFFS * noise)
        if (off > bound).any():
            bound += gradient_round_off(self.sample.problem, self.grad_outputs(u))
        found = _worst(flat, base, off, bound, self.inputs, self.names)
        return found and replace(found, missing=got[self.names.index(found.name)] is None)

    def unrepeated(self, gradient: Tensor) -> Difference | None:
        """Where the gradient (flat) of the very same call differs by more than sums in another order do.

        Noise measured by calls that do not repeat themselves is no rounding: it excuses a small share of
        the largest values at most.
        """
        if torch.equal(gradient, self.gradient):
            return None
        off, bound = _off(gradient, self.gradient), self._tolerance(self.gradient, self.inputs)
        if not (off > bound).any():
            return None
        largest = max(t.abs().max().item() for t in (self.gradient, self._natural_slope))
        noise = gradient_noise(VjpProblem(self.sample.problem, self.grad_outputs()))
        excused = (ROUND_OFFS * noise).clamp_max(ROUND_OFF * largest)
        return _worst(gradient, self.gradient, off, torch.maximum(bound, excused), self.inputs, self.names)

    @property
    def _natural_slope(self) -> Tensor:
        """|f| / |x|: the size of the terms of a gradient that cancels."""
        size = self.inputs.flatten(self.sample.problem.primals).abs()
        typical = size[size > 0].median() if (size > 0).any() else torch.ones((), dtype=torch.float64)
        return self.values.abs().nan_to_num(0.0, 0.0, 0.0) / typical

    def forward_difference(
        self, outputs: Sequence[Tensor], wanted: Tensor | None = None
    ) -> Difference | None:
        """Where results of forward differ from those of the verified call."""
        return self._forward_difference(outputs, self.values if wanted is None else wanted, math.inf)

    def forward_unrepeated(self, outputs: Sequence[Tensor]) -> Difference | None:
        """Where results of the very same call differ by more than sums in another order do."""
        largest = self.values.abs().nan_to_num(0.0, 0.0, 0.0).max().item() if len(self.values) else 0.0
        return self._forward_difference(outputs, self.values, ROUND_OFF * largest)

    def _forward_difference(
        self, outputs: Sequence[Tensor], base: Tensor, most_excused: float
    ) -> Difference | None:
        layout = self.sample.problem.outputs
        if [tuple(t.shape) for t in outputs] != [tuple(t.shape) for t in layout.unflatten(base)]:
            return Difference("the shape of the result", "the output", torch.nan, torch.nan)
        flat = layout.flatten(outputs)
        if torch.equal(flat, base):
            return None
        off, bound = _off(flat, base), self._tolerance(base, layout)
        if not (off > bound).any():
            return None
        names = [
            f"output {p}" if len(layout.blocks) > 1 else "y" for p in self.sample.problem.output_positions
        ]
        bound = torch.maximum(bound, (ROUND_OFFS * self._forward_noise).clamp_max(most_excused))
        if (off > bound).any():
            bound += torch.as_tensor(value_round_off(self.sample.problem)).clamp_max(most_excused)
        found = _worst(flat, base, off, bound, layout, names)
        return found and replace(found, entries=found.entries and _of_output(found.entries))

    def finding(self, code: str, message: str, **fields: Any) -> Finding:  # noqa: ANN401 - of Finding
        """A finding at this sample."""
        return self.sample.finding(code, message, **fields)

    def _tolerance(self, base: Tensor, layout: Layout) -> Tensor:
        settings = self.sample.subject.settings
        bound = torch.full_like(base, settings.atol)
        size = base.abs().nan_to_num(0.0, 0.0, 0.0)
        for block in layout.blocks:
            part = slice(block.start, block.stop)
            if block.stop > block.start:
                bound[part] += settings.rtol * (size[part] + size[part].median())
        return bound

    @cached_property
    def _forward_noise(self) -> Tensor:
        """How far rounding moves forward: the spread at inputs moved by a few units in the last place."""
        problem, generator = self.sample.problem, torch.Generator().manual_seed(20_263)
        spread = own_noise(self.values, problem.outputs)
        flat = self.inputs.flatten(problem.primals)
        for _ in SCALES:
            moved = self.inputs.unflatten(nudged(flat, self.inputs, generator, most=4))
            result = problem.evaluate(moved)
            if not isinstance(result, Raised):
                off = _off(problem.outputs.flatten(result.value), self.values)
                spread = torch.maximum(spread, off.nan_to_num(0.0, 0.0, 0.0))
        return spread


def cotangents(sample: Sample) -> Tensor:
    """The grad_outputs of the verified gradient, flat: signed, never near zero, never all alike."""
    return random_signs(sample.problem.outputs.size, sample.case.seed + 31)


def verified(sample: Sample) -> Verified | None:
    """One gradient of a verified sample, at a random signed grad_output; None where it raises."""
    problem = sample.problem
    u = cotangents(sample)
    call = called(sample)
    forward_draws = not problem.random_states.untouched()
    if isinstance(call, Raised):
        return None
    values = problem.outputs.flatten(copies(call.value.outputs))
    result = backward(sample, call.value, problem.outputs.unflatten(u))
    backward_draws = not problem.random_states.untouched()
    if isinstance(result, Raised):
        return None
    gradient = sample.inputs.flatten(result.value)
    if not gradient.isfinite().all():
        return None
    return Verified(sample, u, gradient, values, forward_draws, backward_draws)


def gradients_of(base: Verified, call: Call, grad_outputs: Sequence[Tensor | None]) -> Gradients | Raised:
    """Backward of one call: the gradients, or what it raised."""
    result = backward(base.sample, call, grad_outputs)
    return result if isinstance(result, Raised) else result.value


def _off(got: Tensor, wanted: Tensor) -> Tensor:
    """Absolute differences: none where both are the same, infinite where one of them is not finite."""
    off = (got - wanted).abs()
    off = torch.where(off.isfinite(), off, torch.inf)
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    return torch.where(same, 0.0, off)


def _worst(
    got: Tensor, wanted: Tensor, off: Tensor, bound: Tensor, layout: Layout, names: Sequence[str]
) -> Difference | None:
    if not (off > bound).any():
        return None
    worst = int(torch.where(off > bound, off, -1.0).argmax())
    position = layout.block_of(worst)
    block = layout.blocks[position]
    place = indexed(names[position], block.index(worst))
    part = slice(block.start, block.stop)
    entries = _entries(got[part], wanted[part], off[part], bound[part], block)
    return Difference(
        place, names[position], got[worst].item(), wanted[worst].item(), block=position, entries=entries
    )


def _entries(got: Tensor, wanted: Tensor, off: Tensor, bound: Tensor, block: Block) -> Entries:
    """Every entry of one gradient that is off by more than its bound; all arguments are flat."""
    wrong = off > bound
    order = torch.where(wrong, off, -1.0).argsort(descending=True, stable=True)[:WORST_ENTRIES].tolist()
    worst = tuple(
        Entry((), block.index(block.start + k), got[k].item(), wanted[k].item(), bound[k].item())
        for k in order
        if wrong[k]
    )
    return Entries(int(wrong.sum()), len(wrong), worst, compared_with="reference")


def _of_output(entries: Entries) -> Entries:
    """The same of a result, which has no input."""
    worst = tuple(replace(e, output=e.input or (), input=None) for e in entries.worst)
    return replace(entries, worst=worst)
