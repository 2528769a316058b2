"""What a script compares: one directional derivative, by backward and by a central difference.

An entry of a Jacobian is the derivative of <u, f> in the direction d, both of them zero but for one 1.
A finding without an entry (a gradient of the wrong dtype, a grad_output that is ignored) takes random u
and d. The second order is the same for the gradient as a function of the inputs and of grad_output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from gradverify.model import Case, Entry, Finding, TensorInput, tensors_of
from gradverify.rules import Family, rule
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.inputs.structures import retraction
from gradverify.verifier.numerics.problem import CallProblem, VjpProblem

Problem = CallProblem | VjpProblem

STEPS = tuple(10.0**-k for k in range(1, 8))
"""Steps tried, relative to the coordinate: the best for a smooth function is about 1e-5."""

SHARE_OF_TOLERANCE = 10.0
"""A difference is seen where it is this many times larger than the error of the central difference."""

FIRST_SEED = 41
"""Offset from a case's seed to that of the directions drawn here."""


@dataclass(frozen=True)
class Probe:
    """One directional derivative."""

    by: str
    """The input that is moved."""
    cotangents: tuple[Tensor | None, ...]
    """u, one for each output of the problem; None leaves an output out."""
    direction: Tensor
    """d, of the input's own shape and dtype."""
    moved: tuple[Tensor, Tensor] | None
    """The input moved by +step and -step; None where that is nothing but x ± step·d."""
    step: float
    analytical: float
    numerical: float
    tolerance: float


def probe(sample: Sample, problem: Problem, finding: Finding) -> Probe | None:
    """The derivative that shows a finding; None where a central difference cannot."""
    entry = finding.entries.worst[0] if finding.entries is not None and finding.entries.worst else None
    names = problem.input_names
    by = finding.input if finding.input in names else names[0]
    number = names.index(by)
    seed = sample.case.seed + FIRST_SEED
    cotangents = _cotangents(problem, finding, entry, seed)
    direction = _direction(problem.primals[number], entry, seed + 1)
    pulled = problem.pull_back(problem.primals, cotangents)
    if isinstance(pulled, Raised):
        return None
    analytical = inner([pulled.value[number]], [direction])
    moving = _Moving(sample, next((a for a in sample.arguments if a.name == by), None))
    expected = None if entry is None else entry.expected
    found = _best_step(problem, cotangents, number, moving, direction, expected)
    if found is None:
        return None
    step, numerical, error = found
    difference = abs(analytical - numerical) if math.isfinite(analytical) else math.inf
    if not difference > 4 * error:
        return None
    allowed = max(sample.subject.settings.rtol * abs(numerical), SHARE_OF_TOLERANCE * error)
    primal = problem.primals[number]
    ahead, behind = (moving.moved(primal + sign * step * direction) for sign in (1, -1))
    return Probe(
        by=by,
        cotangents=cotangents,
        direction=moving.tangent(direction),
        moved=(ahead, behind) if moving.is_bent else None,
        step=step,
        analytical=analytical,
        numerical=numerical,
        tolerance=min(allowed, difference / 2),
    )


@dataclass(frozen=True)
class _Moving:
    """How one input moves: entries that are held stay, structures are kept."""

    sample: Sample
    argument: Argument | None
    """None for a grad_output."""

    @cached_property
    def bend(self) -> Callable[[Tensor], Tensor] | None:
        """What brings a moved input back onto its structure; a layout alone bends nothing."""
        argument, case = self.argument, self.sample.case
        if argument is None or argument.step is None:
            return None
        if not layout_of(case, argument.name):
            return argument.step
        structures = [t.structure for i in case.inputs for t in tensors_of(i) if i.name == argument.name]
        return retraction(structures[0], argument.value) if structures and structures[0] else None

    @property
    def is_bent(self) -> bool:
        """A step is more than a sum."""
        return self.argument is not None and (self.argument.held is not None or self.bend is not None)

    def held(self, value: Tensor) -> Tensor:
        """A moved input with its held entries as they were."""
        return value if self.argument is None else self.argument.without_held(value)

    def moved(self, value: Tensor) -> Tensor:
        """The same, back on its structure."""
        return self.held(value) if self.bend is None else self.bend(self.held(value))

    def tangent(self, direction: Tensor) -> Tensor:
        """Which way the input really moves when its structure bends a step along a direction."""
        if self.bend is None or self.argument is None:
            return direction
        pushed = torch.func.jvp(self.bend, (self.argument.value,), (direction,))[1]
        return pushed if isinstance(pushed, Tensor) else direction


def inner(left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> float:
    """The real inner product of two lists of tensors."""
    pairs = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    return float(sum((a.conj() * b.to(a.dtype)).sum().real.item() for a, b in pairs))


def layout_of(case: Case, name: str) -> str:
    """The sparse layout that the spec gives a tensor input; empty without one."""
    return next((i.layout for i in case.inputs if isinstance(i, TensorInput) and i.name == name), "")


def _cotangents(
    problem: Problem, finding: Finding, entry: Entry | None, seed: int
) -> tuple[Tensor | None, ...]:
    layout, chosen = problem.outputs, finding.output
    if entry is None:
        flat = random_signs(layout.size, seed)
        if chosen is None or rule(finding.code).family is not Family.GRADGRADCHECK:
            return layout.unflatten(flat)
    else:
        chosen = chosen or 0
        block = layout.blocks[problem.output_positions.index(chosen)]
        flat = torch.zeros(layout.size, dtype=torch.float64)
        flat[block.start + _place(block.shape, entry.output)] = 1.0
    pairs = zip(layout.unflatten(flat), problem.output_positions, strict=True)
    return tuple(t if position == chosen else None for t, position in pairs)


def _place(shape: Sequence[int], index: Sequence[int]) -> int:
    """Position in the flat tensor of a multi-index."""
    place = 0
    for size, here in zip(shape, index, strict=True):
        place = place * size + here
    return place


def _direction(primal: Tensor, entry: Entry | None, seed: int) -> Tensor:
    shape = (*primal.shape, 2) if primal.is_complex() else tuple(primal.shape)
    flat = torch.zeros(math.prod(shape), dtype=torch.float64)
    if entry is None or entry.input is None:
        flat = random_signs(flat.numel(), seed)
    else:
        flat[_place(shape, entry.input)] = 1.0
    shaped = flat.reshape(shape)
    return (torch.view_as_complex(shaped) if primal.is_complex() else shaped).to(primal)


def _best_step(
    problem: Problem,
    cotangents: Sequence[Tensor | None],
    number: int,
    moving: _Moving,
    direction: Tensor,
    expected: float | None,
) -> tuple[float, float, float] | None:
    """The step whose central difference is best, its value, and how far that may be off."""
    primals = problem.primals
    around = primals[number][direction != 0].abs()
    scale = float(around.max().item()) if around.numel() and around.max() > 0 else 1.0
    found: list[tuple[float, float]] = []
    for relative in STEPS:
        step = float(f"{relative * scale:.1g}")
        values = []
        for sign in (1, -1):
            changed = list(primals)
            changed[number] = moving.held(primals[number] + sign * step * direction)
            result = problem.evaluate(changed)
            values.append(math.nan if isinstance(result, Raised) else inner(cotangents, result.value))
        found.append((step, (values[0] - values[1]) / (2 * step)))
    if expected is not None and math.isfinite(expected):
        errors = [(abs(value - expected), step, value) for step, value in found]
    else:  # each is held against the coarser one before it
        errors = [(abs(value - before), step, value) for (_, before), (step, value) in pairwise(found)]
    usable = [one for one in errors if math.isfinite(one[0])]
    if not usable:
        return None
    error, step, numerical = min(usable, key=lambda one: one[0])
    return step, numerical, error
