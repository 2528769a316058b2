"""The ranks of a world, seen from the process that verifies: started, asked in step, ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn, Protocol

import psutil

from gradverify.events import FOLDERS_OF_RANKS
from gradverify.model import RaisedError
from gradverify.verifier.guard import EndsTheTargetError, NotJudgedError, OutOfStepError
from gradverify.verifier.guard.devices import shares_a_gpu
from gradverify.verifier.guard.raised_errors import RaisedElsewhereError
from gradverify.verifier.ranks import starter
from gradverify.verifier.ranks.collectives import Record, out_of_step, waiting
from gradverify.verifier.ranks.messages import (
    Answer,
    Asked,
    Broken,
    Drop,
    Refused,
    Reported,
    Setup,
    all_entered,
    receive,
    send,
)

START_SECONDS = 120.0
"""For the ranks to import torch and the user's module, and to find each other."""

QUIET_SECONDS = 10.0
"""Without any word and any work of the processor, where every rank that has not ended is in a collective."""

IDLE_SHARE = 0.2
"""Of a processor, for all ranks together: threads of gloo look now and then whether something has come."""

SHARED = "rank {rank} {ended}, on a GPU that several ranks share, which gloo does not fully support"
OWN_GPUS = "Verify it on {ranks} GPUs, which nccl joins, or on the CPU, without `--device`."
"""Message and hint."""

OF_GLOO = "/gloo/transport/"
"""In what gloo raises where a connection is lost: the file that does."""

LOOK_MILLISECONDS = 100
"""Between two looks at what ranks are doing that do not answer."""


class RankBrokenError(EndsTheTargetError):
    """Code of ours failed on a rank; the message is its traceback."""


class Ranks(Protocol):
    """Whoever asks all ranks: the processes of a `World`, or a program that runs already."""

    generation: int
    """Which start of them this is: calls of an earlier one are lost."""

    @property
    def size(self) -> int:
        """How many ranks take part."""

    def number(self) -> int:
        """A number for the next call."""

    def drop(self, number: int, generation: int) -> None:
        """Forget a call."""

    def ask(self, asked: Sequence[Asked], doing: str) -> list[Answer]:
        """What every rank answers to its request."""


class World:
    """Processes that run the target in step; a broken one is closed, and its next call starts another."""

    def __init__(self, setup: Setup) -> None:
        """`setup` without addresses: these are made for every start."""
        self._setup = setup
        self._connections: list[Connection] = []
        self._idle: list[Connection] = []
        """Of ranks that take no part."""
        self._pids: list[int] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._store = ""
        self._numbers = itertools.count()
        self._dropped: list[int] = []
        self.generation = 0
        """Which start of it this is: calls of an earlier one are lost."""

    @property
    def size(self) -> int:
        """How many ranks take part."""
        return self._setup.world

    def number(self) -> int:
        """A number for the next call."""
        return next(self._numbers)

    def drop(self, number: int, generation: int) -> None:
        """Forget a call."""
        if generation == self.generation:
            self._dropped.append(number)

    def ask(self, asked: Sequence[Asked], doing: str) -> list[Answer]:
        """What every rank answers to its request.

        Raises `RaisedElsewhereError` for what the target raised, `OutOfStepError` where ranks wait in vain.
        """
        if not self._connections:
            try:
                self._start()
            except OSError as error:  # no process, no socket: none of the target's doing
                self.close()
                raise RankBrokenError(f"ranks cannot be started: {error}") from error
            except RaisedElsewhereError:  # the module cannot be imported there
                self.close()
                raise
        dropped, self._dropped = tuple(self._dropped), []
        with contextlib.suppress(OSError):  # which of them has ended shows where answers are awaited
            for connection, message in zip(self._connections, asked, strict=True):
                if dropped:
                    send(connection, Drop(dropped))
                send(connection, message)
        return self._answers(doing)

    def close(self) -> None:
        """End all ranks."""
        for connection in (*self._connections, *self._idle):
            connection.close()
        for pid in self._pids:
            _kill(pid)
        self._connections, self._idle, self._pids, self._dropped = [], [], [], []
        self.generation += 1
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=FOLDERS_OF_RANKS.format(worker=os.getpid()))
        address, self._store = (str(Path(self._folder.name) / name) for name in ("socket", "store"))
        setup = replace(self._setup, address=address, store=self._store)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(address)
            listener.listen(setup.world + setup.idle_ranks)
            listener.settimeout(START_SECONDS)
            starter.fork(setup)
            found: dict[int, Connection] = {}
            while len(found) < setup.world + setup.idle_ranks:
                accepted, _ = listener.accept()
                accepted.setblocking(True)  # noqa: FBT003 - it inherits the listener's limit
                connection = Connection(accepted.detach())
                rank, pid = receive(connection)
                self._pids.append(pid)
                found[rank] = connection
        self._connections = [found[rank] for rank in sorted(found)]
        self._answers("importing the module")
        self._connections = [found[rank] for rank in range(setup.world)]
        self._idle = [found[rank] for rank in sorted(found) if rank < 0]

    def _answers(self, doing: str) -> list[Answer]:
        found: dict[int, Reported] = {}
        poll, ranks = select.poll(), {c.fileno(): k for k, c in enumerate(self._connections)}
        for descriptor in ranks:
            poll.register(descriptor, select.POLLIN)
        quiet, worked = time.monotonic(), self._work()
        while len(found) < len(ranks):
            ready = poll.poll(LOOK_MILLISECONDS)
            for descriptor, _ in ready:
                poll.unregister(descriptor)
                found[ranks[descriptor]] = self._reported(ranks[descriptor], doing)
            if ready:
                quiet = time.monotonic()
            else:
                records = self._records(found)
                if why := out_of_step(records):
                    self._stop(why, found, doing)
                since = time.monotonic() - quiet
                idle = self._work() - worked <= IDLE_SHARE * since + LOOK_MILLISECONDS / 1000
                if not idle or not all(r.ended or r.entered for r in records):
                    quiet, worked = time.monotonic(), self._work()
                elif since > QUIET_SECONDS:
                    self._stop(f"{waiting(records)}, and nothing happens any more", found, doing)
        return answers_of(found)

    def _reported(self, rank: int, doing: str) -> Reported:
        try:
            reported: Reported = receive(self._connections[rank])
        except (EOFError, OSError):
            self._require_own_gpus(rank, "has ended")
            self._stop(f"the process of rank {rank} has ended", {}, doing)
        if isinstance(reported, Broken):
            self.close()
            raise RankBrokenError(reported.traceback)
        if isinstance(reported, Refused) and OF_GLOO in reported.error.message:  # its peer has ended
            self._require_own_gpus(rank, "has lost another one")
        return reported

    def _require_own_gpus(self, rank: int, ended: str) -> None:
        """Where ranks share a GPU, gloo joins them, which aborts what sends a tensor of it to one rank."""
        ranks = self._setup.world + self._setup.idle_ranks
        if shares_a_gpu(self._setup.device, ranks):
            self.close()
            raise NotJudgedError(SHARED.format(rank=rank, ended=ended), OWN_GPUS.format(ranks=ranks))

    def _records(self, found: Mapping[int, Reported]) -> list[Record]:
        """What every rank did in this step so far."""
        idle, records = self._setup.idle_ranks, []
        for rank in range(len(self._connections)):
            reported = found.get(rank)
            ended = "" if reported is None else "has gone on"
            ended = f"has raised {reported.error.type}" if isinstance(reported, Refused) else ended
            entered = [
                replace(
                    e, members=tuple(m - idle for m in e.members), peer=e.peer - idle if e.peer >= 0 else -1
                )
                for e in all_entered(f"{self._store}", rank)
            ]
            records.append(Record(entered, ended))
        return records

    def _stop(self, why: str, found: Mapping[int, Reported], doing: str) -> NoReturn:
        """End them. Raises what one of them raised, for which the others wait, else `OutOfStepError`."""
        self.close()
        for rank, reported in sorted(found.items()):
            if isinstance(reported, Refused):
                raise RaisedElsewhereError(_of_rank(reported.error, rank, f"; {why}"))
        raise OutOfStepError(why, doing)

    def _work(self) -> float:
        """The processor seconds of the ranks so far."""
        seconds = 0.0
        for pid in self._pids:
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                seconds += times.user + times.system
        return seconds


def answers_of(found: Mapping[int, Reported]) -> list[Answer]:
    """The answers of all ranks in order. Raises `RaisedElsewhereError` for what the target raised."""
    refused = {k: reported for k, reported in sorted(found.items()) if isinstance(reported, Refused)}
    for rank, reported in refused.items():
        alone = len(refused) < len(found)
        raise RaisedElsewhereError(_of_rank(reported.error, rank, "") if alone else reported.error)
    every = [found[rank] for rank in range(len(found))]
    return [reported for reported in every if isinstance(reported, Answer)]


def _of_rank(error: RaisedError, rank: int, more: str) -> RaisedError:
    return replace(error, message=f"on rank {rank} alone: {error.message}{more}")


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
