"""Sets of values that may be meant where others are wrong: unit rows, simplices, structures of matrices.

Each says how a spec declares it, how an input gets there, and what of a gradient counts along it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.checks.neighbours import Projection, one_like

Move = Callable[[Tensor], Tensor]
"""An input to the nearest one on a manifold."""

SMALL = 0.1
"""Factor on inputs at which most iterations and series converge, alone or added to one or the identity:
slopes are below one there."""


@dataclass(frozen=True)
class Manifold:
    """How a spec declares it, how inputs get there, and what counts along it."""

    declared: str
    move: Move
    along: Projection
    of_squares: bool = True
    """Of square matrices alone."""


def row_normalised(x: Tensor) -> Tensor:
    """Rows of norm one."""
    return torch.nn.functional.normalize(x, dim=-1) if x.dim() else x


def _along_sphere(difference: Tensor, x: Tensor) -> Tensor:
    """Without the part along x: moving along x leaves the unit sphere."""
    if not x.dim():
        return difference
    return difference - (difference * x).sum(dim=-1, keepdim=True) * x


def _sharing_one(x: Tensor) -> Tensor:
    """Positive rows with the sum 1."""
    return x.abs() / x.abs().sum(dim=-1, keepdim=True) if x.dim() and not x.is_complex() else x


def _along_simplex(difference: Tensor, x: Tensor) -> Tensor:
    """Without the mean of each row: a sum that remains 1 changes by none."""
    return difference - difference.mean(dim=-1, keepdim=True) if x.dim() else difference


def _symmetrised(x: Tensor) -> Tensor:
    return (x + x.mT) / 2


def definite(x: Tensor) -> Tensor:
    """Symmetric, positive definite matrices."""
    return x @ x.mT + x.shape[-1] * one_like(x)


def _along_orthogonal(difference: Tensor, x: Tensor) -> Tensor:
    """Its part along x times an antisymmetric matrix: moving there leaves x orthogonal."""
    turned: Tensor = x.mT @ difference
    skew: Tensor = (turned - turned.mT) / 2
    return x.matmul(skew)


UNIT_ROWS = Manifold("`structure: unit-norm`", row_normalised, _along_sphere, of_squares=False)


SHORT_ROWS = Manifold(
    "a narrower `range:`",
    lambda x: row_normalised(x) / 2,
    lambda difference, _: difference,
    of_squares=False,
)
"""Rows of another length, along which everything counts: then it is the size of the values that matters."""


SIMPLEX = Manifold("`structure: simplex`", _sharing_one, _along_simplex, of_squares=False)


SYMMETRIC = Manifold("`structure: symmetric`", _symmetrised, lambda d, _: _symmetrised(d))


ORTHOGONAL = Manifold("`structure: orthogonal`", lambda x: torch.linalg.qr(x).Q, _along_orthogonal)


DEFINITE = Manifold("`structure: spd`", definite, lambda d, _: _symmetrised(d))


NEAR_IDENTITY = Manifold(
    "a `make:` function of symmetric matrices near the identity",
    lambda x: one_like(x) + SMALL * _symmetrised(x) / x.abs().max().clamp_min(1.0),
    lambda d, _: _symmetrised(d),
)


SUPPORTS = (
    Manifold(
        "a `make:` function of diagonal matrices",
        lambda x: torch.diag_embed(x.diagonal(dim1=-2, dim2=-1).abs()),  # of eigenvalues: a root is real
        lambda d, _: torch.diag_embed(d.diagonal(dim1=-2, dim2=-1)),
    ),
    Manifold("`structure: triangular`", torch.tril, lambda d, _: d.tril()),
    Manifold("a `make:` function of upper triangular matrices", torch.triu, lambda d, _: d.triu()),
)
