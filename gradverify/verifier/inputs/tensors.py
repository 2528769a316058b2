"""One tensor at one point: drawn values on their structure, a literal, or what the user's function makes.

At one point inputs share values: a maximum of two inputs has a kink where they are equal, and nowhere else.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Point, TensorInput
from gradverify.model.case import EQUAL_INPUTS, KEEP_AWAY, MODERATE, is_declared
from gradverify.verifier.inputs.structures import Retraction, place, place_integers, retraction
from gradverify.verifier.inputs.undeclared import draw_duplicates, draw_one_truth, draw_undeclared
from gradverify.verifier.inputs.values import (
    DOMAINS,
    draw_booleans,
    draw_integers,
    draw_plain,
    draw_values,
    interval_of,
    source_of,
    with_special,
)

INTEGER_STRUCTURES = frozenset({"offsets", "permutation", "one-hot", "sorted"})
"""Structures that integer tensors can have; the other ones are of floating tensors."""

FEWEST_OFFSETS = 2
"""Of one segment; of more, one is empty where values are special."""

MANY = 100_000
"""From this many entries on most are repetitions: 10^6 numbers of Python take seconds to draw."""

DRAWN = 10_000
"""Entries of such a tensor that are drawn."""

APART = 1e-6
"""How much nearer each repetition of these is to the middle of its interval: no two entries are equal."""

TURN = 7919
"""Entries by which each repetition is turned, a prime: no two rows are alike."""

TIED = 2
"""Neighbours along every dimension that are equal where a spec says `ties: true`."""

MOST_EQUAL = 256
"""Places at most at which two inputs are made equal: more of them show nothing more."""

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "sparse_coo": lambda x: x.to_sparse(),
    "sparse_csr": lambda x: x.to_sparse_csr(),
}


def build_tensor(
    spec: TensorInput, seed: int, point: Point, draw: int, device: str, live: Mapping[str, Any] | None = None
) -> Tensor:
    """Draw one tensor, build it from its literal value, or let the user's own function make it.

    `live` holds the objects behind `make:` by their path. Raises whatever that function raises.
    """
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.make:
        generator = torch.Generator(device=device).manual_seed(stream(seed, spec.name, draw))
        made = (live or {})[spec.make](generator, torch.device(device), dtype, tuple(spec.shape))
        return _checked(made, spec)
    if spec.value is not None:
        return torch.tensor(_lists(spec.value), dtype=dtype).reshape(spec.shape).to(device)
    drawn = _drawn(spec, dtype, seed, point, draw).reshape(spec.shape)
    if spec.structure and _is_floating(dtype):
        drawn = place(spec.structure, drawn)
    return drawn.to(device)


def stream(seed: int, name: str, draw: int = 0) -> int:
    """The seed of what user code draws for an input: another one for each case, input and draw."""
    return random.Random(f"{seed}/{name}/made/{draw}").getrandbits(63)


def is_differentiable(spec: TensorInput, value: Tensor | None = None) -> bool:
    """Whether a tensor is differentiated: as the spec says, else every floating or complex one.

    `value` is the tensor itself, where there is one: what `make:` returns may be a mask or an index.
    """
    if spec.mutated or (value is not None and not _is_floating(value.dtype)):
        return False
    return _is_floating(getattr(torch, spec.dtype)) if spec.requires_grad is None else spec.requires_grad


def step_of(spec: TensorInput, base: Tensor) -> Retraction | None:
    """What happens to a moved value before the target sees it: back onto the structure, into the layout."""
    stays = retraction(spec.structure, base) if spec.structure else None
    convert = LAYOUTS.get(spec.layout)
    if stays is not None and convert is not None:
        return lambda x: convert(stays(x))
    return stays or convert


def held_of(constant_at: Sequence[tuple[int, tuple[int, ...]]], base: Tensor) -> Tensor | None:
    """Mask of the entries that are never perturbed; None where every entry is."""
    if not constant_at:
        return None
    mask = torch.zeros_like(base, dtype=torch.bool)
    for dimension, indices in constant_at:
        mask.index_fill_(dimension, torch.tensor(indices, device=base.device), value=True)
    return mask


def with_equal_values(
    specs: Sequence[TensorInput], values: Mapping[str, Tensor], seed: int
) -> dict[str, Tensor]:
    """New values, by name, of the inputs after the first, which have its shape and dtype.

    Each entry of the first is given to one of them, so that no three are equal: where two bounds are, nothing
    lies between them, and which of them counts is another question. What is equal to one of several bounds is
    below the others, and above them, in turn: a bound that is beyond another bounds nothing.
    """
    if not specs:
        return {}
    x = values[specs[0].name].reshape(-1)
    source = source_of(seed, "", "equal", EQUAL_INPUTS)
    places = source.sample(range(len(x)), min(len(x), MOST_EQUAL))
    made = {spec.name: values[spec.name].clone().reshape(-1) for spec in specs[1:]}
    size = {spec.name: values[spec.name].reshape(-1).real.tolist() for spec in specs}
    here = size.pop(specs[0].name)
    for turn in range(len(places)):
        again, number = divmod(turn, len(made))
        spec, below = specs[1 + number], (again + number) % 2 == 0
        others = [size[name] for name in made if name != spec.name]
        entry = next((p for p in places if all((o[p] > here[p]) is below for o in others)), places[0])
        places.remove(entry)
        if _is_valid(spec, x[entry].item()):
            made[spec.name][entry] = x[entry]
    return {name: value.reshape(specs[0].shape) for name, value in made.items()}


def _is_valid(spec: TensorInput, value: complex) -> bool:
    """Whether a value, or each part of a complex one, may be one of this input."""
    low, high = DOMAINS[spec.domain]
    if spec.range is not None:
        low, high = max(low, spec.range[0]), min(high, spec.range[1])
    parts = (value.real, value.imag) if spec.dtype == "complex128" and value.imag else (value.real,)
    avoided = any(abs(part - point) < KEEP_AWAY * MODERATE for part in parts for point in spec.avoid)
    return all(low < part < high for part in parts) and not avoided


def _drawn(spec: TensorInput, dtype: torch.dtype, seed: int, point: Point, draw: int) -> Tensor:
    """All entries, as a vector; of very many floating ones the first `DRAWN` repeat themselves."""
    count, width = math.prod(spec.shape), min(spec.shape[-1], DRAWN) if spec.shape else 1
    if count < MANY or not _is_floating(dtype):
        return torch.tensor(_entries(spec, dtype, seed, point, draw), dtype=dtype)
    few = replace(spec, shape=(DRAWN // width, width))
    part = torch.tensor(_entries(few, dtype, seed, point, draw), dtype=dtype)
    centre = sum(interval_of(spec, point)) / 2 if is_declared(point, draw) else 0.0
    apart, turn = (0.0, 0) if point is Point.SPECIAL and not spec.distinct else (APART, TURN)
    values = torch.empty(count, dtype=dtype)
    for k, start in enumerate(range(0, count, len(part))):
        again = ((part - centre) * (1 - k * apart) + centre) if k * apart else part
        values[start : start + len(part)] = again.roll(k * turn)[: count - start]
    return values


def _entries(spec: TensorInput, dtype: torch.dtype, seed: int, point: Point, draw: int) -> Sequence[Any]:
    if (point, draw) == (Point.SPECIAL, EQUAL_INPUTS):
        point = Point.TYPICAL
    if not _is_floating(dtype):
        return _whole_entries(spec, dtype, seed, point, draw)
    drawn = draw_plain if point is Point.PLAIN else draw_values
    if not is_declared(point, draw):
        drawn = draw_undeclared
    values = drawn(spec, seed, point, draw)
    if dtype.is_complex:
        return list(map(complex, values, drawn(spec, seed + 1, point, draw)))
    ties = spec.ties and point is Point.SPECIAL and drawn is draw_values
    return _tied(values, spec.shape) if ties else values


def _whole_entries(
    spec: TensorInput, dtype: torch.dtype, seed: int, point: Point, draw: int
) -> Sequence[int]:
    """Entries of an integer tensor, or of a boolean one."""
    is_ordered, declared = spec.structure in INTEGER_STRUCTURES, is_declared(point, draw)
    if not declared and point is Point.SPECIAL and not is_ordered:
        return draw_one_truth(spec, draw) if dtype is torch.bool else draw_duplicates(spec, seed, draw)
    where = point if declared else Point.TYPICAL
    if is_ordered:
        values = place_integers(spec, random.Random(f"{seed}/{spec.name}/{draw}"))
        values = sorted(with_special(spec, values, seed, where, draw)) if spec.special else values
        return values if declared or point is Point.WIDE else _with_empty_segment(spec, values, seed, draw)
    return (draw_booleans if dtype is torch.bool else draw_integers)(spec, seed, where, draw)


def _with_empty_segment(spec: TensorInput, values: list[int], seed: int, draw: int) -> list[int]:
    """Offsets of which two neighbours are equal; everything else as it is."""
    if spec.structure != "offsets" or len(values) <= FEWEST_OFFSETS:
        return values
    place_ = random.Random(f"{seed}/{spec.name}/empty/{draw}").randrange(1, len(values) - 1)
    return [*values[:place_], values[place_ - 1], *values[place_ + 1 :]]


def _tied(values: list[float], shape: Sequence[int]) -> list[float]:
    """The largest and the smallest value in turn, each twice along every dimension.

    Whatever a reduction sees, a row, a column or a window of three entries and more, ties at an end of it.
    """
    if len(values) <= 1:
        return values
    ends = max(values), min(values)
    places = itertools.product(*map(range, shape))
    return [ends[sum(place_) // TIED % len(ends)] for place_ in places]


def _checked(made: Any, spec: TensorInput) -> Tensor:  # noqa: ANN401
    if not isinstance(made, Tensor):
        raise TypeError(f"`{spec.make}` returned {type(made).__name__}, not a tensor")
    if tuple(made.shape) != spec.shape:
        raise ValueError(f"`{spec.make}` returned shape {list(made.shape)}, the spec says {list(spec.shape)}")
    if spec.requires_grad and not _is_floating(made.dtype):
        raise TypeError(f"`{spec.make}` returned {made.dtype}, which cannot require grad as the spec says")
    return made.detach()


def _is_floating(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _lists(value: Any) -> Any:  # noqa: ANN401 - nested tuples to nested lists
    return [_lists(v) for v in value] if isinstance(value, tuple) else value
