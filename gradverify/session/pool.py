"""The worker process seen from the front: started, asked, timed, killed.

The front alone knows clocks. A worker that dies or hangs costs one target its verdict, never the run.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from gradverify.events import Broken, Done, Event, Ready, Request, decode, encode

START_LIMIT = 300.0
"""Seconds for a worker to import torch: cold disks are slow, a hang must still end."""

CAPTURED_CHARACTERS = 2000
"""Characters kept of what user code printed."""

Clock = Callable[[], float]


class WorkerDiedError(Exception):
    """The process ended while it owed an answer."""

    def __init__(self, how: str) -> None:
        """`how` is a phrase: `was killed by SIGSEGV`, `exited with code 3`."""
        super().__init__(how)
        self.how = how


class WorkerTimedOutError(Exception):
    """No answer within the limit; the process is dead now."""


class WorkerBrokenError(Exception):
    """gradverify itself failed inside the worker."""


class Worker:
    """One worker process; a context manager that leaves nothing running."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        """Start the process; it imports torch before it is `ready`."""
        self._clock = clock
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        request_read, request_write = os.pipe()
        event_read, event_write = os.pipe()
        self._process = subprocess.Popen(
            _command(request_read, event_write),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(request_read, event_write),
            start_new_session=True,  # Ctrl-C is the front's alone; killing the group takes children along
        )
        os.close(request_read)
        os.close(event_write)
        self._requests = os.fdopen(request_write, "w", encoding="utf-8")
        self._events = event_read
        self._selector = selectors.DefaultSelector()
        self._selector.register(event_read, selectors.EVENT_READ)
        self._buffer = b""
        self._ready: Ready | None = None

    def __enter__(self) -> Self:
        """Enter."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process and everything it started."""
        self.close()

    def ready(self) -> Ready:
        """Wait until torch is imported.

        Raises `WorkerDiedError` or `WorkerTimedOutError`.
        """
        if self._ready is None:
            event = self._next(self._clock() + START_LIMIT)
            if not isinstance(event, Ready):
                raise WorkerDiedError(f"answered with {type(event).__name__} instead of getting ready")
            self._ready = event
        return self._ready

    def ask(self, request: Request, limit: float) -> Iterator[Event]:
        """Send a request and yield its events until it is done, within `limit` seconds.

        Raises `WorkerDiedError`, `WorkerTimedOutError`, `WorkerBrokenError`; after the first two the worker
        is gone.
        """
        self.ready()
        deadline = self._clock() + limit
        try:
            self._requests.write(encode(request) + "\n")
            self._requests.flush()
        except OSError:
            raise WorkerDiedError(self._how_it_ended()) from None
        while True:
            event = self._next(deadline)
            match event:
                case Done():
                    return
                case Broken():
                    raise WorkerBrokenError(event.traceback)
                case _:
                    yield event

    def printed(self, since: int = 0) -> str:
        """What user code wrote to stdout and stderr since an offset, repeated lines folded, shortened."""
        self._log.seek(since)
        text = self._log.read().decode("utf-8", "replace")
        return fold(text)[-CAPTURED_CHARACTERS:]

    def printed_so_far(self) -> int:
        """The offset to pass to `printed` later."""
        return os.fstat(self._log.fileno()).st_size

    def close(self) -> None:
        """End the process group; safe to call twice."""
        with contextlib.suppress(OSError, ValueError):
            self._requests.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        with contextlib.suppress(OSError):
            os.close(self._events)
        self._events = -1
        self._log.close()

    def _next(self, deadline: float) -> Any:  # noqa: ANN401 - an event
        while b"\n" not in self._buffer:
            remaining = deadline - self._clock()
            if remaining <= 0 or not self._selector.select(remaining):
                self._kill()
                raise WorkerTimedOutError
            chunk = os.read(self._events, 1 << 16)
            if not chunk:
                raise WorkerDiedError(self._how_it_ended())
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return decode(line.decode("utf-8"))

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._kill()
            return "closed its channel"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"


def fold(text: str) -> str:
    """Fold runs of equal lines: a print in forward comes once for each of hundreds of calls."""
    folded: list[str] = []
    count = 0
    lines = text.splitlines()
    for number, line in enumerate(lines):
        count += 1
        if number + 1 == len(lines) or lines[number + 1] != line:
            folded.append(line if count == 1 else f"{line}  (x{count})")
            count = 0
    return "\n".join(folded)


def _command(requests: int, events: int) -> list[str]:
    package_parent = str(Path(__file__).resolve().parents[2])
    bootstrap = (
        f"import sys; sys.path.append({package_parent!r}); "
        f"from gradverify.verifier.worker import main; main({requests}, {events})"
    )
    # -P: the current folder is not on the path, so a user's `torch.py` or `types.py` shadows nothing here.
    return [sys.executable, "-P", "-u", "-X", "faulthandler", "-c", bootstrap]
