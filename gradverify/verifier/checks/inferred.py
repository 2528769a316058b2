"""The guard on inferred inputs: a mismatch counts only if it persists where inputs lie on a manifold.

A Function of unit vectors or of symmetric matrices has a gradient that need be right only along that
manifold. Inputs guessed off it make a right backward look wrong. So the mismatch is measured again at
row-normalised and at symmetrised inputs, and only its part along the manifold counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.numerics.verdict import Judged, judge

Projection = Callable[[Tensor, Tensor], Tensor]
"""(differences of one row shaped like the input, the input) -> their part along the manifold."""


def persists(sample: Sample) -> bool:
    """Whether the mismatch at this sample is there on both kinds of manifold, as far as they apply."""
    kinds: list[tuple[Callable[[Tensor], Tensor], Projection]] = [(_row_normalised, _along_sphere)]
    if all(_is_square(p) for p in sample.problem.primals):
        kinds.append((_symmetrised, _along_symmetric))
    return all(_mismatch_along(sample, move, project) for move, project in kinds)


def _mismatch_along(sample: Sample, move: Callable[[Tensor], Tensor], project: Projection) -> bool:
    arguments = tuple(replace(a, value=move(a.value)) if a.differentiable else a for a in sample.arguments)
    problem = replace(sample.problem, arguments=arguments)
    judged = judge(problem, rtol=sample.subject.settings.rtol)
    if not isinstance(judged, Judged):
        return True  # forward or backward refuses such inputs: it is not meant for them
    comparison = judged.comparison
    nonfinite = comparison.nonfinite.any()
    difference = torch.where(comparison.wrong, comparison.analytical - comparison.numerical, 0.0)
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
    return (x + x.mT) / 2


def _along_symmetric(difference: Tensor, x: Tensor) -> Tensor:
    del x
    return (difference + difference.mT) / 2


def _is_square(x: Tensor) -> bool:
    return x.dim() >= 2 and x.shape[-1] == x.shape[-2]
