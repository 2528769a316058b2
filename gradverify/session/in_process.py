"""`--in-process`: the worker's server in this process, so that breakpoints work; nothing is captured.

The one module of the front that loads the verifier, and only once it is asked for.
"""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Iterator
from typing import Any

from gradverify.events import DeviceLost, Disturbed, Event, Ready, Request
from gradverify.session.worker_ended import (
    DISTURBED,
    LOST_DEVICE,
    WorkerBrokenError,
    WorkerDeviceLostError,
    WorkerDisturbedError,
    WorkerStartError,
    with_raised,
)


class InProcess:
    """What a `gradverify.session.worker.Worker` is to the session, without a process of its own."""

    def __init__(self) -> None:
        """Nothing is imported before it must be `ready`."""
        self._server: Any = None
        self._ended_by: Any = None
        self._ready: Ready | None = None
        self.alive = True
        self.touched = False  # there is no other process to ask in

    def ready(self) -> Ready:
        """Import torch.

        Raises `WorkerStartError`.
        """
        if self._ready is None:
            try:
                from gradverify.verifier.process.server import ended_by, serve_here  # noqa: PLC0415 - loads torch
            except Exception as error:  # noqa: BLE001 - whatever a broken torch raises
                said = f"{type(error).__name__}: {error}"
                raise WorkerStartError("cannot go on", said) from None
            self._ended_by = ended_by
            self._server, self._ready = serve_here(lets_through=(KeyboardInterrupt, BdbQuit))
        return self._ready

    def ask(self, request: Request, limit: float, memory: int = 0) -> Iterator[Event]:  # noqa: ARG002
        """Answer a request here. Neither limit holds: whoever debugs takes their time.

        Raises `WorkerBrokenError`, and `KeyboardInterrupt` for Ctrl-C and for leaving the debugger.
        """
        self.ready()
        try:
            yield from self._server.answer(request)
        except (BdbQuit, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        except Exception as error:  # noqa: BLE001 - user code is guarded, so this one is ours
            ended = self._ended_by(error)
            if isinstance(ended, DeviceLost):
                raise with_raised(WorkerDeviceLostError(LOST_DEVICE), ended.error) from None
            if isinstance(ended, Disturbed):
                raise with_raised(WorkerDisturbedError(DISTURBED + ended.how), ended.raised) from None
            raise WorkerBrokenError(ended.traceback) from None

    def printed(self, until: int | None = None) -> str:  # noqa: ARG002
        """Nothing: what user code prints is on the screen already."""
        return ""

    def close(self) -> None:
        """Forget the module; what it has done to this process stays."""
        self.alive = False
