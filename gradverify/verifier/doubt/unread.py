"""Whether a mismatch hangs on a part of an input that forward never reads, where its size was guessed.

A pair of real and imaginary parts has a last dimension of two: of three, the third is never read, and what
backward says of it means nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.verifier.checks.second_order import second_order_problem
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.neighbours import with_values
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, judge

STEPS = (0.37, 7.3, -7.3)
"""How far an entry is moved to see whether forward reads it: far enough to cross a threshold, too."""

MOST_ENTRIES = 400
"""Entries of an input that are moved one by one."""


def unread_slice(sample: Sample, wanted: str | None = None, *, second_order: bool = False) -> str:
    """A dimension of an input of which forward leaves whole slices unread, in words; empty for none.

    Where the mismatch (for the input `wanted`, or any) is there as well if what is not read is zero, and in
    what is read, it has nothing to do with them.
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
    """bool, in the input's shape: entries on which some output depends. None where forward raises."""
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
