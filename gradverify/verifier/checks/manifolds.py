"""Whether a mismatch on inferred inputs is one at inputs of every kind, or only off a manifold.

A Function of unit vectors or of symmetric matrices has a gradient that need be right only along that
manifold. Inputs guessed off it make a right backward look wrong. So the mismatch is measured again at
row-normalised and at symmetrised inputs, and only its part along the manifold counts. A forward that takes
its inputs onto the manifold by itself is made for inputs off it, and that question does not arise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.checks.grad_output import ignoring_grad_output
from gradverify.verifier.checks.jacobians import judged_jacobians
from gradverify.verifier.checks.second_order import second_order_problem
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.contradiction import contradiction
from gradverify.verifier.numerics.proof import Certificate
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, judge

Move = Callable[[Tensor], Tensor]
"""An input to the nearest one on a manifold."""

Projection = Callable[[Tensor, Tensor], Tensor]
"""(differences of one row shaped like the input, the input) -> their part along the manifold."""

TAKES_BACK = 1e-2
"""Relative change of the outputs below which forward has taken the inputs to the manifold by itself: the
epsilon under a root, and the like, may change them a little."""

LOPSIDED = 3.0
"""Factor between the rows of an input that is tried: another one for each row."""

STEPS = (0.37, 7.3, -7.3)
"""How far an entry is moved to see whether forward reads it: far enough to cross a threshold, too."""

MOST_ENTRIES = 400
"""Entries of an input that are moved one by one."""

LARGEST_JACOBIAN = 200_000
"""Entries of a Jacobian that is built to see whether anything in it is wrong; of a larger one, a random
direction tells. Doubling each of four sizes makes a Jacobian 256 times as large."""


def persists(sample: Sample) -> bool:
    """Whether the mismatch at this sample is there on both kinds of manifold, as far as they apply."""
    kinds: list[tuple[Move, Projection]] = []
    if not all(_takes_back(sample, place, _row_normalised) for place in _wrong_places(sample)):
        kinds.append((_row_normalised, _along_sphere))
    if any(_is_square(p) for p in sample.problem.primals):
        kinds.append((_symmetrised, _along_symmetric))
    return all(_mismatch_along(sample, move, project) for move, project in kinds)


def right_at_definite(sample: Sample) -> bool:
    """Whether backward is right along symmetric matrices where the square inputs are positive definite.

    An iteration that solves with such a matrix alone overflows, or divides by zero, at any other one.
    """
    if not any(_is_square(p) and not p.is_complex() for p in sample.problem.primals):
        return False
    return not _mismatch_along(sample, _definite, _along_symmetric)


def right_without_negative(sample: Sample, name: str | None) -> tuple[str, ...]:
    """An input without whose minus signs the mismatch for an input is not there; empty where there is none.

    A root, a logarithm, a rate or a variance is meant to be positive, and often neither says so nor refuses
    what is not.
    """
    for one in with_minus_signs(sample):
        wrong = wrong_without_negative(sample, one)
        if wrong is not None and not (wrong if name is None else name in wrong):
            return (one,)
    return ()


def with_minus_signs(sample: Sample) -> Iterator[str]:
    """Real inputs of which some entry is negative, in order."""
    for name, primal in zip(sample.problem.input_names, sample.problem.primals, strict=True):
        if not primal.is_complex() and bool((primal < 0).any()):
            yield name


def wrong_without_negative(sample: Sample, name: str) -> frozenset[str] | None:
    """Inputs whose gradient is wrong where an input has lost its minus signs, as `wrong_inputs`.

    And what is before the point, where that is refused: a place between rows of a table must not be large.
    """
    positive = sample.problem.primals[sample.problem.input_names.index(name)].abs()
    wrong = wrong_inputs(with_values(sample, {name: positive}))
    return wrong_inputs(with_values(sample, {name: positive.frac()})) if wrong is None else wrong


def mismatched(sample: Sample, name: str | None = None, *, second_order: bool = False) -> bool | None:
    """Whether backward, or its own, differs from the derivative at this sample, for one input or for any.

    None where forward or backward refuses the inputs.
    """
    problem = second_order_problem(sample) if second_order else sample.problem
    names = problem.input_names
    among = names.index(name) if name is not None and name in names else None
    if (name is None or among is not None) and contradiction(problem, among) is not None:
        return True
    wrong = wrong_inputs(sample, second_order=second_order)
    return wrong if wrong is None else bool(wrong if name is None else name in wrong)


def wrong_inputs(sample: Sample, *, second_order: bool = False) -> frozenset[str] | None:
    """Inputs whose gradient, or its own, differs from the derivative at this sample.

    None where forward or backward refuses the inputs.
    """
    problem = second_order_problem(sample) if second_order else sample.problem
    judged = judged_jacobians(sample, problem, largest=LARGEST_JACOBIAN)
    if isinstance(judged, Certificate):
        return frozenset()
    if not isinstance(judged, Judged):
        return None
    wrong = judged.comparison.wrong | judged.comparison.nonfinite
    blocks = zip(judged.inputs.blocks, problem.input_names, strict=True)
    found = frozenset(name for block, name in blocks if bool(wrong[:, block.start : block.stop].any()))
    return found if second_order else found | ignoring_grad_output(sample.problem)


def unread_slice(sample: Sample, wanted: str | None = None, *, second_order: bool = False) -> str:
    """A dimension of an input of which forward leaves whole slices unread, in words; empty for none.

    A pair of real and imaginary parts has a last dimension of two: of three, the third is never read, and
    what backward says of it means nothing. Where the mismatch (for the input `wanted`, or any) is there
    as well if what is not read is zero, and in what is read, it has nothing to do with them.
    """
    for place, (name, primal) in enumerate(
        zip(sample.problem.input_names, sample.problem.primals, strict=True)
    ):
        read = _read_entries(sample, name, primal)
        if read is None:
            continue
        for dimension in range(primal.dim()):
            others = [k for k in range(primal.dim()) if k != dimension]
            slices = read.any(dim=others) if others else read
            if slices.all() or not slices.any():
                continue
            if not _mismatch_in_read(sample, place, read, wanted, second_order=second_order):
                return f"the size of dimension {dimension} of `{name}`, part of which is never read,"
    return ""


def _mismatch_in_read(
    sample: Sample, place: int, read: Tensor, wanted: str | None, *, second_order: bool
) -> bool:
    name = sample.problem.input_names[place]
    moved = with_values(sample, {name: torch.where(read, sample.problem.primals[place], 0.0)})
    problem = second_order_problem(moved) if second_order else moved.problem
    judged = judge(problem, Tolerance(sample.subject.settings.rtol))
    if not isinstance(judged, Judged):
        return False
    wrong = judged.comparison.wrong.clone()
    blocks = dict(zip(problem.input_names, judged.inputs.blocks, strict=True))
    wrong[:, blocks[name].start : blocks[name].stop][:, ~read.reshape(-1)] = False
    block = blocks.get(wanted or "")
    return bool(wrong.any() if block is None else wrong[:, block.start : block.stop].any())


def _read_entries(sample: Sample, name: str, primal: Tensor) -> Tensor | None:
    """bool, the input's shape: entries that move the output at all. None where forward refuses."""
    problem = sample.problem
    place = problem.input_names.index(name)
    base = problem.evaluate(problem.primals)
    if isinstance(base, Raised) or primal.is_complex() or primal.numel() > MOST_ENTRIES:
        return None
    read = torch.zeros(primal.numel(), dtype=torch.bool)
    for entry in range(primal.numel()):
        for step in STEPS:
            moved = [p.clone() for p in problem.primals]
            moved[place].view(-1)[entry] += step
            result = problem.evaluate(moved)
            if isinstance(result, Raised):
                return None
            if any(not torch.equal(a, b) for a, b in zip(result.value, base.value, strict=True)):
                read[entry] = True
                break
    return read.reshape(primal.shape)


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


def with_values(sample: Sample, values: Mapping[str, Any]) -> Sample:
    """The sample with other values of some arguments."""
    arguments = tuple(
        replace(a, value=values[a.name]) if a.name in values else a for a in sample.problem.arguments
    )
    return replace(sample, arguments=arguments, problem=replace(sample.problem, arguments=arguments))


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
    return (x + x.mT) / 2 if _is_square(x) else x


def _definite(x: Tensor) -> Tensor:
    if not _is_square(x):
        return x
    return x @ x.mT + x.shape[-1] * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


def _along_symmetric(difference: Tensor, x: Tensor) -> Tensor:
    return (difference + difference.mT) / 2 if _is_square(x) else difference


def _is_square(x: Tensor) -> bool:
    return x.dim() >= 2 and x.shape[-1] == x.shape[-2]
