"""Turning matrices into what a person reads: entries, a small map, and sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradverify.model import Entries, Entry, JacobianMap, indexed
from gradverify.verifier.numerics.flat import Block, Layout

WORST_ENTRIES = 5
"""Entries kept of a comparison."""

MAP_LIMIT = 24
"""Rows and columns up to which a Jacobian block is drawn."""


def entries_of(
    actual: Tensor, expected: Tensor, bound: Tensor, wrong: Tensor, output: Block, source: Block
) -> Entries:
    """The wrong entries of one (output, input) block, worst first. All tensors have the block's shape."""
    difference = (actual - expected).abs()
    difference = torch.where(difference.isfinite(), difference, torch.inf)
    places = wrong.nonzero()
    by_size = difference[wrong].argsort(descending=True, stable=True)[:WORST_ENTRIES]
    worst = tuple(
        Entry(
            output=output.index(output.start + row),
            input=source.index(source.start + column),
            actual=actual[row, column].item(),
            expected=expected[row, column].item(),
            error_bound=bound[row, column].item(),
        )
        for row, column in places[by_size].tolist()
    )
    return Entries(wrong=len(places), checked=wrong.numel(), worst=worst)


def vector_entries(
    actual: Tensor, expected: Tensor, bound: Tensor, wrong: Tensor, block: Block, *, of_output: bool = False
) -> Entries:
    """The wrong entries of one input, or of one output, worst first. All tensors are flat parts of it."""
    difference = (actual - expected).abs().nan_to_num(torch.inf, torch.inf)
    count = int(wrong.sum())
    order = torch.where(wrong, difference, -1.0).argsort(descending=True, stable=True)[:WORST_ENTRIES]
    worst = []
    for k in order[:count].tolist():
        index = block.index(block.start + k)
        output, source = (index, None) if of_output else ((), index)
        worst.append(Entry(output, source, actual[k].item(), expected[k].item(), bound[k].item()))
    return Entries(count, wrong.numel(), tuple(worst), compared_with="reference")


def map_of(
    pair: tuple[Tensor, Tensor],
    wrong: Tensor,
    judged: Tensor,
    output: Block,
    source: Block,
    names: tuple[str, str],
) -> JacobianMap | None:
    """A picture of one block: how far each wrong entry is off, in steps below the largest.

    `pair` is what backward gave and what it was compared with.
    """
    difference = (pair[0] - pair[1]).abs()
    rows, columns = wrong.shape
    if rows > MAP_LIMIT or columns > MAP_LIMIT or rows * columns < 2 or not wrong.any():
        return None
    finite = torch.where(difference.isfinite(), difference, torch.zeros_like(difference))
    largest = finite[wrong].max().item() or 1.0
    thresholds = tuple(_round(largest * share) for share in (0.01, 0.1, 0.5))
    steps = torch.stack([~(difference < t) for t in thresholds]).sum(dim=0)
    levels = torch.where(judged, torch.where(wrong, 1 + steps, 0), -1).tolist()
    return JacobianMap(
        row_labels=tuple(indexed(names[0], output.index(output.start + i)) for i in range(rows)),
        column_labels=tuple(indexed(names[1], source.index(source.start + j)) for j in range(columns)),
        levels=tuple(map(tuple, levels)),
        thresholds=(thresholds[0], thresholds[1], thresholds[2]),
        actual=_rounded(pair[0]),
        expected=_rounded(pair[1]),
    )


def _rounded(matrix: Tensor) -> tuple[tuple[float, ...], ...]:
    """The values to the digits that a report shows."""
    return tuple(tuple(float(number(value)) for value in row) for row in matrix.tolist())


def output_name(position: int, outputs_returned: int) -> str:
    """How a sentence calls an output: not at all where there is only one."""
    return f"output {position}" if outputs_returned > 1 else "the output"


def largest_difference(entries: Entries) -> str:
    """`0.628 (the derivative is 0.165)` for the worst entry."""
    if not entries.worst:
        return "nothing"
    worst = entries.worst[0]
    if not math.isfinite(worst.actual):
        return f"{worst.actual} (the derivative is {number(worst.expected)})"
    difference = number(abs(worst.actual - worst.expected))
    return f"{difference} (backward {number(worst.actual)}, {number(worst.expected)} expected)"


def is_finite(entries: Entries) -> bool:
    """Whether the worst entry that backward gave is a number."""
    return not entries.worst or math.isfinite(entries.worst[0].actual)


def by_how_much(entries: Entries) -> str:
    """`by up to 0.628 (...)`; for what is not finite `nan for a derivative of 0`."""
    if not is_finite(entries):
        return f"{entries.worst[0].actual} for a derivative of {number(entries.worst[0].expected)}"
    return f"by up to {largest_difference(entries)}"


def number(value: float) -> str:
    """Four significant digits; no sign before a zero."""
    return f"{value + 0.0:.4g}"


def count_of(wrong: int, checked: int) -> str:
    """`3 of 60 entries`, `all 60 entries`, `its only entry`."""
    if checked == 1:
        return "its only entry"
    return f"all {checked} entries" if wrong == checked else f"{wrong} of {checked} entries"


def part(matrix: Tensor, output: Block, source: Block) -> Tensor:
    """One (output, input) block of an M × N matrix."""
    return matrix[output.start : output.stop, source.start : source.stop]


def blocks(outputs: Layout, inputs: Layout) -> list[tuple[int, Block, int, Block]]:
    """Every (output number, its block, input number, its block)."""
    return [(o, ob, i, ib) for o, ob in enumerate(outputs.blocks) for i, ib in enumerate(inputs.blocks)]


def _round(value: float) -> float:
    return float(f"{value:.1g}")


def listed_names(names: Sequence[str]) -> str:
    """`x`, `x` and `y`, `x`, `y` and `z`: in backticks."""
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
