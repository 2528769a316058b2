"""torch's own check of the few entries that ours could not tell: all others are verified already.

Slow mode calls the function twice for each input entry and backward for each output entry: for one entry that
lies on a kink, a thousand times too often. Only its pass counts here; where it fails, or anything else is in
its way, the whole question is asked, and torch's answer is in its own terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.gradcheck import gradcheck as torch_gradcheck

from gradverify.api.given import as_tuple
from gradverify.api.options import Options
from gradverify.api.orders import with_values
from gradverify.api.original import Original
from gradverify.verifier.numerics.flat import Layout

MOST = 1 / 4
"""Share of the rows and columns together above which nothing is saved by leaving the others out."""


class Entries(NamedTuple):
    """Some entries of a Jacobian: all where a row and a column meet."""

    rows: tuple[int, ...]
    """Positions among all outputs' coordinates, ascending."""
    columns: tuple[int, ...]
    """Positions among all inputs' coordinates, ascending."""


def entries_of(
    missing: Tensor, rows: Sequence[int] | None = None, columns: Sequence[int] | None = None
) -> Entries:
    """Where something is missing (bool, M × N); `rows` and `columns` say where those lie that were judged."""
    own_rows = missing.any(dim=1).nonzero().flatten().tolist()
    own_columns = missing.any(dim=0).nonzero().flatten().tolist()
    return Entries(
        tuple(own_rows if rows is None else [rows[k] for k in own_rows]),
        tuple(own_columns if columns is None else [columns[k] for k in own_columns]),
    )


def passes_in_part(
    function: Callable[..., Any], original: Original, entries: Entries, options: Options
) -> bool:
    """Whether torch's slow mode passes some entries of the Jacobian of a function at its inputs.

    False where it does not, and where that would not be the same question: for complex numbers, other modes.
    """
    whole = (*original.leaves, *original.outputs)
    if options.fast_mode or options.parts_of_torch or options.check_grad_dtypes:
        return False
    if not all(t.dtype is torch.float64 and t.is_cpu for t in whole):
        return False
    if len(entries.rows) + len(entries.columns) > MOST * sum(map(Tensor.numel, whole)):
        return False
    part, inputs = _part(function, original, entries)
    try:
        return bool(torch_gradcheck(part, inputs, **options.as_keywords()))
    except Exception:  # noqa: BLE001 - the whole question will tell what it is
        return False


def _part(
    function: Callable[..., Any], original: Original, entries: Entries
) -> tuple[Callable[..., tuple[Tensor, ...]], tuple[Tensor, ...]]:
    """The function of the chosen input entries alone, with its chosen output entries, and those inputs."""
    columns = _in_each(entries.columns, Layout.of(original.leaves))
    rows = _in_each(entries.rows, Layout.of(original.outputs))
    chosen = [x.detach().reshape(-1)[own] for x, own in zip(original.leaves, columns, strict=True)]

    def part(*values: Tensor) -> tuple[Tensor, ...]:
        given = iter(values)
        moved = [
            x.detach().reshape(-1).index_put((own,), next(given)).view(x.shape)
            if own.numel()
            else x.detach().requires_grad_().clone()
            for x, own in zip(original.leaves, columns, strict=True)
        ]
        returned = as_tuple(function(*with_values(moved, original.inputs)))
        outputs = [returned[p].reshape(-1) for p in original.positions]
        return tuple([o[own] for o, own in zip(outputs, rows, strict=True) if own.numel()])

    return part, tuple([x.requires_grad_() for x in chosen if x.numel()])


def _in_each(positions: Sequence[int], layout: Layout) -> list[Tensor]:
    """Positions within each tensor."""
    borders = [0, *(block.stop for block in layout.blocks)]
    return [
        torch.tensor([p - start for p in positions if start <= p < stop], dtype=torch.long)
        for start, stop in pairwise(borders)
    ]
