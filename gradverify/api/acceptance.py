"""torch's acceptance over our measurement: an entry is wrong only beyond atol + rtol · |numerical|."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradverify.api.options import Options
from gradverify.verifier.checks.wording import blocks
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import CallProblem, VjpProblem
from gradverify.verifier.numerics.verdict import Judged

FINEST = 1e-7
"""Relative difference from which on an entry is looked at twice; coarser tolerances choose from these."""


def accepted(judged: Judged, options: Options) -> Judged:
    """The same measurement with torch's tolerance: what lies below it is imprecise, not wrong."""
    comparison = judged.comparison
    different = comparison.wrong | comparison.imprecise
    if not different.any():
        return judged
    inputs = judged.inputs
    difference = _sizes(comparison.analytical - comparison.numerical, inputs)
    tolerance = options.atol + options.rtol * _sizes(comparison.numerical, inputs)
    beyond = difference > tolerance
    return replace(
        judged, comparison=replace(comparison, wrong=different & beyond, imprecise=different & ~beyond)
    )


def unverified(comparison: Comparison) -> Tensor:
    """Entries (bool, M × N) that nothing is known about, or that lie on a kink."""
    wrong = comparison.wrong | comparison.imprecise | comparison.nonfinite
    return (~comparison.covered | comparison.kinks) & ~wrong


def places(problem: CallProblem | VjpProblem, judged: Judged, missing: Tensor) -> str:
    """Where entries (bool, of what was judged) are not verified, in words."""
    names, positions = problem.input_names, problem.output_positions
    rows, columns = problem.outputs.lengths, Layout.of(problem.primals).lengths
    found = []
    for o, output, i, source in blocks(judged.outputs, judged.inputs):
        here = missing[output.start : output.stop, source.start : source.stop]
        if here.any():
            entries = rows[o] * columns[i]
            found.append(f"{int(here.sum())} of {entries} entries of output {positions[o]} by {names[i]}")
    return f"{'; '.join(found)} (a kink, a jump, or too noisy there)"


def _sizes(matrix: Tensor, inputs: Layout) -> Tensor:
    """|entry|; the derivatives by the two parts of a complex input make one number.

    The parts of a complex output are compared apart from each other, as torch does.
    """
    sizes = matrix.abs()
    for block in inputs.blocks:
        if block.is_complex and block.stop > block.start:
            columns = slice(block.start, block.stop)
            parts = matrix[:, columns].reshape(matrix.shape[0], -1, 2)
            sizes[:, columns] = torch.linalg.vector_norm(parts, dim=-1).repeat_interleave(2, dim=1)
    return sizes
