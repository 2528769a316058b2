"""Sets of inputs that may be meant: unit rows, simplices, matrices of a structure.

A Function of unit vectors or of symmetric matrices has a gradient that need be right only along that
manifold; a solver with a positive definite matrix overflows at any other one. A forward that projects its
inputs onto the set itself is made for inputs off it, if backward goes by where they were: such a set excuses
nothing. If backward does not, forward normalises only what is normal already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.rules import RULES
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.neighbours.asking import Neighbour, Projection, is_right, is_square, with_values
from gradverify.verifier.numerics.probes import random_signs

SMALL = 0.1
"""Factor on inputs at which most iterations and series converge, alone or added to one or the identity."""

TAKES_BACK = 1e-2
"""Relative change of the outputs below which forward projects its inputs onto the set itself: the epsilon
under a root, and the like, may change them a little."""

BLIND = 1e-6
"""Relative change of a gradient, and of the outputs, that is rounding alone."""

LOPSIDED = 3.0
"""Factor between the rows of an input that is tried: another one for each row."""

ON_NO_STRUCTURE = ("GV102", "GV104", "GV106", "GV2", "GV501", "GV601")
"""Codes that no set of inputs explains: a backward is linear in grad_output wherever they lie, and where the
first derivative is right in every direction, neither the second nor that of another dtype has an excuse."""

OF_STRUCTURES = frozenset(r.code for r in RULES if not r.code.startswith(ON_NO_STRUCTURE))

OF_GRAD_OUTPUT = "GV106"
"""Of what backward makes of grad_output."""


@dataclass(frozen=True)
class Structure:
    """A set of values of one input."""

    declared: str
    """How a spec declares it."""
    move: Callable[[Tensor], Tensor]
    """An input to one on the set."""
    along: Projection
    of_squares: bool = True
    """Of square matrices alone."""


def one_like(x: Tensor) -> Tensor:
    """The identity for square matrices, ones for what is none."""
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) if is_square(x) else torch.ones_like(x)


def _row_normalised(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)


def _along_sphere(direction: Tensor, x: Tensor) -> Tensor:
    """Without the part along x: moving along x leaves the unit sphere."""
    return direction - (direction * x).sum(dim=-1, keepdim=True) * x


def _symmetrised(x: Tensor) -> Tensor:
    return (x + x.mT) / 2


def _along_symmetric(direction: Tensor, _: Tensor) -> Tensor:
    return _symmetrised(direction)


def _along_orthogonal(direction: Tensor, x: Tensor) -> Tensor:
    """Its part along x times an antisymmetric matrix: moving there leaves x orthogonal to first order."""
    turned = x.mT @ direction
    return x @ ((turned - turned.mT) / 2)


UNIT_ROWS = Structure("`structure: unit-norm`", _row_normalised, _along_sphere, of_squares=False)

SIMPLEX = Structure(
    "`structure: simplex`",
    lambda x: x.abs() / x.abs().sum(dim=-1, keepdim=True),
    lambda direction, _: direction - direction.mean(dim=-1, keepdim=True),
    of_squares=False,
)

SYMMETRIC = Structure("`structure: symmetric`", _symmetrised, _along_symmetric)

ORTHOGONAL = Structure("`structure: orthogonal`", lambda x: torch.linalg.qr(x).Q, _along_orthogonal)

DEFINITE = (
    Structure("`structure: spd`", lambda x: x @ x.mT + x.shape[-1] * one_like(x), _along_symmetric),
    Structure(
        "a `make:` function of symmetric matrices near the identity",
        lambda x: one_like(x) + SMALL * _symmetrised(x) / x.abs().max().clamp_min(1.0),
        _along_symmetric,
    ),
)
"""An iteration that solves with such a matrix overflows at any other one; a series has converged near the
identity."""

SUPPORTS = (
    Structure(
        "a `make:` function of diagonal matrices",
        lambda x: torch.diag_embed(x.diagonal(dim1=-2, dim2=-1).abs()),  # of eigenvalues: a root is real
        lambda d, _: torch.diag_embed(d.diagonal(dim1=-2, dim2=-1)),
    ),
    Structure("`structure: triangular`", torch.tril, lambda d, _: d.tril()),
    Structure("a `make:` function of upper triangular matrices", torch.triu, lambda d, _: d.triu()),
)
"""Of inputs for which backward gives nothing outside of them."""


def of_any_structure(sample: Sample, name: str) -> Iterator[Neighbour]:
    """Neighbours on every set that may be meant: of the one input that needs it, or of all."""
    names = [n for n, p in _given(sample) if not name or n == name]
    blind = bool(names) and all(_is_blind_to_lengths(sample, n) for n in names)
    of_any_length = not blind and bool(names) and all(_takes_back(sample, n) for n in names)
    if not of_any_length:
        yield from _on(sample, UNIT_ROWS)
    if blind:
        yield from _on(sample, SIMPLEX)
    if any(is_square(p) for _, p in _given(sample)):
        gradients = _gradients(sample)
        for kind in SUPPORTS:
            kept = {n for n, g in gradients.items() if is_square(g) and torch.equal(kind.along(g, g), g)}
            yield from _on(sample, kind, kept)
        yield from _on(sample, SYMMETRIC)
        if not of_any_length:  # the rows of an orthogonal matrix are unit vectors
            yield from _on(sample, ORTHOGONAL)
        for kind in DEFINITE:
            yield from _on(sample, kind)


def _given(sample: Sample) -> list[tuple[str, Tensor]]:
    """Real tensors with dimensions that are differentiated."""
    pairs = zip(sample.problem.input_names, sample.problem.primals, strict=True)
    return [(n, p) for n, p in pairs if p.dim() and not p.is_complex()]


def _on(sample: Sample, kind: Structure, only: Collection[str] | None = None) -> Iterator[Neighbour]:
    """The neighbour with all inputs on a set; it names the one that needs it, if one alone does."""
    given = {n: p for n, p in _given(sample) if (is_square(p) and p.shape[-1] > 1) or not kind.of_squares}
    names = [n for n in given if only is None or n in only]
    if not names:
        return
    together = _neighbour(sample, kind, names)
    if len(names) > 1:
        alone = [_neighbour(sample, kind, [n]) for n in names]
        right = [one for one in alone if is_right(one, "")] if is_right(together, "") else []
        together = right[0] if right else together
    yield together


def _neighbour(sample: Sample, kind: Structure, names: Collection[str]) -> Neighbour:
    given = dict(_given(sample))
    named = " and ".join(f"`{n}`" for n in names)
    there = with_values(sample, {n: kind.move(given[n]) for n in names})
    return Neighbour(there, declared=f"{kind.declared} of {named}", along=dict.fromkeys(names, kind.along))


def _gradients(sample: Sample) -> dict[str, Tensor]:
    """The gradients for a random grad_output that are not zero."""
    problem = sample.problem
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.key))
    pulled = problem.pull_back(problem.primals, u)
    if isinstance(pulled, Raised):
        return {}
    given = zip(problem.input_names, pulled.value, strict=True)
    return {n: g for n, g in given if g is not None and bool(g.any())}


def _with(sample: Sample, name: str, value: Tensor) -> tuple[Tensor, ...]:
    pairs = zip(sample.problem.input_names, sample.problem.primals, strict=True)
    return tuple(value if n == name else p for n, p in pairs)


def _lopsided(primal: Tensor) -> Tensor:
    """Every row longer than it was, each by another factor."""
    rows = torch.linspace(1.0, LOPSIDED, max(1, primal[..., 0].numel()) + 1, dtype=torch.float64)[1:]
    return primal * rows.reshape(primal.shape[:-1]).unsqueeze(-1).to(primal)


def _takes_back(sample: Sample, name: str) -> bool:
    """Whether forward gives for an input what it gives for its rows normalised."""
    primal = dict(_given(sample))[name]
    outputs = []
    for value in (_lopsided(primal), _row_normalised(primal)):
        result = sample.problem.evaluate(_with(sample, name, value))
        if isinstance(result, Raised):
            return False
        outputs.append(result.value)
    return all(
        a.shape == b.shape and bool(((a - b).norm() <= TAKES_BACK * b.norm()).all())
        for a, b in zip(*outputs, strict=True)
    )


def _is_blind_to_lengths(sample: Sample, name: str) -> bool:
    """Whether neither forward nor the gradient of an input goes by how long its rows are.

    Where forward does not, the derivative is the smaller the longer the row.
    """
    problem, primal = sample.problem, dict(_given(sample))[name]
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.key))
    found = []
    for value in (primal, _lopsided(primal)):
        moved = _with(sample, name, value)
        values, gradients = problem.evaluate(moved), problem.pull_back(moved, u)
        gradient = None if isinstance(gradients, Raised) else gradients.value[problem.input_names.index(name)]
        if isinstance(values, Raised) or gradient is None:
            return False
        found.append((*values.value, gradient))
    return all(a.shape == b.shape and torch.allclose(a, b, rtol=BLIND) for a, b in zip(*found, strict=True))


def definite(sample: Sample, _: str) -> Iterator[Neighbour]:
    """Positive definite matrices: an iteration that solves with one need not be linear at any other."""
    yield from (one for kind in DEFINITE for one in _on(sample, kind))
