"""Entries that interact: what of a Jacobian falls apart into blocks of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.diagnose.evidence import Pair, Pairs, wrong_ones

MOST_GROUPS = 200
"""More groups than this are not looked at one by one."""


@dataclass(frozen=True)
class Group:
    """Outputs and inputs that depend on each other and on nothing else."""

    rows: Tensor
    """Numbers of the outputs."""
    columns: Tensor
    """Numbers of the inputs."""

    def cut(self, matrix: Tensor) -> Tensor:
        """The group's own part of an m × n matrix."""
        return matrix[self.rows][:, self.columns]


def groups_of(pair: Pair) -> tuple[Group, ...] | None:
    """The groups of both blocks together; None where there are too many."""
    coupled = (pair.informative | pair.wrong).double()
    label = torch.arange(coupled.shape[1], dtype=torch.float64) + 1
    # Labels spread from column to row and back until they stand still: the largest of a group wins.
    while True:
        rows = (coupled * label[None, :]).amax(dim=1)
        spread = torch.maximum(label, (coupled * rows[:, None]).amax(dim=0))
        if torch.equal(spread, label):
            break
        label = spread
    names = torch.unique(rows[rows > 0])
    if names.numel() > MOST_GROUPS:
        return None
    return tuple(
        Group((rows == name).nonzero().flatten(), (label == name).nonzero().flatten())
        for name in names.tolist()
    )


def dimension_of(pairs: Pairs, groups: Sequence[tuple[Group, ...]]) -> int | None:
    """The one dimension of the input along which the entries of every group lie; None where there is none."""
    wrong = wrong_ones(pairs)
    for dim in range(len(wrong[0].source_shape)):
        if all(_lie_along(pair, each, dim) for pair, each in zip(wrong, groups, strict=True)):
            return dim
    return None


def _lie_along(pair: Pair, groups: tuple[Group, ...], dim: int) -> bool:
    shape = pair.source_shape
    if dim >= len(shape):
        return False
    other = [
        torch.arange(n).reshape([-1 if k == d else 1 for k in range(len(shape))]).expand(shape).reshape(-1)
        for d, n in enumerate(shape)
        if d != dim
    ]
    return all(
        bool((index[group.columns] == index[group.columns[0]]).all()) for group in groups for index in other
    )
