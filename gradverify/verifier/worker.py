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
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

import torch

from gradverify.deduced import Deduced
from gradverify.events import (
    CHANNEL_LOST,
    UNASKED,
    Bind,
    Bound,
    Broken,
    Collect,
    Collected,
    DeviceLost,
    Done,
    Dump,
    Event,
    Failed,
    Faults,
    Found,
    Infer,
    Inferred,
    ListFaults,
    Mutate,
    NotBound,
    NotInferred,
    Ready,
    Request,
    Retry,
    Suggest,
    Verify,
    from_line,
    to_line,
)
from gradverify.verifier import guard
from gradverify.verifier.building import Live
from gradverify.verifier.checks.kept import Kept
from gradverify.verifier.collect.discover import describe_target, discover, target_behind
from gradverify.verifier.collect.importing import import_file, loaded_files, resolve
from gradverify.verifier.collect.operators import overloads_of
from gradverify.verifier.guard import GlobalState, Raised
from gradverify.verifier.inputs.arguments import paths_of
from gradverify.verifier.interpreting import interpret_kernels, watch_kernels
from gradverify.verifier.lifeline import end_with
from gradverify.verifier.run import verify

HIGH_DESCRIPTOR = 200
"""The channel moves up here, out of the way of code that closes or reuses low descriptors."""

_exit = os._exit
"""The real one: `_leave_traces` replaces it."""

STREAMS = (("stdout", 1), ("stderr", 2))


def main(
    requests: int, events: int, faults: int, lifeline: int, prepare: Callable[[], None] = lambda: None
) -> None:
    """Serve until the front closes its end; then leave at once, whatever user threads still run.

    `prepare` is called before the first request is answered.
    """
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
    prepare()
    _send(outgoing, UNASKED, ready)
    while True:
        number, request = from_line(inbox.get())
        _renew_streams(log)
        try:
            for event in server.answer(request):
                _send(outgoing, number, event, log)
        except Exception as error:  # noqa: BLE001 - user code is guarded, so this one is ours
            _send(outgoing, number, ended_by(error))
        else:
            _send(outgoing, number, Done())


def ended_by(error: Exception) -> DeviceLost | Broken:
    """What an exception that came through the guard says: a lost device shows wherever it is asked next."""
    if isinstance(error, guard.DeviceLostError):
        return DeviceLost(error.error)
    if guard.is_device_lost(error):
        return DeviceLost(guard.describe(error))
    return Broken("".join(traceback.format_exception(error)))


def serve_here(lets_through: tuple[type[BaseException], ...] = ()) -> tuple[Server, Ready]:
    """Make this process ready to answer requests.

    `lets_through` are exceptions that belong to whoever debugs, not to the user code that raises them.
    """
    torch.set_num_threads(1)
    interpret_kernels()
    guard.LET_THROUGH = lambda error: isinstance(error, lets_through)
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Server(), Ready(torch.__version__, devices)


class Server:
    """Holds the imported module between requests."""

    def __init__(self) -> None:
        self._module: ModuleType | None = None
        self._shown_path = ""
        self._state = GlobalState.take()
        self._kept = Kept()

    def answer(self, request: Request) -> Iterator[Event]:
        """Answer one request with its events. What few are asked for is loaded when it is asked for."""
        watch_kernels()
        match request:
            case Collect():
                yield self._collect(request)
            case Bind():
                yield from self._bind(request)
            case Infer():
                yield self._infer(request)
            case Verify():
                self._kept = Kept(request.target)
                yield from verify(request, self._live(request, self._kept))
                self._state.restore()
            case Retry():
                from gradverify.verifier.retrying import retry  # noqa: PLC0415

                yield retry(request, self._live(request.verified, self._kept))
                self._state.restore()
            case Dump():
                yield from self._dump(request)
            case Suggest():
                from gradverify.verifier.suggesting.suggest import suggest  # noqa: PLC0415

                yield suggest(request, self._live(request))
                self._state.restore()
            case ListFaults():
                from gradverify.verifier.mutation.run import NAMES  # noqa: PLC0415

                yield Faults(NAMES)
            case Mutate():
                from gradverify.verifier.mutation.run import mutate  # noqa: PLC0415

                yield from mutate(request, self._live(request))
                self._state.restore()

    def _collect(self, request: Collect) -> Event:
        result = guard.call(import_file, Path(request.path))
        if isinstance(result, Raised):
            self._state.restore()
            return Failed(f"{result.error.type}: {result.error.message}", result.error)
        self._module, self._shown_path = result.value, request.shown_path
        # What a module sets on import it sets for everyone who imports it, so its targets are to have it;
        # two switches are ours all the same.
        self._state = replace(GlobalState.take(), grad_enabled=True, threads=1)
        self._state.restore()
        targets, passed_over = discover(result.value, request.shown_path)
        if not request.to_infer:
            return Collected(targets, passed_over)
        loaded = guard.call(loaded_files)  # whatever user code has put among the modules
        return Collected(targets, passed_over, "" if isinstance(loaded, Raised) else loaded.value)

    def _bind(self, request: Bind) -> Iterator[Event]:
        value = target_behind(self._find(request.attribute))
        if isinstance(value, str):
            yield NotBound("attribute", request.attribute, value, self._names())
        elif refusal := _not_a_target(value, init=request.init):
            yield NotBound("attribute", request.attribute, f"`{request.attribute}` is {refusal}")
        else:
            yield Bound(
                describe_target(value, request.name, request.attribute, self._shown_path, self._module)
            )
        parts = [
            *(("reference", name) for name in request.references),
            *(("hook", name) for name in request.hooks),
        ]
        for part, name in parts:
            found = self._find(name)
            if isinstance(found, str):
                yield NotBound(part, name, found, self._names())
            elif part == "reference" and not callable(found):
                yield NotBound(part, name, f"`{name}` is {type(found).__name__}, not a callable")

    def _infer(self, request: Infer) -> Event:
        from gradverify.verifier.collect.inference.deduce import deduce  # noqa: PLC0415

        value = target_behind(self._find(request.target.attribute))
        found = deduce(value, request.target, self._module)
        self._state.restore()
        return Inferred(found) if isinstance(found, Deduced) else NotInferred(found)

    def _dump(self, request: Dump) -> Iterator[Event]:
        from gradverify.verifier.dump.write import dump  # noqa: PLC0415

        assert self._module is not None  # noqa: S101 - it was collected before it was verified
        yield from dump(request, self._live(request.verified), self._module)
        self._state.restore()

    def _live(self, request: Verify | Suggest | Mutate, kept: Kept | None = None) -> Live:
        plan = request.plan
        names = {plan.reference, plan.surrogate.path if plan.surrogate is not None else ""}
        names |= {name for case in plan.cases for name in (case.hook, *paths_of(case))}
        value = target_behind(self._find(request.target.attribute))
        own = kept if kept is not None and kept.target == request.target else Kept(request.target)
        return Live(value, {name: self._find(name) for name in names if name}, own)

    def _find(self, name: str) -> Any:  # noqa: ANN401 - any live object, or the reason as text
        """The object a name stands for, or a sentence why there is none."""
        result = guard.call(resolve, name, self._module)
        if not isinstance(result, Raised):
            return result.value
        if result.error.type == "LookupError":
            return f"`{name}` cannot be found: {result.error.message}"
        return f"`{name}` cannot be imported: {result.error.type}: {result.error.message}"

    def _names(self) -> tuple[str, ...]:
        return tuple(n for n in vars(self._module or object) if not n.startswith("__"))


def _not_a_target(value: Any, *, init: bool) -> str:  # noqa: ANN401 - any live object
    """Why an object cannot be verified, as the end of a sentence; empty where it can."""
    overloads = overloads_of(value)
    if len(overloads) > 1:
        named = ", ".join(f"`{name}`" for name in overloads[:4])
        return f"an operator with several overloads: name one of {named} behind it"
    if not isinstance(value, type):
        return "" if callable(value) else f"{type(value).__name__}, not a Function or callable"
    if issubclass(value, torch.autograd.Function):
        return "an autograd.Function: it takes no `init:`" if init else ""
    if not issubclass(value, torch.nn.Module):
        return "a class that is neither an autograd.Function nor an nn.Module"
    return "" if init else "an nn.Module: say with `init:` how it is built (`init: {}` for no arguments)"


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
