"""What a tensor held before user code ran: a write shows by content, bit by bit, and by torch's counter.

Memory written through NumPy, a raw pointer or `.data` does not move the counter, and a write that happens to
change nothing moves it alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction


@dataclass(frozen=True)
class Snapshot:
    """A tensor as it was."""

    tensor: Tensor
    copy: Tensor
    version: int

    @staticmethod
    def of(tensor: Tensor) -> Snapshot:
        """Remember a tensor's content and version."""
        return Snapshot(tensor, tensor.detach().clone(), tensor._version)  # noqa: SLF001 - its only name

    @property
    def rewritten(self) -> bool:
        """Whether its content is another now."""
        return not same_bits(self.tensor.detach(), self.copy)

    @property
    def counted(self) -> bool:
        """Whether torch's counter saw a write."""
        return self.tensor._version != self.version  # noqa: SLF001

    @property
    def changed(self) -> bool:
        """Whether it was written to, even if only with the values it had."""
        return self.counted or self.rewritten

    @property
    def by_how_much(self) -> str:
        """`: 6 of 6 entries changed`, or that only the counter shows it."""
        now, before = self.tensor.detach(), self.copy
        if now.shape != before.shape:
            return f": its shape is {list(now.shape)} now, {list(before.shape)} before"
        count = int((now != before).sum())
        if not count:
            return " (with the values it has at these inputs; its version counter moved)"
        return f": {count} of {now.numel()} entries changed"


@dataclass(frozen=True)
class Kept:
    """What forward kept for backward, as it was before a backward ran: by sums of its bits, not as copies.

    A large target's saved tensors are not held twice. A write that only changes places behind torch's
    counter does not show.
    """

    tensors: tuple[Tensor, ...]
    marks: list[tuple[int, Tensor]]

    @staticmethod
    def of(outputs: Sequence[Tensor]) -> Kept:
        """Of every Python Function behind some outputs."""
        tensors = tuple(t for t in _kept(outputs) if t.layout is torch.strided)
        return Kept(tensors, list(map(_mark, tensors)))

    @property
    def is_written(self) -> bool:
        """Whether a backward has written into it: the graph gives another gradient from now on."""
        pairs = zip(self.tensors, self.marks, strict=True)
        return any(t._version != v or not torch.equal(_bits(t), bits) for t, (v, bits) in pairs)  # noqa: SLF001


_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The whole numbers of so many bytes."""


def _mark(tensor: Tensor) -> tuple[int, Tensor]:
    return tensor._version, _bits(tensor)  # noqa: SLF001 - its only name


def _bits(tensor: Tensor) -> Tensor:
    """The sum of all entries as whole numbers, wrapped around."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    return plain.view(_WHOLE[plain.element_size()]).sum()


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same, NaN equal to itself."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if torch.equal(a, b):
        return True
    both = (t.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8) for t in (a, b))
    return torch.equal(*both)


def _kept(outputs: Sequence[Tensor]) -> Iterator[Tensor]:
    """The tensors that Python Functions of a graph have saved, and those among the attributes of a ctx."""
    met: dict[int, Any] = {}
    waiting: list[Any] = list(map(_node, outputs))
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in met:
            continue
        met[id(node)] = node
        waiting += [following for following, _ in node.next_functions]
        if isinstance(node, BackwardCFunction):
            yield from (t for t in (*_saved(node), *vars(node).values()) if isinstance(t, Tensor))


def _node(output: Tensor) -> Any:  # noqa: ANN401 - the class of the node is the user's
    try:
        return output.grad_fn
    except RuntimeError:  # a view whose base was written to: backward raises the same
        return None


def _saved(node: Any) -> Sequence[Any]:  # noqa: ANN401 - the class of the node is the user's
    try:
        return node.saved_tensors or ()
    except RuntimeError:  # they are gone, or written to: backward raises the same
        return ()
