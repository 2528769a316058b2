"""Whether a mismatch hangs on an argument that was invented: it is looked for at other values of it.

A factor of 0.75, labels drawn at random or a flag may be no valid ones. If backward is wrong for every other
value as well, for labels in order and all alike, for small factors and large ones, then no choice of
them makes it right, and it does not matter that they were invented. Where forward takes few other values, or
backward is right at one of them, the doubt remains.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import TensorInput
from gradverify.verifier.checks.samples import prepared
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.neighbours import mismatched, with_values
from gradverify.verifier.doubt.plain_counts import is_plain_count

FACTORS = (2.5, 0.3, 0.01)
"""Other real numbers: large and small, none at which a wrong factor cannot be seen."""

LEAST_RUN = 2
"""Other values that forward must take: one alone tells little."""

COUNTS = (2, 1, 4, 3, 16)
"""Other counts of groups, of the largest entries, of parts."""

LEAST_COUNTS = 3
"""Other counts that forward must take: most of them it refuses, and two may be no valid ones."""

MOST_SIZES = 4
"""Sizes of the inputs that are tried as counts."""

MOST_JUDGED = 12
"""Jacobians that are measured to settle one doubt."""

MEASURED = frozenset({"GV101", "GV106", "GV107", "GV110", "GV201", "GV202"})
"""Codes of findings that can be measured again at other values."""

_Integers = Callable[[Tensor, int], Tensor]
"""(integers, their exclusive bound) -> others of the same shape below the same bound."""


def _increasing(given: Tensor, bound: int) -> Tensor:
    return (torch.arange(given.numel(), device=given.device) % bound).to(given.dtype).reshape(given.shape)


def _alike(given: Tensor, bound: int) -> Tensor:
    del bound
    return torch.zeros_like(given)


def _decreasing(given: Tensor, bound: int) -> Tensor:
    return _increasing(given, bound).flatten().flip(0).reshape(given.shape)


def _spread(given: Tensor, bound: int) -> Tensor:
    spread = torch.linspace(0, bound - 1, given.numel(), device=given.device)
    return spread.round().to(given.dtype).reshape(given.shape)


INTEGERS: tuple[_Integers, ...] = (
    _increasing,
    _alike,
    _decreasing,
    _spread,
)
"""Labels, indices and permutations of other kinds: in order, all alike, backwards, from end to end."""


def whatever_invented(
    sample: Sample, names: Collection[str], wrong: str | None, *, second_order: bool
) -> bool:
    """Whether the mismatch for an input is there for all other values of the arguments with these names."""
    given = {a.name: a.value for a in sample.arguments if a.name in set(names)}
    discrete = {n: v for n, v in given.items() if not isinstance(v, float)}
    factors = [n for n, v in given.items() if isinstance(v, float)]
    if set(given) != set(names) or not all(_is_plain(v) for v in discrete.values()):
        return False
    bounds = _bounds(sample)
    if any(v.numel() > bounds.get(n, 0) for n, v in discrete.items() if _is_index(v)):
        return False  # no such integers are all different, as backward may want them
    counts = {n for n, v in discrete.items() if type(v) is int}
    if not all(is_plain_count(sample.subject.function_class, name) for name in counts):
        return False
    rows = list(_discrete(discrete, bounds, _numbers(sample)))
    runs = 0
    for row in rows[: MOST_JUDGED // (1 + len(FACTORS) * bool(factors))]:
        moved = _at(sample, row)
        if moved is None:
            continue
        found = [
            mismatched(with_values(moved, own), wrong, second_order=second_order)
            for own in _of_factors(factors)
        ]
        known = [f for f in found if f is not None]
        if not known:
            continue
        if 2 * sum(known) <= len(known) or (factors and len(known) <= LEAST_RUN):
            return False
        runs += bool(row)
    return not discrete or runs >= (LEAST_COUNTS if counts else LEAST_RUN)


def at_other_numbers(sample: Sample, names: Iterable[str]) -> Iterator[Sample]:
    """The sample with other numbers for the arguments with these names: real ones alike, then counts."""
    given = {a.name: a.value for a in sample.arguments if a.name in set(names)}
    real = [n for n, v in given.items() if isinstance(v, float)]
    counts = [n for n, v in given.items() if type(v) is int]
    yield from (with_values(sample, dict.fromkeys(real, factor)) for factor in FACTORS if real)
    for count in _numbers(sample) if counts else ():
        moved = _at(sample, dict.fromkeys(counts, count))
        if moved is not None:
            yield moved


def _at(sample: Sample, row: Mapping[str, Any]) -> Sample | None:
    """The sample at other values; None where forward refuses other counts, which may shape its outputs."""
    if not any(type(v) is int for v in row.values()):
        return with_values(sample, row)
    arguments = tuple(replace(a, value=row.get(a.name, a.value)) for a in sample.arguments)
    other = prepared(sample.subject, sample.case, sample.where, arguments)
    return other if isinstance(other, Sample) else None


def _numbers(sample: Sample) -> tuple[int, ...]:
    """Other counts: those that the inputs have, one of which may be meant, small ones and a large one."""
    shapes = [i.shape for i in sample.case.inputs if isinstance(i, TensorInput)]
    sizes = [n for shape in shapes for n in (*shape, math.prod(shape))]
    return tuple(dict.fromkeys([*sizes[:MOST_SIZES], *COUNTS]))


def _bounds(sample: Sample) -> dict[str, int]:
    """The exclusive bounds of integer tensors."""
    given = [i for i in sample.case.inputs if isinstance(i, TensorInput) and i.range is not None]
    return {i.name: int(i.range[1]) for i in given if i.range is not None}


def _is_index(value: Any) -> bool:  # noqa: ANN401 - an argument
    return isinstance(value, Tensor) and value.dtype is not torch.bool


def _is_plain(value: Any) -> bool:  # noqa: ANN401 - an argument
    if isinstance(value, Tensor):
        return not value.is_floating_point() and not value.is_complex() and value.numel() > 0
    return isinstance(value, bool | int)


def _of_factors(names: Sequence[str]) -> Iterator[Mapping[str, float]]:
    """The factors as they are, then all of them large, all small."""
    yield {}
    for factor in FACTORS if names else ():
        yield dict.fromkeys(names, factor)


def _discrete(
    given: Mapping[str, Any], bounds: Mapping[str, int], numbers: Sequence[int]
) -> Iterator[Mapping[str, Any]]:
    """The other values: all integer tensors of one kind at a time, with each flag, and all counts alike."""
    tensors = {n: v for n, v in given.items() if _is_index(v)}
    masks = {n: v for n, v in given.items() if isinstance(v, Tensor) and v.dtype is torch.bool}
    flags = [n for n, v in given.items() if isinstance(v, bool)]
    of_tensors = [{}, *({n: make(v, bounds[n]) for n, v in tensors.items()} for make in INTEGERS)]
    of_masks = [{}, *({n: torch.full_like(v, on) for n, v in masks.items()} for on in (True, False))]
    of_flags = [{}, *(dict.fromkeys(flags, on) for on in (True, False))]
    counts = [n for n, v in given.items() if type(v) is int]
    of_counts = [{}, *(dict.fromkeys(counts, k) for k in numbers if any(given[n] != k for n in counts))]
    several = (
        of_tensors if tensors else [{}],
        of_masks if masks else [{}],
        of_flags if flags else [{}],
        of_counts if counts else [{}],
    )
    rows = [{n: v for part in parts for n, v in part.items()} for parts in itertools.product(*several)]
    # What changes everything first: the row without a change is the sample itself.
    yield from sorted(rows, key=len, reverse=True)
