"""What a script compares: one directional derivative, by backward and by a central difference.

An entry of a Jacobian is the derivative of <u, f> in the direction d, both of them zero but for one 1.
A finding without an entry (a gradient of the wrong dtype, a grad_output that is ignored) takes random u
and d. The second order is the same for the gradient as a function of the inputs and of grad_output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gradverify.model import Case, Entry, Finding, TensorInput
from gradverify.rules import Family, rule
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.flat import Layout
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

    number: int
    """Position of the input that is moved."""
    cotangents: tuple[Tensor | None, ...]
    """u, one for each output of the problem; None leaves an output out."""
    direction: Tensor
    """d, of the input's own shape and dtype; on a structure, the way that a step really goes."""
    moved: tuple[Tensor, Tensor]
    """The input moved by +step and -step."""
    step: float
    tolerance: float


def probe(sample: Sample, problem: Problem, finding: Finding) -> Probe | None:
    """The derivative that shows a finding; None where a central difference cannot."""
    entry = finding.entries.worst[0] if finding.entries is not None and finding.entries.worst else None
    names = problem.input_names
    number = names.index(finding.input) if finding.input in names else 0
    primal, seed = problem.primals[number], sample.case.seed + FIRST_SEED
    cotangents = _cotangents(problem, finding, entry, seed)
    layout = Layout.of([primal])
    (direction,) = layout.unflatten(random_signs(layout.size, seed + 1))
    if entry is not None and entry.input is not None:
        direction = _unit(primal, entry.input)
    pulled = problem.pull_back(problem.primals, cotangents)
    if isinstance(pulled, Raised):
        return None
    analytical = _inner([pulled.value[number]], [direction])
    argument = next((a for a in sample.arguments if a.name == names[number]), None)
    found = _best_step(problem, cotangents, number, argument, direction)
    if found is None:
        return None
    step, numerical, error = found
    difference = abs(analytical - numerical) if math.isfinite(analytical) else math.inf
    if not difference > 4 * error:
        return None
    allowed = max(sample.subject.settings.rtol * abs(numerical), SHARE_OF_TOLERANCE * error)
    held = [_held(argument, primal + sign * step * direction) for sign in (1, -1)]
    if argument is not None and argument.step is not None and not layout_of(sample.case, argument.name):
        held = [argument.step(value) for value in held]
        direction = torch.func.jvp(argument.step, (primal,), (direction,))[1]
    return Probe(number, cotangents, direction, (held[0], held[1]), step, min(allowed, difference / 2))


def layout_of(case: Case, name: str) -> str:
    """The sparse layout that the spec gives a tensor input; empty without one."""
    return next((i.layout for i in case.inputs if isinstance(i, TensorInput) and i.name == name), "")


def _held(argument: Argument | None, value: Tensor) -> Tensor:
    """A moved input with its held entries as they were; there is no argument for a grad_output."""
    return value if argument is None else argument.without_held(value)


def _inner(left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> float:
    """The real inner product of two lists of tensors."""
    pairs = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    return float(sum((a.conj() * b.to(a.dtype)).sum().real.item() for a, b in pairs))


def _unit(like: Tensor, index: Sequence[int]) -> Tensor:
    """Zeros, but for a 1 at an index, whose last place is the part of a complex tensor."""
    unit = torch.zeros_like(like)
    (torch.view_as_real(unit) if unit.is_complex() else unit)[tuple(index)] = 1.0
    return unit


def _cotangents(
    problem: Problem, finding: Finding, entry: Entry | None, seed: int
) -> tuple[Tensor | None, ...]:
    chosen = finding.output
    drawn = problem.outputs.unflatten(random_signs(problem.outputs.size, seed))
    if entry is not None:
        chosen = chosen or 0
        k = problem.output_positions.index(chosen)
        drawn = tuple(_unit(t, entry.output) if i == k else t for i, t in enumerate(drawn))
    elif chosen is None or rule(finding.code).family is not Family.GRADGRADCHECK:
        return drawn
    return tuple(t if p == chosen else None for t, p in zip(drawn, problem.output_positions, strict=True))


def _best_step(
    problem: Problem,
    cotangents: Sequence[Tensor | None],
    number: int,
    argument: Argument | None,
    direction: Tensor,
) -> tuple[float, float, float] | None:
    """The step whose central difference is nearest to the one before it, its value, and how near that is."""
    primals = problem.primals
    around = primals[number][direction != 0].abs()
    scale = float(around.max().item()) if around.numel() and around.max() > 0 else 1.0
    found: list[tuple[float, float]] = []
    for relative in STEPS:
        step = float(f"{relative * scale:.1g}")
        values = []
        for sign in (1, -1):
            changed = list(primals)
            changed[number] = _held(argument, primals[number] + sign * step * direction)
            result = problem.evaluate(changed)
            values.append(math.nan if isinstance(result, Raised) else _inner(cotangents, result.value))
        found.append((step, (values[0] - values[1]) / (2 * step)))
    errors = [(step, value, abs(value - before)) for (_, before), (step, value) in pairwise(found)]
    usable = [one for one in errors if math.isfinite(one[2])]
    return min(usable, key=lambda one: one[2], default=None)
