"""Whether a mismatch hangs on a part of an input that means nothing, since it is padding.

Where sequences are padded with zeros, in the inputs and in the outputs, backward gives the padding no
gradient, and is right where the inputs hold zeros there, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.neighbours import with_values
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, judge

STEPS = (0.37, 7.3, -7.3)
"""How far entries are moved to see whether forward reads them: far enough to cross a threshold, too."""


def padded_inputs(sample: Sample, wanted: str | None = None) -> tuple[str, ...]:
    """Inputs with a part that backward gives no gradient, as forward gives zeros there, if that is padding.

    The mismatch must be gone in the rest where the inputs are zero there. Empty for none.
    """
    padding = dict(_padding(sample))
    if not padding or (wanted is not None and wanted not in padding):
        return ()
    kept = {name: ~padded for name, padded in padding.items()}
    return () if _mismatch_in(sample, kept, wanted) else tuple(kept)


def _padding(sample: Sample) -> Iterator[tuple[str, Tensor]]:
    """Inputs with what of them is padding: bool, in the shape of the input."""
    problem = sample.problem
    moved = [p + STEPS[0] for p in problem.primals]
    values = [problem.evaluate(at) for at in (problem.primals, moved)]
    pulled = [problem.pull_back(at, _cotangents(sample)) for at in (problem.primals, moved)]
    runs = [r.value for r in values if not isinstance(r, Raised)]
    gradients = [g.value for g in pulled if not isinstance(g, Raised)]
    if len(runs) < len(values) or len(gradients) < len(pulled):
        return
    zeros = [sum(o != 0 for o in outputs) == 0 for outputs in zip(*runs, strict=True)]
    for place, (name, primal) in enumerate(zip(problem.input_names, problem.primals, strict=True)):
        given = [g[place] for g in gradients]
        if any(g is None for g in given) or not primal.dim():
            continue
        unset = sum((g != 0) for g in given if g is not None) == 0
        if isinstance(unset, Tensor) and any(_are_the_same_rows(unset, z) for z in zeros):
            yield name, unset


def _cotangents(sample: Sample) -> Sequence[Tensor]:
    outputs = sample.problem.outputs
    return outputs.unflatten(random_signs(outputs.size, sample.key))


def _are_the_same_rows(one: Tensor, other: Tensor) -> bool:
    """Whether two masks are set at the same leading indices, and at some of these alone.

    Of two sequences of vectors as long as each other, the vectors may have other lengths.
    """
    for count in range(min(one.dim(), other.dim()), 0, -1):
        if one.shape[:count] != other.shape[:count]:
            continue
        rows = [m.reshape(*m.shape[:count], -1).all(dim=-1) for m in (one, other)]
        if rows[0].any() and not rows[0].all() and torch.equal(*rows):
            return torch.equal(
                one, rows[0].reshape(*rows[0].shape, *[1] * (one.dim() - count)).expand_as(one)
            )
    return False


def _mismatch_in(sample: Sample, parts: Mapping[str, Tensor], wanted: str | None) -> bool:
    """Whether it is there in parts of some inputs (bool, in their shapes) where all else of these is zero."""
    given = dict(zip(sample.problem.input_names, sample.problem.primals, strict=True))
    moved = with_values(
        sample, {n: torch.where(p.to(given[n].device), given[n], 0.0) for n, p in parts.items()}
    )
    problem = moved.problem
    judged = judge(problem, Tolerance(sample.subject.settings.rtol))
    if not isinstance(judged, Judged):
        return False
    wrong = judged.comparison.wrong.clone()
    blocks = dict(zip(problem.input_names, judged.inputs.blocks, strict=True))
    for name, part in parts.items():
        block = blocks[name]
        elsewhere = ~part.cpu().reshape(*part.shape, *[1] * (len(block.shape) - part.dim()))
        wrong[:, block.start : block.stop][:, elsewhere.expand(block.shape).reshape(-1)] = False
    asked = blocks.get(wanted or "")
    return bool(wrong.any() if asked is None else wrong[:, asked.start : asked.stop].any())
