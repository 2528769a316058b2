"""Whether a mismatch on inferred inputs is one at inputs of every kind, or only off a manifold.

A Function of unit vectors or of symmetric matrices has a gradient that need be right only along that
manifold. Inputs guessed off it make a right backward look wrong. So the mismatch is measured again at
row-normalised and at symmetrised inputs, and only its part along the manifold counts. A forward that
projects its inputs onto the manifold itself is made for inputs off it, and nothing is measured again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.verifier.checks.grad_output import ignoring_grad_output
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.neighbours import is_square, one_like
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, judge

Move = Callable[[Tensor], Tensor]
"""An input to the nearest one on a manifold."""

Projection = Callable[[Tensor, Tensor], Tensor]
"""(differences of one row shaped like the input, the input) -> their part along the manifold."""

TAKES_BACK = 1e-2
"""Relative change of the outputs below which forward projects its inputs onto the manifold: the epsilon
under a root, and the like, may change them a little."""

LOPSIDED = 3.0
"""Factor between the rows of an input that is tried: another one for each row."""


def persists(sample: Sample) -> bool:
    """Whether the mismatch at this sample is there on both kinds of manifold, as far as they apply."""
    kinds: list[tuple[Move, Projection]] = []
    if not all(_takes_back(sample, place, _row_normalised) for place in _wrong_places(sample)):
        kinds.append((_row_normalised, _along_sphere))
    if any(is_square(p) for p in sample.problem.primals):
        kinds.append((_symmetrised, _along_symmetric))
    return all(_mismatch_along(sample, move, project) for move, project in kinds)


def right_at_definite(sample: Sample) -> bool:
    """Whether backward is right along symmetric matrices where the square inputs are positive definite.

    An iteration that solves with such a matrix alone overflows, or divides by zero, at any other one.
    """
    if not any(is_square(p) and not p.is_complex() for p in sample.problem.primals):
        return False
    return not _mismatch_along(sample, _definite, _along_symmetric)


def _wrong_places(sample: Sample) -> list[int]:
    """Places of the inputs whose gradient is wrong; all where that is not known."""
    problem = sample.problem
    judged = judge(problem, Tolerance(sample.subject.settings.rtol))
    every = list(range(len(problem.primals)))
    if not isinstance(judged, Judged):
        return every
    wrong = judged.comparison.wrong | judged.comparison.nonfinite
    return [k for k, b in enumerate(judged.inputs.blocks) if wrong[:, b.start : b.stop].any()] or every


def _takes_back(sample: Sample, place: int, move: Move) -> bool:
    """Whether forward gives for an input what it gives for the nearest one on a manifold."""
    problem = sample.problem
    primal = problem.primals[place]
    if not primal.dim():
        return False
    rows = torch.linspace(1.0, LOPSIDED, max(1, primal[..., 0].numel()), dtype=torch.float64)
    off = primal * rows.reshape(primal.shape[:-1]).unsqueeze(-1).to(primal)
    outputs = []
    for value in (off, move(primal)):
        result = problem.evaluate((*problem.primals[:place], value, *problem.primals[place + 1 :]))
        if isinstance(result, Raised):
            return False
        outputs.append(result.value)
    return all(
        a.shape == b.shape and bool(((a - b).norm() <= TAKES_BACK * b.norm()).all())
        for a, b in zip(*outputs, strict=True)
    )


def _mismatch_along(sample: Sample, move: Move, project: Projection) -> bool:
    arguments = tuple(replace(a, value=move(a.value)) if a.differentiable else a for a in sample.arguments)
    problem = replace(sample.problem, arguments=arguments)
    judged = judge(problem, Tolerance(sample.subject.settings.rtol))
    if not isinstance(judged, Judged):
        return True  # forward or backward refuses such inputs: it is not meant for them
    if ignoring_grad_output(problem):
        return True
    comparison = judged.comparison
    nonfinite = comparison.nonfinite.any()
    # All of a row with a wrong entry: what a projection sets against that entry may be too small to be wrong.
    wrong = comparison.wrong.any(dim=1, keepdim=True)
    difference = torch.where(wrong, comparison.analytical - comparison.numerical, 0.0)
    for block, primal in zip(sample.inputs.blocks, problem.primals, strict=True):
        columns = slice(block.start, block.stop)
        point = torch.view_as_real(primal) if primal.is_complex() else primal
        allowed = (
            comparison.bound[:, columns].nan_to_num(0.0, 0.0, 0.0).amax() if block.stop > block.start else 0.0
        )
        for row in difference[:, columns]:
            along = project(row.reshape(block.shape), point.cpu())
            if along.numel() and (along.abs() > allowed + 1e-9 * row.abs().max()).any():
                return True
    return bool(nonfinite)


def _row_normalised(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1) if x.dim() else x


def _along_sphere(difference: Tensor, x: Tensor) -> Tensor:
    """Without the part along x: moving along x leaves the unit sphere."""
    if not x.dim():
        return difference
    return difference - (difference * x).sum(dim=-1, keepdim=True) * x


def _symmetrised(x: Tensor) -> Tensor:
    return (x + x.mT) / 2 if is_square(x) else x


def _definite(x: Tensor) -> Tensor:
    if not is_square(x):
        return x
    return x @ x.mT + x.shape[-1] * one_like(x)


def _along_symmetric(difference: Tensor, x: Tensor) -> Tensor:
    return (difference + difference.mT) / 2 if is_square(x) else difference
