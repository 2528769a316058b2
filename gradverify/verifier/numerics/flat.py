"""Tensors as one float64 vector and back: no other code cares about shapes, counts or complex numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Where one tensor lies in the flat vector."""

    shape: tuple[int, ...]
    """Shape of the tensor; a complex one counts as `view_as_real`, with a last dimension of 2."""
    dtype: torch.dtype
    device: torch.device
    start: int
    stop: int

    @property
    def is_complex(self) -> bool:
        """Whether the tensor itself is complex."""
        return self.dtype.is_complex

    def index(self, position: int) -> tuple[int, ...]:
        """Multi-index within the tensor of a position in the flat vector."""
        rest = position - self.start
        index = []
        for size in reversed(self.shape):
            rest, here = divmod(rest, size)
            index.append(here)
        return tuple(reversed(index))


@dataclass(frozen=True)
class Layout:
    """The order in which several tensors make up one flat float64 vector on the CPU."""

    blocks: tuple[Block, ...]

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> Layout:
        """Lay out tensors one after the other."""
        blocks: list[Block] = []
        start = 0
        for tensor in tensors:
            shape = (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)
            count = tensor.numel() * (2 if tensor.is_complex() else 1)
            blocks.append(Block(shape, tensor.dtype, tensor.device, start, start + count))
            start += count
        return Layout(tuple(blocks))

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return self.blocks[-1].stop if self.blocks else 0

    def block_of(self, position: int) -> int:
        """Which tensor a position of the flat vector belongs to."""
        return next(
            number for number, block in enumerate(self.blocks) if block.start <= position < block.stop
        )

    def flatten(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Join tensors of this layout's shapes into one vector; None stands for zeros.

        Raises `ValueError` where a tensor has another shape than laid out.
        """
        parts = [_flat(tensor, block) for tensor, block in zip(tensors, self.blocks, strict=True)]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def unflatten(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Cut a vector into fresh tensors of this layout's shapes, dtypes and devices."""
        tensors = []
        for block in self.blocks:
            part = vector[block.start : block.stop].reshape(block.shape)
            if block.is_complex:
                part = torch.view_as_complex(part.clone())
            tensors.append(part.to(device=block.device, dtype=block.dtype, copy=True))
        return tuple(tensors)


def _flat(tensor: Tensor | None, block: Block) -> Tensor:
    if tensor is None:
        return torch.zeros(block.stop - block.start, dtype=torch.float64)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if block.is_complex and not tensor.is_complex():
        tensor = tensor.to(block.dtype)
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if tuple(real.shape) != block.shape:
        raise ValueError(f"shape {list(real.shape)} where {list(block.shape)} was laid out")
    return real.to(device="cpu", dtype=torch.float64).reshape(-1)
