"""What a script compares: one directional derivative, by backward and by a central difference.

An entry of a Jacobian is the derivative of <u, f> in the direction d, both of them zero but for one 1.
A finding without an entry (a gradient of the wrong dtype, a grad_output that is ignored) takes random u
and d. The second order is the same for the gradient as a function of the inputs and of grad_output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.model import Case, Entry, Finding, TensorInput, tensors_of
from gradverify.rules import Family, rule
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.inputs.structures import retraction
from gradverify.verifier.numerics.flat import Block
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
    cotangents = _cotangents(problem, finding, entry, sample.case.seed + FIRST_SEED)
    primal = problem.primals[number]
    direction = _direction(primal, entry, sample.case.seed + FIRST_SEED + 1)
    argument = next((a for a in sample.arguments if a.name == by), None)
    analytical = _analytical(problem, cotangents, number, direction)
    if analytical is None:
        return None
    expected = entry.expected if entry is not None else None
    found = _best_step(problem, cotangents, number, argument, direction, expected)
    if found is None:
        return None
    step, numerical, error = found
    difference = abs(analytical - numerical) if math.isfinite(analytical) else math.inf
    if not difference > 4 * error:
        return None
    allowed = max(sample.subject.settings.rtol * abs(numerical), SHARE_OF_TOLERANCE * error)
    bent = argument is not None and (argument.held is not None or _bend(sample, argument) is not None)
    ahead, behind = (_moved(sample, argument, primal, sign * step * direction) for sign in (1, -1))
    return Probe(
        by=by,
        cotangents=cotangents,
        direction=_tangent(sample, argument, direction),
        moved=(ahead, behind) if bent else None,
        step=step,
        analytical=analytical,
        numerical=numerical,
        tolerance=min(allowed, difference / 2),
    )


def inner(left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> float:
    """The real inner product of two lists of tensors."""
    pairs = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    return float(sum((a.conj() * b.to(a.dtype)).sum().real.item() for a, b in pairs))


def layout_of(case: Case, name: str) -> str:
    """The sparse layout that the spec gives a tensor input; empty without one."""
    return next((i.layout for i in case.inputs if isinstance(i, TensorInput) and i.name == name), "")


def _bend(sample: Sample, argument: Argument | None) -> Callable[[Tensor], Tensor] | None:
    """What brings a moved input back onto its structure; a layout alone bends nothing."""
    if argument is None or argument.step is None:
        return None
    if not layout_of(sample.case, argument.name):
        return argument.step
    structures = [t.structure for i in sample.case.inputs for t in tensors_of(i) if i.name == argument.name]
    return retraction(structures[0], argument.value) if structures and structures[0] else None


def _moved(sample: Sample, argument: Argument | None, primal: Tensor, step: Tensor) -> Tensor:
    """An input one step away, its held entries as they were, back on its structure."""
    value = primal + step
    if argument is None:
        return value
    bend = _bend(sample, argument)
    value = argument.without_held(value)
    return value if bend is None else bend(value)


def _tangent(sample: Sample, argument: Argument | None, direction: Tensor) -> Tensor:
    """Which way the input really moves when its structure bends a step along a direction."""
    bend = _bend(sample, argument)
    if bend is None or argument is None:
        return direction
    pushed = torch.func.jvp(bend, (argument.value,), (direction,))[1]
    return pushed if isinstance(pushed, Tensor) else direction


def _cotangents(
    problem: Problem, finding: Finding, entry: Entry | None, seed: int
) -> tuple[Tensor | None, ...]:
    layout, chosen = problem.outputs, finding.output
    if entry is None:
        signs = layout.unflatten(random_signs(layout.size, seed))
        first_order = rule(finding.code).family is not Family.GRADGRADCHECK
        return signs if first_order or chosen is None else _alone(signs, problem, chosen)
    block = layout.blocks[problem.output_positions.index(chosen or 0)]
    vector = torch.zeros(layout.size, dtype=torch.float64)
    vector[_place(block, entry.output)] = 1.0
    return _alone(layout.unflatten(vector), problem, chosen or 0)


def _alone(tensors: Sequence[Tensor], problem: Problem, position: int) -> tuple[Tensor | None, ...]:
    return tuple(t if p == position else None for t, p in zip(tensors, problem.output_positions, strict=True))


def _place(block: Block, index: Sequence[int]) -> int:
    """Position in the flat vector of a multi-index."""
    place = 0
    for size, here in zip(block.shape, index, strict=True):
        place = place * size + here
    return block.start + place


def _direction(primal: Tensor, entry: Entry | None, seed: int) -> Tensor:
    real = torch.view_as_real(torch.zeros_like(primal)) if primal.is_complex() else torch.zeros_like(primal)
    flat = real.reshape(-1)
    if entry is None or entry.input is None:
        flat = random_signs(flat.numel(), seed).to(flat)
    else:
        place = 0
        for size, here in zip(real.shape, entry.input, strict=True):
            place = place * size + here
        flat[place] = 1.0
    shaped = flat.reshape(real.shape)
    return torch.view_as_complex(shaped.contiguous()) if primal.is_complex() else shaped


def _analytical(
    problem: Problem, cotangents: Sequence[Tensor | None], number: int, direction: Tensor
) -> float | None:
    pulled = problem.pull_back(problem.primals, cotangents)
    if isinstance(pulled, Raised):
        return None
    return inner([pulled.value[number]], [direction])


def _best_step(
    problem: Problem,
    cotangents: Sequence[Tensor | None],
    number: int,
    argument: Argument | None,
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
            value = primals[number] + sign * step * direction
            changed[number] = value if argument is None else argument.without_held(value)
            result = problem.evaluate(changed)
            values.append(math.nan if isinstance(result, Raised) else inner(cotangents, result.value))
        found.append((step, (values[0] - values[1]) / (2 * step)))
    known = expected if expected is not None and math.isfinite(expected) else None
    errors = [
        abs(value - (found[max(place - 1, 0)][1] if known is None else known))
        for place, (_, value) in enumerate(found)
    ]
    first = 0 if known is not None else 1  # the coarsest has none before it to be held against
    usable = [(errors[k], k) for k in range(first, len(found)) if math.isfinite(errors[k])]
    if not usable:
        return None
    error, place = min(usable)
    return (*found[place], error)
