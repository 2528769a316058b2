"""What crosses between the process that verifies and its ranks: tensors with their layout, calls, answers."""

from __future__ import annotations

import contextlib
import ctypes
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradverify.model import RaisedError, Target

GROUP_PATHS = frozenset({"torch.distributed:group.WORLD"})
"""What a spec's `{process_group: world}` is."""


@dataclass(frozen=True)
class PackedTensor:
    """A tensor as bytes, with the memory between its entries: strided as it was."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    data: bytes
    requires_grad: bool = False


def packed(tensor: Tensor) -> PackedTensor:
    """Pack a strided tensor."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu()
    shape, strides = tuple(flat.shape), flat.stride()
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if flat.numel() else 0
    memory = torch.as_strided(flat, (extent,), (1,), flat.storage_offset()).contiguous()
    data = ctypes.string_at(memory.data_ptr(), memory.nbytes) if extent else b""
    return PackedTensor(flat.dtype, shape, strides, data, tensor.requires_grad)


def unpacked(tensor: PackedTensor) -> Tensor:
    """The tensor, in memory of its own."""
    if not tensor.data:
        return torch.empty_strided(tensor.shape, tensor.strides, dtype=tensor.dtype)
    memory = torch.frombuffer(bytearray(tensor.data), dtype=tensor.dtype)
    return torch.as_strided(memory, tensor.shape, tensor.strides)


@dataclass(frozen=True)
class Slot:
    """Where the tensor of a number is among arguments."""

    number: int


@dataclass(frozen=True)
class Setup:
    """What a rank has to know before the first call."""

    world: int
    file: str
    """The user's module."""
    search_path: tuple[str, ...]
    """`sys.path` of the process that verifies."""
    target: Target
    names: tuple[str, ...]
    """Of the inputs, in the order of a call."""
    device: str
    default_dtype: str
    store: str
    """The file of torch's store."""
    address: str
    """The socket on which the verifying process listens."""
    idle_ranks: int = 0
    """Ranks before those of the group, which take no part: the group is then not that of the whole world."""


@dataclass(frozen=True)
class Forward:
    """Call the target."""

    number: int
    """What the call is known by afterwards."""
    arguments: tuple[Any, ...]
    """With `Slot` for tensors, `OnEachRank` for objects, `OfRanks` where ranks differ."""
    tensors: tuple[PackedTensor, ...]
    seed: int
    late: bool = False
    """This rank comes late to every collective."""


@dataclass(frozen=True)
class Gradient:
    """Differentiate what an earlier call returned, in all tensors that require grad."""

    number: int
    of: int
    grad_outputs: tuple[PackedTensor | None, ...]
    zeros: frozenset[int]
    """Outputs that do not count on this rank: their grad_output is zero."""
    create_graph: bool
    seed: int
    late: bool = False


@dataclass(frozen=True)
class Drop:
    """Calls that nobody asks for any more."""

    numbers: tuple[int, ...]


Asked = Forward | Gradient | Drop


@dataclass(frozen=True)
class Entered:
    """A rank is about to communicate."""

    operation: str
    """`all_reduce`"""
    group: str
    members: tuple[int, ...]
    """Of the group, by their numbers in the world."""
    peer: int
    """The other rank of `send` and `recv`; -1 of what a whole group does."""
    place: str
    """`tp.py:12`"""


@dataclass(frozen=True)
class Answer:
    """What a rank returned."""

    results: tuple[PackedTensor | None, ...]
    single: bool = False
    """One value, not a tuple."""
    drew: bool = False
    """Random numbers were drawn."""
    written: Mapping[int, PackedTensor] = field(default_factory=dict)
    """Tensors it was given that have other values now, by their numbers."""


@dataclass(frozen=True)
class Refused:
    """What a rank raised."""

    error: RaisedError


@dataclass(frozen=True)
class Broken:
    """A rank failed in code of ours."""

    traceback: str


Reported = Answer | Refused | Broken


def entered_file(store: str, rank: int) -> str:
    """Where a rank writes which collectives it enters in a step: who waits looks there, and is not woken."""
    return f"{store}.{rank}.entered"


def all_entered(store: str, rank: int) -> list[Entered]:
    """What a rank has written there so far; the last may not be whole yet."""
    found: list[Entered] = []
    cut_short = (EOFError, OSError, pickle.UnpicklingError)
    with contextlib.suppress(*cut_short), Path(entered_file(store, rank)).open("rb") as file:
        while True:
            found.append(pickle.load(file))  # noqa: S301 - our own processes
    return found


def send(connection: Connection, message: Asked | Reported | tuple[int, int]) -> None:
    """Send a message. Raises `OSError` where the other side is gone."""
    connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:  # noqa: ANN401 - what the other side sends
    """The next message. Raises `EOFError` or `OSError` where the other side is gone."""
    return pickle.loads(connection.recv_bytes())  # noqa: S301 - our own processes
