"""Tensors as one float64 vector and back: no other code cares about shapes, counts or complex numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gradverify.model import Part


@dataclass(frozen=True)
class Block:
    """Where one tensor lies in the flat vector."""

    shape: tuple[int, ...]
    """Shape of the tensor; a complex one counts as `view_as_real`, with a last dimension of 2."""
    dtype: torch.dtype
    device: torch.device
    start: int
    stop: int
    chosen: tuple[tuple[int, ...], ...] | None = None
    """Where this block holds some entries of a larger tensor: their multi-indices in it."""

    @property
    def is_complex(self) -> bool:
        """Whether the tensor itself is complex."""
        return self.dtype.is_complex

    @cached_property
    def is_plain(self) -> bool:
        """Whether the tensor is a float64 one on the CPU, as the flat vector is."""
        return self.dtype is torch.float64 and self.device.type == "cpu"

    def index(self, position: int) -> tuple[int, ...]:
        """Multi-index within the tensor of a position in the flat vector."""
        rest = position - self.start
        if self.chosen is not None:
            return self.chosen[rest]
        index = []
        for size in reversed(self.shape):
            rest, here = divmod(rest, size)
            index.append(here)
        return (*reversed(index[1:]), Part(index[0])) if self.is_complex else tuple(reversed(index))


@dataclass(frozen=True)
class Layout:
    """The order in which several tensors make up one flat float64 vector on the CPU."""

    blocks: tuple[Block, ...]

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> Layout:
        """Lay out tensors one after the other."""
        return _laid_out(tuple([(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]))

    @cached_property
    def size(self) -> int:
        """Length of the flat vector."""
        return self.blocks[-1].stop if self.blocks else 0

    @cached_property
    def lengths(self) -> list[int]:
        """How many coordinates each tensor has."""
        return [block.stop - block.start for block in self.blocks]

    @cached_property
    def slices(self) -> list[slice]:
        """Where each tensor that has coordinates lies."""
        return [slice(block.start, block.stop) for block in self.blocks if block.stop > block.start]

    @property
    def rounding(self) -> Tensor:
        """Relative rounding of each coordinate in its tensor's own dtype."""
        parts = [
            torch.full((n,), _epsilon(b.dtype), dtype=torch.float64)
            for n, b in zip(self.lengths, self.blocks, strict=True)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    @cached_property
    def is_double(self) -> bool:
        """Whether every tensor holds float64 numbers, or pairs of them."""
        return all(block.dtype in (torch.float64, torch.complex128) for block in self.blocks)

    def first(self, count: int) -> Layout:
        """The tensors that make up the first coordinates. `count` ends a tensor."""
        return Layout(tuple(block for block in self.blocks if block.stop <= count))

    def block_of(self, position: int) -> int:
        """Which tensor a position of the flat vector belongs to."""
        return next(
            number for number, block in enumerate(self.blocks) if block.start <= position < block.stop
        )

    def flatten(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Join tensors of this layout's shapes into one fresh vector; None stands for zeros.

        Raises `ValueError` where a tensor has another shape than laid out.
        """
        blocks = self.blocks
        if len(blocks) == 1 == len(tensors):
            return vector_of(tensors[0], blocks[0]).clone()
        parts = [vector_of(tensor, block) for tensor, block in zip(tensors, blocks, strict=True)]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    @cached_property
    def is_plain(self) -> bool:
        """Whether every tensor is a float64 one on the CPU, as the flat vector is."""
        return all(block.is_plain for block in self.blocks)

    def cut(self, vector: Tensor) -> Sequence[Tensor]:
        """The part of a vector that belongs to each tensor, still flat: views of it."""
        return (vector,) if len(self.blocks) == 1 else vector.split_with_sizes(self.lengths)

    def shaped(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Tensors of this layout's shapes: views of the vector where they can be."""
        if not self.is_plain:
            return self.unflatten(vector)
        if len(self.blocks) == 1:
            return (vector.view(self.blocks[0].shape),)
        return tuple([part.view(b.shape) for part, b in zip(self.cut(vector), self.blocks, strict=True)])

    def unflatten(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Cut a vector into fresh tensors of this layout's shapes, dtypes and devices."""
        parts = self.cut(vector)
        return tuple([tensor_of(part, block) for part, block in zip(parts, self.blocks, strict=True)])


@lru_cache(maxsize=1024)  # a small problem's proof would otherwise build several, at 10 µs each
def _laid_out(tensors: tuple[tuple[torch.Size, torch.dtype, torch.device], ...]) -> Layout:
    blocks: list[Block] = []
    start = 0
    for size, dtype, device in tensors:
        shape = (*size, 2) if dtype.is_complex else tuple(size)
        stop = start + math.prod(shape)
        blocks.append(Block(shape, dtype, device, start, stop))
        start = stop
    return Layout(tuple(blocks))


def _epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def tensor_of(part: Tensor, block: Block) -> Tensor:
    """A fresh tensor of a block's shape, dtype and device, from its part of the vector."""
    fresh = part.view(block.shape).clone()
    if block.is_plain:
        return fresh
    if block.is_complex:
        fresh = torch.view_as_complex(fresh)
    # A copy again, so that no tensor handed out is a view of another.
    return fresh.to(device=block.device, dtype=block.dtype, copy=True)


def vector_of(tensor: Tensor | None, block: Block) -> Tensor:
    """A tensor as its part of the vector, a view where it can be; None stands for zeros.

    Raises `ValueError` where it has another shape than laid out.
    """
    if tensor is None:
        return torch.zeros(block.stop - block.start, dtype=torch.float64)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if block.is_plain and tensor.dtype is torch.float64 and tensor.is_cpu:
        if tensor.shape != block.shape:
            raise ValueError(f"shape {list(tensor.shape)} where {list(block.shape)} was laid out")
        return tensor.reshape(-1)
    tensor = tensor.resolve_conj().resolve_neg()
    if block.is_complex and not tensor.is_complex():
        tensor = tensor.to(block.dtype)
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if tuple(real.shape) != block.shape:
        raise ValueError(f"shape {list(real.shape)} where {list(block.shape)} was laid out")
    return real.to(device="cpu", dtype=torch.float64).reshape(-1)
