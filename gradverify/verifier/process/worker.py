"""The worker process: a small server that imports the user's module and answers one request at a time.

Forked from the template process, or started afresh by `gradverify.session.processes`, with two descriptors:
requests come in on one, events go out on the other. Descriptors 1 and 2 belong to user code and go to a file.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import os
import queue
import resource
import signal
import sys
import threading
from dataclasses import replace
from functools import partial
from typing import IO, NoReturn

from gradverify.events import CHANNEL_LOST, UNASKED, Called, Done, Event, Found, from_line, to_line
from gradverify.verifier import guard
from gradverify.verifier.process.lifeline import end_with
from gradverify.verifier.process.server import ended_by, serve_here

HIGH_DESCRIPTOR = 200
"""The channel moves up here, out of the way of code that closes or reuses low descriptors."""

_exit = os._exit
"""The real one: `_leave_traces` replaces it."""

STREAMS = (("stdout", 1), ("stderr", 2))


def main(requests: int, events: int, faults: int, lifeline: int) -> None:
    """Serve until the front closes its end; then leave at once, whatever user threads still run."""
    gc.freeze()
    gc.enable()
    incoming = os.fdopen(_move_up(requests), "r", encoding="utf-8", newline="\n")
    outgoing = os.fdopen(_move_up(events), "w", encoding="utf-8", newline="\n")
    # Where user code forks and its child goes on, the child has nobody to answer: sending ends it.
    os.register_at_fork(after_in_child=partial(os.close, outgoing.fileno()))
    log = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
    end_with(_move_up(lifeline))
    _leave_traces(_move_up(faults))
    inbox: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(incoming, inbox), daemon=True).start()
    server, ready = serve_here()
    # Bytecode is known by the size and the whole seconds of its source: of two saves within a second, that of
    # the first would pass for the second's. So none is left behind.
    sys.dont_write_bytecode = True
    _send(outgoing, UNASKED, ready)
    while True:
        number, request = from_line(inbox.get())
        _renew_streams(log)
        guard.AFTER_A_CALL = _Counted(outgoing, number, log)
        try:
            for event in server.answer(request):
                _send(outgoing, number, event, log)
        except Exception as error:  # noqa: BLE001 - user code is guarded, so this one is ours
            _send(outgoing, number, ended_by(error))
        else:
            _send(outgoing, number, Done(server.left))


class _Counted:
    """After each call of user code: tell how many there were, now and then, and keep its streams open."""

    def __init__(self, outgoing: IO[str], number: int, log: int) -> None:
        self._outgoing, self._number, self._log = outgoing, number, log
        self._calls = 0

    def __call__(self) -> None:
        self._calls += 1
        if self._calls & (self._calls - 1) == 0:  # so that it costs next to nothing
            _send(self._outgoing, self._number, Called(self._calls))
        for _, descriptor in STREAMS:
            try:
                os.fstat(descriptor)
            except OSError:
                _renew_streams(self._log)
                return


def _move_up(descriptor: int) -> int:
    high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
    os.close(descriptor)
    return high


def _leave_traces(faults: int) -> None:
    """However user code ends this process, say where: of that, `os._exit` is the one that says nothing."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    faulthandler.enable(faults)
    own = os.getpid()

    def leave_with_trace(status: int) -> NoReturn:
        if os.getpid() == own:
            faulthandler.dump_traceback(faults)
        _exit(status)

    os._exit = leave_with_trace


def _renew_streams(log: int) -> None:
    """Give user code stdout and stderr again, whatever the last request's code did to them."""
    for name, descriptor in STREAMS:
        os.dup2(log, descriptor)
        stream = getattr(sys, f"__{name}__")
        if stream is None or stream.closed:
            stream = open(  # noqa: SIM115 - a descriptor, and it stays open
                descriptor, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
            )
            setattr(sys, f"__{name}__", stream)
        setattr(sys, name, stream)


def _listen(incoming: IO[str], inbox: queue.SimpleQueue[str]) -> None:
    try:
        for line in incoming:
            inbox.put(line)
    except (OSError, ValueError):
        _exit(CHANNEL_LOST)
    # The front is gone: nothing may be left running, not even an endless loop in user code.
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _send(outgoing: IO[str], number: int, event: Event, log: int | None = None) -> None:
    for name, _ in STREAMS:
        with contextlib.suppress(Exception):  # user code may have closed or replaced them
            getattr(sys, name).flush()
    if isinstance(event, Found) and log is not None:
        event = replace(event, printed_to=os.fstat(log).st_size)
    try:
        outgoing.write(to_line(number, event) + "\n")
        outgoing.flush()
    except OSError:
        _exit(CHANNEL_LOST)
