"""Whether a mismatch on inferred inputs is one at inputs of every kind, or only off a manifold.

A Function of unit vectors or of symmetric matrices has a gradient that need be right only along that
manifold. Inputs guessed off it make a right backward look wrong. So the mismatch is measured again at
row-normalised and at symmetrised inputs, and only its part along the manifold counts. A forward that
projects its inputs onto the manifold itself is made for inputs off it, if backward goes by where they were:
nothing is measured again. If backward does not, forward normalises only what is normal already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.model import Point
from gradverify.verifier.checks.grad_output import ignoring_grad_output
from gradverify.verifier.checks.structured_grad_outputs import wrong_with_structure
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.neighbours import (
    Projection,
    compared,
    is_far_off_along,
    is_square,
    one_like,
)
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.problem import CallProblem, Layout
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, judge

SMALL = 0.1
"""Size of the entries in which matrices near the identity differ from it: most series converge there."""

Move = Callable[[Tensor], Tensor]
"""An input to the nearest one on a manifold."""

TAKES_BACK = 1e-2
"""Relative change of the outputs below which forward projects its inputs onto the manifold: the epsilon
under a root, and the like, may change them a little."""

BLIND = 1e-6
"""Relative change of a gradient, and of the outputs, that is rounding alone."""

LOPSIDED = 3.0
"""Factor between the rows of an input that is tried: another one for each row."""


@dataclass(frozen=True)
class _Manifold:
    """How a spec declares it, how inputs get there, and what counts along it."""

    declared: str
    move: Move
    along: Projection
    of_squares: bool = True
    """Of square matrices alone."""


def right_along(sample: Sample) -> str:
    """The structure of some input, as a spec declares it, along which the mismatch is not there; or empty.

    Only those count that may be meant: unit rows unless forward normalises them, and backward knows; rows
    with the sum 1 if both are blind to how long rows are; diagonal and triangular matrices of the inputs for
    which backward gives nothing outside of that; symmetric and orthogonal ones.
    """
    return next(filter(None, _structures(sample)), "")


def _structures(sample: Sample) -> Iterator[str]:
    wrong = _wrong_places(sample)
    blind = all(_is_blind_to_lengths(sample, place) for place in wrong)
    if blind or not all(_takes_back(sample, place, _row_normalised) for place in wrong):
        along = _along(sample, _UNIT_ROWS)
        yield along and (_along(sample, _SHORT_ROWS) or along)
    if blind:
        yield _along(sample, _SIMPLEX)
    if any(map(is_square, sample.problem.primals)):
        yield from _along_supports(sample)
        yield _along(sample, _SYMMETRIC)
        yield _along(sample, _ORTHOGONAL)


def _along(sample: Sample, kind: _Manifold, only: Collection[str] | None = None) -> str:
    """The structure, if the mismatch is not there along it, of the one input that needs it, or of all."""
    pairs = zip(sample.problem.input_names, sample.problem.primals, strict=True)
    real = [(n, p) for n, p in pairs if p.dim() and not p.is_complex()]
    names = [n for n, p in real if not kind.of_squares or is_square(p)]
    names = [n for n in names if only is None or n in only]
    shares = _shares(sample)
    if _mismatch_along(sample, kind, names, shares):
        return ""
    alone = [[name] for name in names if not _mismatch_along(sample, kind, [name], shares)]
    return f"{kind.declared} of {' and '.join(f'`{name}`' for name in (alone or [names])[0])}"


def _along_supports(sample: Sample) -> Iterator[str]:
    """The same for matrices that are zero outside of some entries, of the inputs whose gradient is, too."""
    problem = sample.problem
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.key))
    pulled = problem.pull_back(problem.primals, u)
    if isinstance(pulled, Raised):
        return
    given = zip(problem.input_names, problem.primals, pulled.value, strict=True)
    gradients = {n: g for n, p, g in given if g is not None and is_square(p) and p.shape[-1] > 1 and g.any()}
    for kind in _SUPPORTS:
        names = [n for n, g in gradients.items() if g.shape[-2:] == g.mT.shape[-2:]]
        names = [n for n in names if torch.equal(kind.along(gradients[n], gradients[n]), gradients[n])]
        yield _along(sample, kind, names) if names else ""


def right_at_definite(sample: Sample) -> str:
    """The structure of positive definite matrices, if backward is right along symmetric ones there; or empty.

    An iteration that solves with such a matrix alone overflows, or divides by zero, at any other one; a
    series, or a fixed number of rounds, has converged near the identity.
    """
    return _along(sample, _DEFINITE) or _along(sample, _NEAR_IDENTITY)


def linear_at_definite(sample: Sample) -> str:
    """The structure of positive definite matrices, if backward is linear in grad_output there; or empty.

    An iteration that solves with such a matrix alone need not converge at any other one.
    """
    if not any(is_square(p) and not p.is_complex() for p in sample.problem.primals):
        return ""
    moved = tuple(
        replace(a, value=_definite(a.value)) if a.differentiable and is_square(a.value) else a
        for a in sample.arguments
    )
    problem = replace(sample.problem, arguments=moved)
    u = random_signs(problem.outputs.size, sample.key)
    gradient = problem.pull_back(problem.primals, problem.outputs.unflatten(u))
    if isinstance(gradient, Raised) or not sample.inputs.flatten(gradient.value).isfinite().all():
        return ""
    subject = replace(sample.subject, is_first_of_options=True)
    there = replace(sample, arguments=moved, problem=problem, point=Point.TYPICAL, draw=0, subject=subject)
    return "" if wrong_with_structure(there) else "`structure: spd`"


def _wrong_places(sample: Sample) -> list[int]:
    """Places of the inputs whose gradient is wrong; all where that is not known."""
    names = sample.problem.input_names
    return [names.index(name) for name in _shares(sample)] or list(range(len(names)))


def _shares(sample: Sample) -> dict[str, float]:
    """Inputs whose gradient is wrong, with the largest difference as a share of the largest derivative."""
    comparison = compared(sample)
    if comparison is None:
        return {}
    wrong = comparison.wrong | comparison.nonfinite
    difference = (comparison.analytical - comparison.numerical).abs().nan_to_num(0.0, 0.0, 0.0)
    found = {}
    for name, block in zip(sample.problem.input_names, sample.inputs.blocks, strict=True):
        columns = slice(block.start, block.stop)
        if wrong[:, columns].any():
            largest = comparison.numerical[:, columns].abs().nan_to_num(0.0, 0.0, 0.0).max().item()
            share = difference[:, columns].max().item() / largest if largest else 1.0
            found[name] = min(share, 1.0) or 1.0
    return found


def _takes_back(sample: Sample, place: int, move: Move) -> bool:
    """Whether forward gives for an input what it gives for the nearest one on a manifold."""
    problem = sample.problem
    primal = problem.primals[place]
    if not primal.dim():
        return False
    outputs = []
    for value in (_lopsided(primal), move(primal)):
        result = problem.evaluate((*problem.primals[:place], value, *problem.primals[place + 1 :]))
        if isinstance(result, Raised):
            return False
        outputs.append(result.value)
    return all(
        a.shape == b.shape and bool(((a - b).norm() <= TAKES_BACK * b.norm()).all())
        for a, b in zip(*outputs, strict=True)
    )


def _lopsided(primal: Tensor) -> Tensor:
    """Every row longer than it was, each by another factor."""
    rows = torch.linspace(1.0, LOPSIDED, max(1, primal[..., 0].numel()) + 1, dtype=torch.float64)[1:]
    return primal * rows.reshape(primal.shape[:-1]).unsqueeze(-1).to(primal)


def _is_blind_to_lengths(sample: Sample, place: int) -> bool:
    """Whether neither forward nor the gradient of an input goes by how long its rows are.

    Where forward does not, the derivative is the smaller the longer the row.
    """
    problem = sample.problem
    primal = problem.primals[place]
    if not primal.dim() or primal.is_complex():
        return False
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.key))
    found = []
    for value in (primal, _lopsided(primal)):
        moved = (*problem.primals[:place], value, *problem.primals[place + 1 :])
        values, gradients = problem.evaluate(moved), problem.pull_back(moved, u)
        gradient = None if isinstance(gradients, Raised) else gradients.value[place]
        if isinstance(values, Raised) or gradient is None:
            return False
        found.append((*values.value, gradient))
    return all(a.shape == b.shape and torch.allclose(a, b, rtol=BLIND) for a, b in zip(*found, strict=True))


def _mismatch_along(
    sample: Sample, kind: _Manifold, names: Collection[str], shares: Mapping[str, float]
) -> bool:
    """Whether there is a mismatch where some inputs are on a manifold, and move along it.

    Or one would hide: where a gradient all but vanishes, a mistake of the same share of it is not seen.
    """
    arguments = tuple(
        replace(a, value=kind.move(a.value)) if a.differentiable and a.name in names else a
        for a in sample.arguments
    )
    problem = replace(sample.problem, arguments=arguments)
    if is_far_off_along(sample, problem, problem.input_names, dict.fromkeys(names, kind.along)):
        return True
    judged = judge(problem, Tolerance(sample.subject.settings.rtol))
    values = problem.evaluate(problem.primals)
    if not isinstance(judged, Judged) or isinstance(values, Raised):
        return True  # forward or backward refuses such inputs: it is not meant for them
    if not all(bool(v.isfinite().all()) for v in values.value) or ignoring_grad_output(problem):
        return True  # it is not meant for such inputs either
    return _differs_along(problem, judged.comparison, dict.fromkeys(names, kind.along), shares)


def _differs_along(
    problem: CallProblem,
    comparison: Comparison,
    projections: Mapping[str, Projection],
    shares: Mapping[str, float],
) -> bool:
    """Whether both Jacobians differ along the manifolds of some inputs, or a mistake would hide."""
    nonfinite = comparison.nonfinite.any()
    # All of a row with a wrong entry: what a projection sets against that entry may be too small to be wrong.
    wrong = comparison.wrong.any(dim=1, keepdim=True)
    difference = torch.where(wrong, comparison.analytical - comparison.numerical, 0.0)
    pairs = zip(Layout.of(problem.primals).blocks, problem.primals, strict=True)
    for name, (block, primal) in zip(problem.input_names, pairs, strict=True):
        columns = slice(block.start, block.stop)
        allowed = (
            comparison.bound[:, columns].nan_to_num(0.0, 0.0, 0.0).amax() if block.stop > block.start else 0.0
        )
        steepest = comparison.numerical[:, columns].abs().nan_to_num(0.0, 0.0, 0.0)
        if name in shares and not bool((shares[name] * steepest > allowed).any()):
            return True
        for row in difference[:, columns]:
            shaped = row.reshape(block.shape)
            along = projections[name](shaped, primal.cpu()) if name in projections else shaped
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


def _sharing_one(x: Tensor) -> Tensor:
    """Positive rows with the sum 1."""
    return x.abs() / x.abs().sum(dim=-1, keepdim=True) if x.dim() and not x.is_complex() else x


def _along_simplex(difference: Tensor, x: Tensor) -> Tensor:
    """Without the mean of each row: a sum that remains 1 changes by none."""
    return difference - difference.mean(dim=-1, keepdim=True) if x.dim() else difference


def _symmetrised(x: Tensor) -> Tensor:
    return (x + x.mT) / 2


def _definite(x: Tensor) -> Tensor:
    return x @ x.mT + x.shape[-1] * one_like(x)


def _near_identity(x: Tensor) -> Tensor:
    return one_like(x) + SMALL * _symmetrised(x) / x.abs().max().clamp_min(1.0)


def _along_symmetric(difference: Tensor, x: Tensor) -> Tensor:
    del x
    return _symmetrised(difference)


def _nearest_orthogonal(x: Tensor) -> Tensor:
    nearest: Tensor = torch.linalg.qr(x).Q
    return nearest


def _along_orthogonal(difference: Tensor, x: Tensor) -> Tensor:
    """Its part along x times an antisymmetric matrix: moving there leaves x orthogonal."""
    turned: Tensor = x.mT @ difference
    skew: Tensor = (turned - turned.mT) / 2
    return x.matmul(skew)


def _diagonal(x: Tensor) -> Tensor:
    """Of eigenvalues: a root of them is real."""
    return torch.diag_embed(torch.diagonal(x, dim1=-2, dim2=-1).abs())


def _along_diagonal(difference: Tensor, x: Tensor) -> Tensor:
    del x
    return torch.diag_embed(torch.diagonal(difference, dim1=-2, dim2=-1))


_UNIT_ROWS = _Manifold("`structure: unit-norm`", _row_normalised, _along_sphere, of_squares=False)
_SHORT_ROWS = _Manifold(
    "a narrower `range:`",
    lambda x: _row_normalised(x) / 2,
    lambda difference, _: difference,
    of_squares=False,
)
"""Rows of another length, along which everything counts: then it is the size of the values that matters."""

_SIMPLEX = _Manifold("`structure: simplex`", _sharing_one, _along_simplex, of_squares=False)
_SYMMETRIC = _Manifold("`structure: symmetric`", _symmetrised, _along_symmetric)
_ORTHOGONAL = _Manifold("`structure: orthogonal`", _nearest_orthogonal, _along_orthogonal)
_DEFINITE = _Manifold("`structure: spd`", _definite, _along_symmetric)
_NEAR_IDENTITY = _Manifold(
    "a `make:` function of symmetric matrices near the identity", _near_identity, _along_symmetric
)

_SUPPORTS = (
    _Manifold("a `make:` function of diagonal matrices", _diagonal, _along_diagonal),
    _Manifold("`structure: triangular`", torch.tril, lambda difference, _: difference.tril()),
    _Manifold("a `make:` function of upper triangular matrices", torch.triu, lambda d, _: d.triu()),
)
