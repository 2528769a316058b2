"""The worker process seen from the front: started, asked, timed, killed.

The front alone knows clocks. A worker that dies or hangs costs one target its verdict, never the run.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

from gradverify.events import (
    CHANNEL_LOST,
    UNASKED,
    Broken,
    Called,
    DeviceLost,
    DiagnosisStarted,
    Disturbed,
    Done,
    Event,
    Ready,
    Request,
    from_line,
    to_line,
)
from gradverify.session.memory import excess
from gradverify.session.processes import Channel, Process, kill_all, start
from gradverify.session.template import Template
from gradverify.session.worker_ended import (
    DISTURBED,
    LOST,
    LOST_DEVICE,
    WorkerBrokenError,
    WorkerDeviceLostError,
    WorkerDiedError,
    WorkerDisturbedError,
    WorkerError,
    WorkerLostError,
    WorkerStartError,
    WorkerTimedOutError,
    WorkerTooBigError,
    fold,
    read_tail,
    with_raised,
)

START_LIMIT = 300.0
"""Seconds for a worker to import torch: cold disks are slow, a hang must still end."""

NUMBER_BITS = 62
"""Of the number of a request. It is drawn: what user code writes into the channel does not carry it."""

DUMP_LIMIT = 1.0
"""Seconds for a process that hangs to write where it hangs, before it is killed."""

LOOK_SECONDS = 0.1
"""Between two looks at a worker's memory."""

E = TypeVar("E", bound="WorkerError")

Clock = Callable[[], float]


class Worker:
    """One worker process; a context manager that leaves nothing running."""

    def __init__(
        self,
        clock: Clock = time.monotonic,
        template: Template | None = None,
    ) -> None:
        """Fork the process from a template, or start it afresh; it imports torch before it is `ready`."""
        self._clock = clock
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._faults = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._process: Process
        self._channel: Channel | None = None
        self._selector = selectors.DefaultSelector()
        self._forked = template is not None
        streams = self._log.fileno(), self._faults.fileno()
        self._begin((template.fork(*streams) if template is not None else None) or start(*streams))
        self._buffer = b""
        self._number = UNASKED
        self._called = 0, 0.0
        self._ready: Ready | None = None
        self.touched = False
        """The calls of an earlier target have left something behind that a later one may find."""
        self._since = 0
        self._memory = 0
        self._looked = 0.0

    def __enter__(self) -> Self:
        """Enter."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process and everything it started."""
        self.close()

    @property
    def alive(self) -> bool:
        """Whether it still answers. One that wrote or ended while nobody asked does not."""
        if self._channel is None:
            return False
        return self._ready is None or not (self._buffer or self._selector.select(0))

    @property
    def running(self) -> bool:
        """Whether its process has not ended by itself."""
        return self.alive and self._process.poll() is None

    def ready(self) -> Ready:
        """Wait until torch is imported.

        Raises `WorkerStartError`.
        """
        if self._ready is None:
            try:
                self._require_process()
                event = self._next(self._clock() + START_LIMIT)
            except WorkerError as error:
                raise WorkerStartError(error.how, error.captured, error.trace) from None
            if not isinstance(event, Ready):
                raise self._over(WorkerStartError, "did not get ready")
            self._ready = event
        return self._ready

    def ask(self, request: Request, limit: float, memory: int = 0) -> Iterator[Event]:
        """Send a request and yield its events until it is done, within `limit` seconds.

        The search for a cause has as long again.

        `memory` is what it may take, in MiB; 0 for what this machine has.
        Raises `WorkerError`; the worker is gone then.
        """
        self.ready()
        if self._channel is None:
            raise WorkerDiedError("was gone already")
        self._since = os.fstat(self._log.fileno()).st_size
        since = self._clock()
        deadline = since + limit
        self._memory, self._looked, self._called = memory, since, (0, 0.0)
        try:
            self._number = 1 + secrets.randbits(NUMBER_BITS)
            self._channel.send(to_line(self._number, request))
        except OSError:
            raise self._died() from None
        while True:
            event = self._next(deadline)
            match event:
                case Done(left=left):
                    if not self.alive:
                        raise self._over(WorkerLostError, LOST)
                    self.touched |= bool(left)
                    return
                case Called(times=times):
                    self._called = times, self._clock() - since
                case DeviceLost() | Disturbed() | Broken():
                    raise self._ended_by(event)
                case DiagnosisStarted():
                    deadline = self._clock() + limit  # what it may do is counted in calls
                    yield event
                case _:
                    yield event

    def printed(self, until: int | None = None) -> str:
        """What user code wrote to stdout and stderr since the last request, folded and shortened.

        `until` is how long the file was at the moment that matters.
        """
        return "" if self._log.closed else fold(read_tail(self._log.fileno(), self._since, until))

    def kill(self) -> None:
        """End the process and everything it started, while another thread waits for its events."""
        if self._channel is not None:
            kill_all(self._process)

    def close(self) -> None:
        """End the process and everything it started; safe to call twice."""
        if self._channel is not None:
            kill_all(self._process)
            self._selector.close()
            self._channel.close()
            self._channel = None
        self._log.close()
        self._faults.close()

    def _ended_by(self, event: DeviceLost | Disturbed | Broken) -> WorkerError:
        match event:
            case DeviceLost():
                return with_raised(self._over(WorkerDeviceLostError, LOST_DEVICE), event.error)
            case Disturbed():
                return with_raised(self._over(WorkerDisturbedError, DISTURBED + event.how), event.raised)
            case Broken():
                return self._over(WorkerBrokenError, event.traceback)

    def _begin(self, started: tuple[Process, Channel]) -> None:
        self._process, self._channel = started
        self._selector.register(self._channel.events, selectors.EVENT_READ)

    def _require_process(self) -> None:
        """Start it afresh where the template could not fork it: it will say itself what is wrong."""
        channel = self._channel
        if not self._forked or channel is None or not self._selector.select(START_LIMIT):
            return
        self._forked = False
        if not self._process.pid:
            self._process.wait()  # the ends of the pipes that a template had close one after the other
            self._selector.unregister(channel.events)
            channel.close()
            self._begin(start(self._log.fileno(), self._faults.fileno()))

    def _next(self, deadline: float) -> Any:  # noqa: ANN401 - an event
        if self._channel is None:
            raise WorkerDiedError("was gone already")
        while b"\n" not in self._buffer:
            remaining = deadline - self._clock()
            self._require_memory()
            wait = min(remaining, LOOK_SECONDS)
            if remaining > 0 and not self._selector.select(wait) and wait < remaining:
                continue
            if self._clock() >= deadline:
                kill_all(self._process, DUMP_LIMIT)
                error = self._over(WorkerTimedOutError, "was still running at the limit of its time")
                error.calls, error.seconds = self._called
                raise error
            chunk = os.read(self._channel.events, 1 << 16)
            if not chunk:
                raise self._died()
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            number, event = from_line(line.decode("utf-8"))
        except (ValueError, TypeError, KeyError):
            raise self._over(WorkerLostError, LOST) from None
        if number != self._number:
            raise self._over(WorkerLostError, LOST)
        return event

    def _require_memory(self) -> None:
        """Look at the memory of its processes now and then; kill them where it is too much."""
        if self._clock() - self._looked < LOOK_SECONDS:
            return
        self._looked = self._clock()
        if how := excess(self._process.pid, self._memory):
            kill_all(self._process, DUMP_LIMIT)
            raise self._over(WorkerTooBigError, how)

    def _died(self) -> WorkerError:
        """What to raise after the channel was closed from the other side."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return self._over(WorkerLostError, LOST)
        if code == CHANNEL_LOST:
            return self._over(WorkerLostError, LOST)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return self._over(WorkerDiedError, how)

    def _over(self, kind: type[E], how: str) -> E:
        """An error that tells what is left of the process, which is killed now."""
        kill_all(self._process)
        trace = os.pread(self._faults.fileno(), 1 << 16, 0).decode("utf-8", "replace")
        error = kind(how, self.printed(), trace)
        self.close()
        return error
