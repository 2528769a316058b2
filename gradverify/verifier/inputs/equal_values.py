"""Values that two inputs share: a maximum of two inputs has a kink where they are equal, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from gradverify.model import TensorInput
from gradverify.model.case import EQUAL_INPUTS, KEEP_AWAY, MODERATE
from gradverify.verifier.inputs.values import DOMAINS, source_of

MOST_EQUAL = 256
"""Places at most at which two inputs are made equal: more of them show nothing more."""


def with_equal_values(
    specs: Sequence[TensorInput], values: Mapping[str, Tensor], seed: int
) -> dict[str, Tensor]:
    """New values, by name, of the inputs after the first, which broadcast with it.

    Each entry of the first is given to one entry of one of them, so that no three are equal: where two bounds
    are, nothing lies between them, and which of them counts is another question. Where one of them is
    complex and the other is not, it is the real parts that are equal.
    """
    if not specs:
        return {}
    first, others = specs[0], specs[1:]
    x = values[first.name].reshape(-1)
    changed = {}
    for number, spec in enumerate(others):
        y = values[spec.name].clone().reshape(-1)
        met: tuple[set[int], set[int]] = set(), set()
        for i, j in _places(first.shape, spec.shape, seed):
            is_its_turn = i % len(others) == number or len(x) < len(others)
            if is_its_turn and i not in met[0] and j not in met[1] and _is_valid(spec, x[i].item()):
                y[j] = x[i] if y.is_complex() == x.is_complex() else _with_real_part(y[j], x[i])
                met[0].add(i)
                met[1].add(j)
        changed[spec.name] = y.reshape(spec.shape)
    return changed


def _places(a: Sequence[int], b: Sequence[int], seed: int) -> list[tuple[int, int]]:
    """Pairs of entries, as flat places of two shapes, that meet when these are broadcast; in random order."""
    both = zip_longest(reversed(a), reversed(b), fillvalue=1)
    shape = tuple(max(pair) for pair in both)[::-1]
    count = math.prod(shape)
    source = source_of(seed, "", "equal", EQUAL_INPUTS)
    drawn = torch.tensor(source.sample(range(count), min(count, MOST_EQUAL)))
    flat = (
        torch.arange(math.prod(s)).reshape(tuple(s)).expand(shape).reshape(-1)[drawn].tolist() for s in (a, b)
    )
    return list(zip(*flat, strict=True))


def _with_real_part(value: Tensor, of: Tensor) -> Tensor:
    return torch.complex(of, value.imag) if value.is_complex() else of.real


def _is_valid(spec: TensorInput, value: complex) -> bool:
    """Whether a value, or each part of a complex one, may be one of this input."""
    low, high = DOMAINS[spec.domain]
    if spec.range is not None:
        low, high = max(low, spec.range[0]), min(high, spec.range[1])
    parts = (value.real, value.imag) if spec.dtype == "complex128" and value.imag else (value.real,)
    avoided = any(abs(part - point) < KEEP_AWAY * MODERATE for part in parts for point in spec.avoid)
    return all(low < part < high for part in parts) and not avoided
