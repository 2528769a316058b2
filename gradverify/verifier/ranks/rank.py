"""One rank: joins the others, imports the user's module itself, and answers calls of the target.

Forked for one target from a process that ran no user code and no backward, see `starter`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import pickle
import sys
import traceback
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from gradverify.model import TargetKind
from gradverify.verifier import guard
from gradverify.verifier.guard.devices import shares_a_gpu
from gradverify.verifier.inputs.arguments import OnEachRank
from gradverify.verifier.ranks.collectives import Watched
from gradverify.verifier.ranks.messages import (
    GROUP_PATHS,
    Answer,
    Asked,
    Broken,
    Drop,
    Refused,
    Setup,
    entered_file,
    receive,
    send,
)
from gradverify.verifier.ranks.program import Calls
from gradverify.verifier.targets.discover import target_behind
from gradverify.verifier.targets.importing import import_file, resolve
from gradverify.verifier.targets.operators import with_keywords

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
"""The network interface that gloo is bound to: no rank listens to another machine."""

LONGEST_WAIT = dt.timedelta(hours=12)
"""Of torch's own limit on a collective: whoever verifies knows earlier who waits in vain."""


def main(setup: Setup, rank: int) -> NoReturn:
    """Answer until the other side is gone."""
    connection = Client(setup.address, "AF_UNIX")
    send(connection, (rank, os.getpid()))
    try:
        served = _Rank(setup, rank, connection)
        send(connection, served.ready())
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                served.answer(receive(connection))
    except BaseException as error:  # noqa: BLE001 - what the target raises is answered: this one is ours
        send(connection, Broken("".join(traceback.format_exception(error))))
    os._exit(0)


class _Rank:
    """The target on one rank, and its calls."""

    def __init__(self, setup: Setup, rank: int, connection: Connection) -> None:
        """Join the world. Raises what that does."""
        self._setup, self._rank, self._connection = setup, rank, connection
        self._entered = os.open(entered_file(setup.store, rank), os.O_RDWR | os.O_CREAT, 0o600)
        self._watched = Watched(lambda entered: os.write(self._entered, pickle.dumps(entered)))
        torch.set_num_threads(1)
        self._device, self._group = _join(setup, rank + setup.idle_ranks)

    def ready(self) -> Answer | Refused:
        """Import the module, which may set up groups of its own; what it raises is an answer."""
        sys.path[:] = self._setup.search_path
        found = guard.call(self._imported)
        return Refused(found.error) if isinstance(found, guard.Raised) else Answer(())

    def _imported(self) -> None:
        setup = self._setup
        self._module = import_file(Path(setup.file)).module
        value = target_behind(resolve(setup.target.attribute, self._module))
        function = value.apply if setup.target.kind is TargetKind.FUNCTION else value
        if setup.target.kind is not TargetKind.FUNCTION:
            function = with_keywords(function, setup.target.parameters, setup.names)
        self._calls = Calls(function, self._rank, self._found, self._device, self._watched)

    def answer(self, asked: Asked) -> None:
        """Answer a request."""
        if isinstance(asked, Drop):
            self._calls.drop(asked.numbers)
            return
        os.lseek(self._entered, 0, os.SEEK_SET)
        os.ftruncate(self._entered, 0)
        with guard.default_dtype(self._setup.default_dtype):
            send(self._connection, self._calls.answer(asked))

    def _found(self, one: OnEachRank) -> Any:  # noqa: ANN401 - any object
        found = self._group if one.path in GROUP_PATHS else resolve(one.path, self._module)
        made = found if one.init is None else found(*one.init)
        is_module = one.init is not None and isinstance(made, torch.nn.Module)
        return made.to(self._device, torch.float64) if is_module else made


def _join(setup: Setup, rank: int) -> tuple[torch.device, Any]:
    """Join the world; returns this rank's device and the group that the target is given."""
    total = setup.world + setup.idle_ranks
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(total), GLOO_SOCKET_IFNAME=LOOPBACK
    )
    cuda = setup.device != "cpu" and not shares_a_gpu(setup.device, total)
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
