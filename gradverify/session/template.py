"""The template process seen from the front: workers forked from it need not wait for torch."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from gradverify.model import Settings
from gradverify.session.processes import Channel, ForkedProcess, Pipes, bootstrap, environment

END_SECONDS = 1.0
"""For the template to end what workers have left behind, before it is killed itself."""

READ_BY_LIBRARIES = ("ATEN_", "KMP_", "LD_", "MKL_", "OMP_", "PYTHON", "TORCH")
"""Beginnings of variables that Python, torch and what it is built on read once, when they are loaded."""


ONE_THREAD = {"MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Libraries that NumPy and torch load start a thread for each core, unless set otherwise; forking takes one
thread, and a worker has one anyway."""


class Template:
    """The template process; a context manager that leaves nothing running. Threads may share it."""

    def __init__(self) -> None:
        """Start it: it imports torch while this process goes on.

        Raises `OSError` where the system allows no further process.
        """
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        self._connection = ours
        self._lock = threading.Lock()
        self._environment = environment()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        with theirs:
            try:
                self._process = begun(theirs.fileno(), lifeline, self._log.fileno(), self._environment)
            finally:
                os.close(lifeline)

    def __enter__(self) -> Self:
        """Enter."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.close()

    def preload(self) -> None:
        """Have it import all that a verification may load, for the sake of many workers."""
        with contextlib.suppress(OSError):
            self._send({"preload": True}, ())

    def fork(self, log: int, faults: int) -> tuple[ForkedProcess, Channel] | None:
        """Have it fork a worker with such streams, see `processes.start`.

        None where the worker has to be started afresh: this environment is not the one that it was started
        in, or it has ended.
        """
        now = environment()
        if _read_by_libraries(now) != _read_by_libraries(self._environment):
            return None
        pipes = Pipes()
        status, writer = os.pipe()
        message = {"environment": now, "folder": str(Path.cwd())}
        try:
            requests, events, lifeline = pipes.theirs
            self._send(message, (requests, events, faults, lifeline, log, writer))
        except OSError:
            os.close(status)
            pipes.channel().close()
            return None
        finally:
            os.close(writer)
            pipes.close_theirs()
        return ForkedProcess(status), pipes.channel()

    def close(self) -> None:
        """End it, and whatever its workers have left behind."""
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        os.close(self._lifeline)
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _send(self, message: Mapping[str, object], passed: tuple[int, ...]) -> None:
        data = json.dumps(message).encode("ascii")
        with self._lock:
            socket.send_fds(self._connection, [len(data).to_bytes(8, "big")], passed)
            self._connection.sendall(data)


def begun(control: int, lifeline: int, log: int, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The template's process; descriptors are its ends of the socket and of the lifeline, and its output.

    Raises `OSError` where the system allows no further process.
    """
    run = f"from gradverify.verifier.process.template import main; main({control}, {lifeline})"
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        bootstrap(lifeline, run),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(control, lifeline),
        env={**variables, **ONE_THREAD},
        start_new_session=True,  # Ctrl-C is the front's alone
    )


def can_fork(settings: Settings) -> bool:
    """Whether workers can be forked: processes have descriptors here, and forks are safe beside libraries.

    One that uses a GPU starts afresh, as torch's notes on multiprocessing ask.
    """
    on_cpu = settings.device == "cpu" and not settings.every_device
    return on_cpu and sys.platform == "linux" and hasattr(os, "pidfd_open")


def template_for(settings: Settings) -> Template | None:
    """A template process to fork workers from; None where they have to be started afresh."""
    try:
        return Template() if can_fork(settings) else None
    except OSError:  # the system allows no further process
        return None


def _read_by_libraries(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(READ_BY_LIBRARIES)}
