"""Whether a mismatch is there at neighbouring inputs too: a mistake of backward is, chaos in forward is not.

An iteration that does not converge, a root where none exists and a quotient at its pole have no derivative
that a difference quotient could tell, though one may seem to settle. A little aside they give something else
altogether, and so does what is called a mismatch. A wrong backward is as wrong there as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.neighbours import Neighbours, with_values
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, judge

ASIDE = (1e-3, -1e-3, 3e-3, -3e-3)
"""How far the neighbours are, relative to an entry; from zero, absolute."""

AS_WRONG = 0.5
"""Relative change of a difference up to which it is the same one, as any smooth function's is."""

MOST = 0.5
"""Share of the neighbours, and of the entries, that has to agree."""

AS_STEEP = 0.1
"""Relative change of the derivative up to which forward is smooth there: then it has one for certain."""


@dataclass(frozen=True)
class _Measured:
    """Both Jacobians, entry by entry."""

    derivative: Tensor
    difference: Tensor
    """Backward less the derivative."""
    wrong: Tensor


def is_steady(near: Neighbours, name: str | None) -> bool:
    """Whether most of the entries that are wrong are as wrong at most neighbours, or forward as steep at all.

    Those of the gradient of one input, by its name: chaos in another one excuses nothing. True where nothing
    could be measured there: then nothing speaks against the mismatch.
    """
    base = _of_input(near, near.once(_compared), name)
    if base is None or not base.wrong.any():
        return True
    found: list[_Measured] = []
    as_wrong = torch.zeros(int(base.wrong.sum()))
    aside = (near.once(_compared_aside, number) for number in range(len(ASIDE)))
    for after in filter(None, (_of_input(near, comparison, name) for comparison in aside)):
        found.append(after)
        as_wrong += _is_as_wrong(base, after)
        if _are_most(as_wrong >= MOST * len(ASIDE)):
            return True  # whatever the other neighbours give
    if not found:
        return True
    as_steep = torch.stack([_is_as_steep(base, after) for after in found]).all(0)
    return _are_most((as_wrong >= MOST * len(found)) | as_steep)


def _are_most(entries: Tensor) -> bool:
    return bool(entries.double().mean() >= MOST)


def _is_as_wrong(base: _Measured, after: _Measured) -> Tensor:
    before, now = base.difference[base.wrong], after.difference[base.wrong]
    return (now - before).abs() <= AS_WRONG * before.abs()


def _is_as_steep(base: _Measured, after: _Measured) -> Tensor:
    steep = base.derivative.abs()
    usual = steep[steep > 0].median() if (steep > 0).any() else torch.zeros((), dtype=steep.dtype)
    scale = torch.maximum(steep[base.wrong], usual)
    return (after.derivative[base.wrong] - base.derivative[base.wrong]).abs() <= AS_STEEP * scale


def _compared(sample: Sample) -> Comparison | None:
    """None where nothing could be measured."""
    judged = sample.judged.get(1) or judge(sample.problem, Tolerance(sample.subject.settings.rtol))
    return judged.comparison if isinstance(judged, Judged) else None


def _compared_aside(sample: Sample, number: int) -> Comparison | None:
    """The same at one of the neighbours."""
    return _compared(next(islice(_neighbours(sample), number, None)))


def _of_input(near: Neighbours, comparison: Comparison | None, name: str | None) -> _Measured | None:
    """The columns of one input, all where it is none."""
    if comparison is None:
        return None
    sample = near.sample
    names = sample.problem.input_names
    block = sample.inputs.blocks[names.index(name)] if name in names else None
    columns = slice(None) if block is None else slice(block.start, block.stop)
    derivative = comparison.numerical[:, columns].nan_to_num(0.0)
    difference = (comparison.analytical[:, columns] - derivative).nan_to_num(0.0)
    return _Measured(derivative, difference, comparison.wrong[:, columns])


def _neighbours(sample: Sample) -> Iterator[Sample]:
    generator = torch.Generator().manual_seed(11)
    for step in ASIDE:
        moved = {}
        for argument in sample.problem.arguments:
            if argument.differentiable and isinstance(argument.value, Tensor):
                value = argument.value
                sign = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
                size = torch.where(value == 0, 1.0, value.abs())
                moved[argument.name] = value + step * sign.to(value) * size.to(value)
        yield with_values(sample, moved)
