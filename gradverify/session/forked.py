"""A worker's process that is another process's child: the template tells of it on a pipe."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from typing import Protocol


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
    """A process that the template forks. Threads may share it."""

    def __init__(self, status: int) -> None:
        """`status` is the end of the pipe that is read here, see `gradverify.verifier.template`."""
        self._status = status
        self._said = b""
        self._over = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """Its id, and its group's; 0 where there is none yet, or the template could not fork."""
        self._read(0.0)
        return self._told("pid") or 0

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
        code = self._told("code")
        # A template that says nothing more was killed: so are its workers, as their front goes on without it.
        return -signal.SIGKILL if code is None and self._over else code

    def _told(self, name: str) -> int | None:
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
