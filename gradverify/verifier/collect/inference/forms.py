"""What the entries of a tensor have in common that the author's own code has computed."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Nested

MOST_VALUES = 256
"""Entries of a tensor that is passed on as it was: more are no inputs that a person would read."""

FEW = 8
"""Entries from which on all of one sign are so by no chance: of fewer, one in 2**8 would be."""

SAME = 1e-9
"""How far a sum of a row may be from one: round-off of a normalisation."""


def form_of(value: Tensor, sizes: Collection[int]) -> str:
    """The structure or domain that fits all entries; empty for none.

    Integers are offsets or a permutation only of one of `sizes`, where any are given.
    """
    entries = value.detach()
    if entries.dtype is torch.bool or entries.layout is not torch.strided:
        return ""
    if entries.is_floating_point():
        return _of_reals(entries)
    return _of_integers(entries, sizes) if entries.dim() == 1 and entries.numel() > 1 else ""


def _of_integers(entries: Tensor, sizes: Collection[int]) -> str:
    flat = entries.tolist()
    if sorted(flat) == list(range(len(flat))):
        return "permutation" if not sizes or len(flat) in sizes else ""
    rises = flat[0] == 0 and all(a < b for a, b in itertools.pairwise(flat))
    return "offsets" if rises and (not sizes or flat[-1] in sizes) else ""


def _of_reals(entries: Tensor) -> str:
    if entries.dim() and entries.shape[-1] > 1 and bool((entries >= 0).all()):
        sums = entries.sum(-1)
        if bool(((sums - 1).abs() < SAME).all()):
            return "simplex"
    if entries.numel() < FEW or not bool((entries > 0).all()):
        return ""
    return "unit" if bool((entries < 1).all()) else "positive"


def values_of(value: Tensor) -> Nested:
    """The entries as nested tuples."""
    return _tuples(value.detach().tolist())


def _tuples(value: Any) -> Nested:  # noqa: ANN401 - what `tolist` gives
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
