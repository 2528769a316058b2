"""How tensors lie on the ranks of a world, in the words of DTensor's placements: taken apart, and made whole.

| word          | its part on rank r             | the whole of the parts                     |
|---------------|--------------------------------|--------------------------------------------|
| `local`       | row r of the whole             | the parts as rows                          |
| `replicate`   | the whole                      | any of them: they must be equal            |
| `shard(d)`    | chunk r along dimension d      | the chunks joined                          |
| `partial`     | row r of the whole             | their sum                                  |
| `average`     |                                | their mean                                 |
| `on(k)`       | the whole on rank k alone      | that of rank k                             |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gradverify.model import TensorInput
from gradverify.verifier.guard import NotJudgedError

_WORD = re.compile(r"([a-z]+)(?:\((\w+)\))?")

SAME = 0.5
"""Half of the digits of the largest entry: so far replicated values may differ. Ranks that add in another
order round otherwise, and what cancels keeps the rounding of its terms; a missing reduction is far larger."""

Shapes = tuple[tuple[int, ...], ...]
Differs = Callable[[int, Tensor, Tensor], None]
"""Told of a rank whose replicated value is another one than that of rank 0, with both."""


@dataclass(frozen=True)
class Placement:
    """One word of the table."""

    kind: str
    number: int = 0
    """The dimension of `shard`, the rank of `on`."""
    shapes: Shapes = ()
    """Of `local`: the shape on each rank, where they differ; the whole is flat."""
    must_agree: bool = False
    """Of `local`: the rows must be equal, though each has a gradient of its own."""

    @property
    def word(self) -> str:
        """As a spec writes it."""
        return f"{self.kind}({self.number})" if self.kind in {"shard", "on"} else self.kind

    @classmethod
    def of(cls, word: str) -> Placement:
        """The placement that a spec writes so."""
        match = _WORD.fullmatch(word)
        assert match is not None, word  # noqa: S101 - the spec was checked
        kind, inside = match[1], match[2] or ""
        if word == "replicate(partial)":
            return cls("local", must_agree=True)
        if word == "partial(avg)":
            return cls("average")
        return cls(kind, int(inside) if inside else 0)


@dataclass(frozen=True)
class Placed:
    """How a tensor and its gradient lie on the ranks."""

    value: Placement
    gradient: Placement


class MisplacedError(NotJudgedError):
    """What ranks returned does not lie as the spec says: no gradient can be held against it."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            "`output_placement` has one word for all outputs, or one for each: see docs/distributed.md.",
        )


def of_input(declared: TensorInput) -> Placed:
    """What a spec says of an input: of one that is partial, every rank returns the whole gradient."""
    if declared.placement in {"local", "partial"}:
        row = Placement("local", shapes=declared.rank_shapes)
        return Placed(row, row)
    value = Placement.of(declared.placement)
    return Placed(value, Placement.of(declared.gradient) if declared.gradient else value)


def of_output(word: str) -> Placed:
    """What a spec says of an output: one grad_output for a value that counts once, or is a sum."""
    value = Placement.of(word)
    return Placed(value, Placement("replicate") if value.kind == "partial" else value)


def parts(place: Placement, whole: Tensor, world: int) -> list[Tensor | None]:
    """A whole tensor on each rank; None where a rank has nothing of it."""
    match place.kind:
        case "local" if place.shapes:
            sizes = [math.prod(shape) for shape in place.shapes]
            split = zip(torch.split(whole, sizes), place.shapes, strict=True)
            return [flat.reshape(shape) for flat, shape in split]
        case "local":
            return list(whole.unbind(0))
        case "shard":
            return list(chunks(whole, world, place.number))
        case "on":
            return [whole if rank == place.number else None for rank in range(world)]
        case _:
            return [whole] * world


def whole(place: Placement, given: Sequence[Tensor], differs: Differs) -> Tensor:
    """The whole tensor of the parts of all ranks."""
    if place.kind == "replicate" or place.must_agree:
        for rank, part in enumerate(given[1:], 1):
            if not is_same(given[0], part):
                differs(rank, given[0], part)
    match place.kind:
        case "local" if len({part.shape for part in given}) > 1:
            return torch.cat([part.reshape(-1) for part in given])
        case "local":
            stacked = torch.stack(tuple(given))
            return stacked.reshape(-1) if place.shapes else stacked
        case "shard":
            return torch.cat([p for p in given if p.numel()] or list(given[:1]), place.number)
        case "partial":
            return torch.stack(tuple(given)).sum(0)
        case "average":
            return torch.stack(tuple(given)).mean(0)
        case _:
            return given[place.number if place.kind == "on" else 0]


def chunks(whole: Tensor, world: int, dimension: int) -> list[Tensor]:
    """Chunks as DTensor makes them: of equal length, the last ones shorter or empty."""
    size = whole.shape[dimension]
    each = -(-size // world)
    starts = [min(rank * each, size) for rank in range(world + 1)]
    return [whole.narrow(dimension, a, b - a) for a, b in pairwise(starts)]


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two ranks have the same value, but for rounding."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if torch.equal(one, other) or not one.is_floating_point() | one.is_complex():
        return torch.equal(one, other)
    apart, size = (one - other).abs(), torch.maximum(one.abs(), other.abs())
    finite = size[size.isfinite()]
    allowed = torch.finfo(one.dtype).eps ** SAME * (finite.max() if finite.numel() else 0)
    same = (apart <= allowed) | (one.isnan() & other.isnan()) | (one == other)
    return bool(same.all())


def columns_of_ranks(place: Placement, shape: Sequence[int], world: int) -> tuple[Tensor, ...]:
    """Which entries of a whole tensor, counted row by row, each rank has; empty where all have the same."""
    if place.kind not in {"local", "shard"}:
        return ()
    numbers = torch.arange(math.prod(shape)).reshape(tuple(shape))
    return tuple(part.reshape(-1) for part in parts(place, numbers, world) if part is not None)
