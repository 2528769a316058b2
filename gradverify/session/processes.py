"""A worker's process: starting or forking it, the pipes to it, and ending it with all that it started."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol


@dataclass
class Channel:
    """The front's side of the pipes to a worker."""

    requests: IO[str]
    events: int
    lifeline: int
    """Nothing is ever written here: when this end closes, however this process ended, the kernel kills
    the worker and its group."""

    def send(self, line: str) -> None:
        """Write one request.

        Raises `OSError` where the other side is gone.
        """
        self.requests.write(line + "\n")
        self.requests.flush()

    def close(self) -> None:
        """Close every descriptor."""
        with contextlib.suppress(OSError):
            self.requests.close()
        for descriptor in (self.events, self.lifeline):
            with contextlib.suppress(OSError):
                os.close(descriptor)


class Pipes:
    """The pipes between the front and one worker, both ends of each."""

    def __init__(self) -> None:
        """Open them."""
        request_read, self._request_write = os.pipe()
        self._event_read, event_write = os.pipe()
        lifeline_read, self._lifeline_write = os.pipe()
        self.theirs = (request_read, event_write, lifeline_read)
        """The worker's ends: of requests, events and the lifeline."""

    def close_theirs(self) -> None:
        """Close the worker's ends here: it has them."""
        for descriptor in self.theirs:
            os.close(descriptor)

    def channel(self) -> Channel:
        """The front's ends."""
        requests = os.fdopen(self._request_write, "w", encoding="utf-8")
        return Channel(requests, self._event_read, self._lifeline_write)


def start(log: int, faults: int) -> tuple[subprocess.Popen[bytes], Channel]:
    """Start a worker afresh: its stdout and stderr go to `log`, and its last words to `faults`."""
    pipes = Pipes()
    requests, events, lifeline = pipes.theirs
    process = subprocess.Popen(  # noqa: S603 - our own interpreter
        _command(requests, events, faults, lifeline),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(*pipes.theirs, faults),
        env=environment(),
        start_new_session=True,  # Ctrl-C is the front's alone; killing the group takes children along
    )
    pipes.close_theirs()
    return process, pipes.channel()


def environment() -> dict[str, str]:
    """A worker's: what user code prints is captured as UTF-8, whatever the front's terminal shows."""
    return {**os.environ, "PYTHONIOENCODING": "utf-8:backslashreplace"}


def bootstrap(lifeline: int, run: str) -> list[str]:
    """The command of a process that runs some code of the verifier's, and ends with this one.

    `lifeline` is its end of a pipe: torch is imported with that in place.
    """
    package_parent = str(Path(__file__).resolve().parents[2])
    # Nothing that an import makes is garbage, and looking for it takes a tenth of the time.
    begin = f"import gc, sys; gc.disable(); sys.path.append({package_parent!r}); "
    begin += f"from gradverify.verifier.process.lifeline import end_with; end_with({lifeline}); "
    # -P: the current folder is not on the path, so a user's `torch.py` or `types.py` shadows nothing here.
    return [sys.executable, "-P", "-u", "-X", "faulthandler", "-c", begin + run]


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def kill_all(process: Process, dump_limit: float = 0.0) -> None:
    """Kill a worker, its process group, and children that left the group.

    One that is not there yet ends at birth, when its lifeline is closed.

    Within `dump_limit` seconds faulthandler may write where the process is: its handler needs no
    interpreter that listens.
    """
    pid = process.pid
    if not pid:
        return
    children = _descendants(pid)
    if dump_limit:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(dump_limit)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)
    process.wait()
    _remove_what_it_cannot(pid)


def _remove_what_it_cannot(pid: int) -> None:
    """Remove the folders in which a worker that was killed has met its ranks."""
    from gradverify.events import FOLDERS_OF_RANKS  # noqa: PLC0415 - once a worker ends

    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDERS_OF_RANKS.format(worker=pid)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _descendants(pid: int) -> list[int]:
    """Children of a process, and theirs."""
    import psutil  # noqa: PLC0415 - once a worker ends

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:  # it has ended meanwhile
        return []


def _command(requests: int, events: int, faults: int, lifeline: int) -> list[str]:
    given = f"{requests}, {events}, {faults}, {lifeline}"
    return bootstrap(lifeline, f"from gradverify.verifier.process.worker import main; main({given})")


class Process(Protocol):
    """What the front needs of a worker's process, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """Its id, and its group's; 0 where there is none yet."""

    def poll(self) -> int | None:
        """What it ended with; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return what with. Raises `subprocess.TimeoutExpired`."""


class ForkedProcess:
    """A process that is the template's child, which tells of it on a pipe. Threads may share it."""

    def __init__(self, status: int) -> None:
        """`status` is the end of the pipe that is read here, see `gradverify.verifier.process.template`."""
        self._status = status
        self._said = b""
        self._over = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """Its id, and its group's; 0 where there is none yet, or the template could not fork."""
        self._read(0.0)
        return self._reported("pid") or 0

    def poll(self) -> int | None:
        """What it ended with; None while it runs."""
        self._read(0.0)
        return self._code()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return what with. Raises `subprocess.TimeoutExpired`."""
        while (code := self._code()) is None:
            if not self._read(timeout):
                raise subprocess.TimeoutExpired("a forked worker", timeout or 0.0)
        return code

    def _code(self) -> int | None:
        code = self._reported("code")
        # A template that says nothing more was killed: so are its workers, as their front goes on without it.
        return -signal.SIGKILL if code is None and self._over else code

    def _reported(self, name: str) -> int | None:
        for line in self._said.decode("ascii").splitlines():
            word, _, value = line.partition(" ")
            if word == name:
                return int(value)
        return None

    def _read(self, timeout: float | None) -> bool:
        """Read what the template says; False where it said nothing within so many seconds."""
        with self._lock:
            if self._over:
                return True
            poll = select.poll()
            poll.register(self._status, select.POLLIN)
            if not poll.poll(None if timeout is None else 1000 * timeout):
                return False
            read = os.read(self._status, 64)
            self._said += read
            if not read:
                self._over = True
                os.close(self._status)
            return True
