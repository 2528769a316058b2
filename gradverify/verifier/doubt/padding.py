"""Whether a mismatch hangs on padding that holds values.

Where sequences are padded with zeros, in the inputs and in the outputs, or half of each matrix is zero,
backward gives such a part no gradient, and is right where the inputs hold zeros there, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from gradverify.model import Finding
from gradverify.verifier.checks.neighbours import OF_A_SLOPE, STEPS, Neighbours, with_values
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import declare, invented, listed_names
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, judge


def padding(near: Neighbours, finding: Finding) -> Finding | None:
    """The finding is gone where a part that means nothing holds zeros."""
    padded = near.once(_padded_inputs, finding.input) if finding.code in OF_A_SLOPE else ()
    if not padded:
        return None
    names = listed_names(padded)
    hint = declare(f"a `make:` function for {names} that leaves zeros there")
    return invented(finding, [f"that {names} may hold values where forward and backward give zeros"], hint)


def _padded_inputs(sample: Sample, wanted: str | None) -> tuple[str, ...]:
    """Inputs with a part that backward gives no gradient, as forward gives zeros there, if that is padding.

    The mismatch must be gone in the rest where the inputs are zero there. Empty for none.
    """
    padded = dict(_padded(sample))
    if not padded or (wanted is not None and wanted not in padded):
        return ()
    return () if _is_wrong_beside(sample, padded, wanted) else tuple(padded)


def _padded(sample: Sample) -> Iterator[tuple[str, Tensor]]:
    """Inputs with what of them is padding: bool, in the shape of the input."""
    problem = sample.problem
    moved = [p + STEPS[0] for p in problem.primals]
    signs = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.key))
    values = [problem.evaluate(at) for at in (problem.primals, moved)]
    pulled = [problem.pull_back(at, signs) for at in (problem.primals, moved)]
    runs = [r.value for r in values if not isinstance(r, Raised)]
    gradients = [g.value for g in pulled if not isinstance(g, Raised)]
    if len(runs) < len(values) or len(gradients) < len(pulled):
        return
    silent = [(a == 0) & (b == 0) for a, b in zip(*runs, strict=True)]
    for place, (name, primal) in enumerate(zip(problem.input_names, problem.primals, strict=True)):
        one, other = (g[place] for g in gradients)
        if one is None or other is None or not primal.dim():
            continue
        unset = (one == 0) & (other == 0)
        if any(_are_the_same_part(unset, zeros) for zeros in silent):
            yield name, unset


def _are_the_same_part(one: Tensor, other: Tensor) -> bool:
    """Whether two masks are one where both have entries, some of them set: padded rows, or triangles.

    Behind the dimensions that both have, the first one must be set for all of a row or for none of it.
    """
    count = min(one.dim(), other.dim())
    rows, others = (m.reshape(*m.shape[:count], -1).all(dim=-1) for m in (one, other))
    if not torch.equal(one, rows.reshape(*rows.shape, *[1] * (one.dim() - count)).expand_as(one)):
        return False
    both = tuple(slice(min(sizes)) for sizes in zip(rows.shape, others.shape, strict=True))
    return torch.equal(rows[both], others[both]) and bool(rows[both].any()) and not bool(rows[both].all())


def _is_wrong_beside(sample: Sample, padded: Mapping[str, Tensor], wanted: str | None) -> bool:
    """Whether backward is wrong outside of the padding of some inputs where that holds zeros."""
    given = dict(zip(sample.problem.input_names, sample.problem.primals, strict=True))
    emptied = {name: given[name].masked_fill(part, 0.0) for name, part in padded.items()}
    problem = with_values(sample, emptied).problem
    judged = judge(problem, Tolerance(sample.subject.settings.rtol))
    if not isinstance(judged, Judged):
        return True  # nothing shows that it is right there
    wrong = judged.comparison.wrong.clone()
    blocks = dict(zip(problem.input_names, judged.inputs.blocks, strict=True))
    for name, part in padded.items():
        block = blocks[name]
        # A complex entry has two columns: real and imaginary part.
        columns = part.cpu().reshape(*part.shape, *[1] * (len(block.shape) - part.dim())).expand(block.shape)
        wrong[:, block.start : block.stop][:, columns.reshape(-1)] = False
    asked = blocks.get(wanted or "")
    return bool(wrong.any() if asked is None else wrong[:, asked.start : asked.stop].any())
