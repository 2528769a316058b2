"""One rank: joins the others, imports the user's module itself, and answers calls of the target.

Forked for one target from a process that ran no user code and no backward, see `starter`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import faulthandler
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from gradverify.model import TargetKind
from gradverify.verifier import guard
from gradverify.verifier.collect.discover import target_behind
from gradverify.verifier.collect.importing import import_file, resolve
from gradverify.verifier.collect.named import with_keywords
from gradverify.verifier.engine import vjp
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.of_ranks import OfRanks, OnEachRank
from gradverify.verifier.numerics.calling import returned_tensors
from gradverify.verifier.raised_errors import describe
from gradverify.verifier.ranks.collectives import Watched
from gradverify.verifier.ranks.messages import (
    GROUP_PATHS,
    Answer,
    Asked,
    Drop,
    Forward,
    Gradient,
    PackedTensor,
    Refused,
    Setup,
    Slot,
    entered_file,
    mapped,
    packed,
    receive,
    send,
    unpacked,
)

LONGEST_WAIT = dt.timedelta(hours=12)
"""Of torch's own limit on a collective: whoever verifies knows earlier who waits in vain."""

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class _Arrive(torch.autograd.Function):
    """Gives a leaf its layout in memory: what the target gets may be written to, the leaf may not."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, laid_out: list[Tensor]) -> Tensor:  # noqa: ANN401, ARG004
        return laid_out.pop()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, None]:  # noqa: ANN401, ARG004
        return grads[0], None


def _arrive(leaf: Tensor, laid_out: Tensor) -> Tensor:
    arrived: Tensor = _Arrive.apply(leaf, [laid_out])  # type: ignore[no-untyped-call]
    return arrived


@dataclass(frozen=True)
class _Called:
    """What a call leaves behind until nobody asks for its gradients any more."""

    leaves: tuple[Tensor, ...]
    outputs: tuple[Any, ...]


def main(setup: Setup, rank: int) -> NoReturn:
    """Answer until the other side is gone."""
    trace = Path(f"{setup.store}.{rank}.trace").open("w")  # noqa: SIM115 - as long as it runs
    faulthandler.enable(trace)
    connection = Client(setup.address, "AF_UNIX")
    send(connection, rank)
    try:
        served = _Rank(setup, rank, connection)
    except BaseException as error:  # noqa: BLE001 - joining runs the user's module
        send(connection, Refused(describe(error)))
        os._exit(1)
    send(connection, Answer(()))
    with contextlib.suppress(EOFError, OSError):
        while True:
            served.answer(receive(connection))
    os._exit(0)


class _Rank:
    """The target on one rank, and its calls."""

    def __init__(self, setup: Setup, rank: int, connection: Connection) -> None:
        """Join the world and import the module. Raises what these raise."""
        self._setup, self._rank, self._connection = setup, rank, connection
        self._calls: dict[int, _Called] = {}
        self._entered = os.open(entered_file(setup.store, rank), os.O_RDWR | os.O_CREAT, 0o600)
        self._watched = Watched(lambda entered: os.write(self._entered, pickle.dumps(entered)))
        torch.set_num_threads(1)
        self._device, self._group = _join(setup, rank + setup.idle_ranks)
        if rank < 0:  # it was needed to make the group another one than the world
            return
        sys.path[:] = setup.search_path
        module = import_file(Path(setup.file))
        value = target_behind(resolve(setup.target.attribute, module))
        self._module = module
        function = value.apply if setup.target.kind is TargetKind.FUNCTION else value
        if setup.target.kind is not TargetKind.FUNCTION:
            function = with_keywords(function, setup.target.parameters, setup.names)
        self._function = function

    def answer(self, asked: Asked) -> None:
        if isinstance(asked, Drop):
            for number in asked.numbers:
                self._calls.pop(number, None)
            return
        self._watched.late = asked.late
        os.lseek(self._entered, 0, os.SEEK_SET)
        os.ftruncate(self._entered, 0)
        states = _states(asked.seed)
        states.replay()
        step = self._forward if isinstance(asked, Forward) else self._gradient
        with guard.default_dtype(self._setup.default_dtype), self._watched:
            result = guard.call(step, asked)
        if isinstance(result, Raised):
            send(self._connection, Refused(result.error))
            return
        results, written = result.value
        single = isinstance(asked, Forward) and self._single
        answer = Answer(results, single, not states.untouched(), written)
        send(self._connection, answer)

    def _forward(self, asked: Forward) -> tuple[tuple[PackedTensor | None, ...], dict[int, PackedTensor]]:
        wanted = any(t.requires_grad for t in asked.tensors)
        given = [unpacked(t).to(self._device) for t in asked.tensors]
        leaves = [
            t.contiguous().clone().requires_grad_(p.requires_grad)
            for t, p in zip(given, asked.tensors, strict=True)
        ]
        with torch.set_grad_enabled(wanted):
            passed = [
                _arrive(leaf, t) if leaf.requires_grad else t for leaf, t in zip(leaves, given, strict=True)
            ]
            arguments = mapped(asked.arguments, lambda one: self._argument(one, passed))
            returned = self._function(*arguments)
        self._single = isinstance(returned, Tensor)
        outputs = tuple(map(_arrived, returned_tensors(returned)))
        if wanted:
            self._calls[asked.number] = _Called(tuple(leaves), outputs)
        return _packed(outputs), _written(asked.tensors, passed)

    def _argument(self, one: Any, passed: Sequence[Tensor]) -> Any:  # noqa: ANN401 - an argument
        match one:
            case Slot(number):
                return passed[number]
            case OfRanks(values):
                return values[self._rank]
            case OnEachRank(path, init):
                found = self._group if path in GROUP_PATHS else resolve(path, self._module)
                made = found if init is None else found(*init)
                return made.to(self._device, torch.float64) if _is_module(made, init) else made
            case _:
                return one

    def _gradient(self, asked: Gradient) -> tuple[tuple[PackedTensor | None, ...], dict[int, PackedTensor]]:
        called = self._calls[asked.of]
        given = {k: unpacked(g).to(self._device) for k, g in enumerate(asked.grad_outputs) if g is not None}
        given |= {
            k: torch.zeros_like(called.outputs[k]) for k in asked.zeros if _has_graph(called.outputs[k])
        }
        cotangents = {k: g.requires_grad_(asked.create_graph) for k, g in given.items()}
        ends = [k for k in cotangents if _has_graph(called.outputs[k])]
        wanted = [leaf for leaf in called.leaves if leaf.requires_grad]
        found: tuple[Tensor | None, ...] = (None,) * len(wanted)
        with torch.set_grad_enabled(asked.create_graph):
            if ends and wanted:
                passed = [g.view_as(g) if asked.create_graph else g for g in (cotangents[k] for k in ends)]
                outputs = [called.outputs[k] for k in ends]
                found = vjp(outputs, wanted, passed, keep=True, create=asked.create_graph)
        numbered = iter(found)
        results = tuple(next(numbered) if leaf.requires_grad else None for leaf in called.leaves)
        results = tuple(None if r is None else _arrived(r) for r in results)
        if asked.create_graph:
            self._calls[asked.number] = _Called((*called.leaves, *cotangents.values()), results)
        return _packed(results), _written(asked.grad_outputs, given)


def _join(setup: Setup, rank: int) -> tuple[torch.device, Any]:
    """Join the world; returns this rank's device and the group that the target is given."""
    total = setup.world + setup.idle_ranks
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(total), GLOO_SOCKET_IFNAME=LOOPBACK
    )
    cuda = setup.device != "cpu" and torch.cuda.device_count() >= total
    device = torch.device("cpu")
    if setup.device != "cpu":
        device = torch.device("cuda", rank if cuda else 0)
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=FileStore(setup.store, total), rank=rank, world_size=total, timeout=LONGEST_WAIT,
    )  # fmt: skip
    if not setup.idle_ranks:
        return device, dist.group.WORLD
    return device, dist.new_group(list(range(setup.idle_ranks, total)))


@lru_cache(maxsize=16)
def _states(seed: int) -> guard.RandomStates:
    return guard.RandomStates(seed)


def _is_module(made: Any, init: object) -> bool:  # noqa: ANN401 - any object
    return init is not None and isinstance(made, torch.nn.Module)


def _arrived(result: Any) -> Any:  # noqa: ANN401 - what user code returned
    """A result that may still be on its way, once it is here."""
    return result.wait() if isinstance(result, AsyncCollectiveTensor) else result


def _has_graph(output: Any) -> bool:  # noqa: ANN401 - what user code returned
    return isinstance(output, Tensor) and output.requires_grad


def _packed(results: Sequence[Any]) -> tuple[PackedTensor | None, ...]:
    return tuple(packed(r) if isinstance(r, Tensor) else None for r in results)


def _written(
    before: Sequence[PackedTensor | None], now: Sequence[Tensor] | dict[int, Tensor]
) -> dict[int, PackedTensor]:
    """What of the given tensors has other values now, by their numbers."""
    found: dict[int, PackedTensor] = {}
    for number, tensor in _numbered(now):
        given = before[number]
        if given is not None and tensor.numel() and packed(tensor).data != given.data:
            found[number] = packed(tensor)
    return found


def _numbered(now: Sequence[Tensor] | dict[int, Tensor]) -> Iterator[tuple[int, Tensor]]:
    yield from now.items() if isinstance(now, dict) else enumerate(now)
