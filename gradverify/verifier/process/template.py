"""The template process: imports torch and the verifier once, and forks every worker from that.

It runs no user code and no backward, never asks CUDA anything, and has one thread: what is forked is then as
good as new (https://docs.pytorch.org/docs/stable/notes/multiprocessing.html, "CUDA in multiprocessing").
Linux alone: a fork elsewhere is not safe beside system libraries that start threads.

Each request comes with six descriptors: where the worker reads requests, writes events, writes its last
words, and listens for the front's end; its log; and a pipe for two lines: `pid N`, and at last `code N`, what
`subprocess.Popen.returncode` would be. Where that is closed without a line, nothing was forked.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gradverify.verifier.process import worker
from gradverify.verifier.process.lifeline import outlive

PR_SET_CHILD_SUBREAPER = 36
"""`prctl(2)`: processes whose parent has ended become this one's children."""

DESCRIPTORS = 6
"""requests, events, faults, lifeline, log, status."""

LEFT_TO_WORKERS = ("torch._dynamo", "torch._inductor", "triton")
"""Beginnings of modules that read, when they are loaded, variables which a user's module may set before."""

_THREADS = Path("/proc/self/task")


@dataclass(frozen=True)
class _Forked:
    """A worker that runs."""

    pid: int
    handle: int
    """A descriptor that is readable once it has ended."""
    status: int


def main(control: int, lifeline: int) -> NoReturn:
    """Fork a worker for every request on a socket; ends with everything it forked once that is closed.

    `lifeline` has ended this process with the front as long as nobody listened to the socket.
    """
    connection = socket.socket(fileno=control)
    outlive(lifeline)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    gc.freeze()  # what is here stays in pages that all share
    running: dict[int, _Forked] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is connection:
                    message, passed = _received(connection)
                    if message is None:
                        _end(running.values())
                    if message.get("preload"):
                        preload()
                    elif (forked := _forked(message, passed, connection, selector, running)) is not None:
                        running[forked.handle] = forked
                        selector.register(forked.handle, selectors.EVENT_READ)
                else:
                    selector.unregister(key.fd)
                    _reap(running.pop(key.fd), running)


def threads() -> int:
    """How many threads this process has."""
    return sum(1 for _ in _THREADS.iterdir())


def preload() -> None:
    """Import all that verifying loads, so that no worker has to.

    A fork finds out what that is: torch has no list of it, and a backward would start threads here.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            from gradverify.verifier.process.rehearsal import rehearse  # noqa: PLC0415 - in the fork alone

            before = set(sys.modules)
            rehearse()
            new = [name for name in sys.modules if name not in before]
            with os.fdopen(write, "w", encoding="utf-8") as reported:
                reported.write("\n".join(new))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as reported:
        names = reported.read().split("\n")
    os.waitpid(pid, 0)
    for name in filter(None, names):
        if name.startswith(LEFT_TO_WORKERS):
            continue
        with contextlib.suppress(Exception):  # what cannot be imported by itself is left to the workers
            importlib.import_module(name)
    gc.freeze()


def _received(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message with its descriptors; None where the front is gone."""
    head, passed, _, _ = socket.recv_fds(connection, 8, DESCRIPTORS)
    while head and len(head) < 8 and (more := connection.recv(8 - len(head))):
        head += more
    if len(head) < 8:
        return None, passed
    left, parts = int.from_bytes(head, "big"), []
    while left and (part := connection.recv(min(left, 1 << 16))):
        parts.append(part)
        left -= len(part)
    message: dict[str, Any] | None = json.loads(b"".join(parts)) if not left else None
    return message, passed


def _forked(
    message: dict[str, Any],
    passed: list[int],
    connection: socket.socket,
    selector: selectors.BaseSelector,
    running: dict[int, _Forked],
) -> _Forked | None:
    """Fork a worker; None where that is refused, which its front reads from a status that is just closed."""
    *of_worker, status = passed
    pid = -1
    if threads() == 1:  # of more, a fork would copy locks that nobody lets go
        with contextlib.suppress(OSError):  # the system allows no further process
            pid = os.fork()
    if pid == 0:
        _tell(status, f"pid {os.getpid()}\n")  # before the front hears anything else of it
        _become_worker(message, of_worker, [connection.fileno(), status, *_descriptors(selector, running)])
    if pid < 0:
        os.close(status)  # first, so that the front knows why it hears no more of the others
    for descriptor in of_worker:
        os.close(descriptor)
    if pid < 0:
        return None
    return _Forked(pid, os.pidfd_open(pid), status)


def _descriptors(selector: selectors.BaseSelector, running: dict[int, _Forked]) -> list[int]:
    own = [selector.fileno()] if isinstance(selector, selectors.EpollSelector) else []
    return [*own, *(fd for forked in running.values() for fd in (forked.handle, forked.status))]


def _become_worker(message: dict[str, Any], passed: list[int], foreign: list[int]) -> NoReturn:
    """Serve the front as a process that was started for it; nothing of the template's is left open."""
    status = 1
    try:
        os.setsid()
        for descriptor in foreign:
            os.close(descriptor)
        requests, events, faults, lifeline, log = passed
        for standard in (1, 2):
            os.dup2(log, standard)
        os.close(log)
        os.chdir(message["folder"])
        if dict(os.environ) != message["environment"]:
            os.environ.clear()
            os.environ.update(message["environment"])
        worker.main(requests, events, faults, lifeline)
    except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as a template
        with contextlib.suppress(Exception):
            traceback.print_exc()
            sys.stderr.flush()
    finally:
        os._exit(status)


def _reap(ended: _Forked, running: dict[int, _Forked]) -> None:
    """Say what a worker ended with, and end what it left behind."""
    _, code = os.waitpid(ended.pid, 0)
    os.close(ended.handle)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(ended.pid, signal.SIGKILL)
    alive = {forked.pid for forked in running.values()}
    for pid, session in _children():
        # Whose child one with a session of its own was nobody can tell: it ends with the last worker.
        if pid not in alive and (session == ended.pid or not alive):
            _kill(pid)
    _tell(ended.status, f"code {os.waitstatus_to_exitcode(code)}\n")
    os.close(ended.status)


def _end(running: Iterable[_Forked]) -> NoReturn:
    """End every worker, and whatever they have left."""
    for forked in running:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(forked.pid, signal.SIGKILL)
    while children := _children():
        for pid, _ in children:
            _kill(pid)
    os._exit(0)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _children() -> list[tuple[int, int]]:
    """The children of this process, each with its session."""
    import psutil  # noqa: PLC0415 - once a worker has ended

    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(OSError):
            found.append((child.pid, os.getsid(child.pid)))
    return found


def _tell(status: int, line: str) -> None:
    with contextlib.suppress(OSError):  # the front is gone, and this process is soon
        os.write(status, line.encode("ascii"))
