"""Workers started ahead: the next verification need not wait for torch, and still gets a fresh process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from gradverify.session.pool import Meanwhile, Worker, WorkerStartError
from gradverify.session.processes import Start

COUNT = 2
"""Workers that wait: one for the next save, one for the save that follows while another gets ready. Each
holds a torch of its own, some 200 MB."""


class SpareWorkers:
    """Workers that wait for work; none is used twice, since what a module did to its process stays there."""

    def __init__(self, meanwhile: Meanwhile, clock: Callable[[], float] = time.monotonic) -> None:
        """`meanwhile` is called now and then while one of them answers."""
        self._meanwhile, self._clock = meanwhile, clock
        self._waiting: list[Worker] = []

    def take(self, clock: Callable[[], float]) -> Worker:
        """The one that waits longest, else another, once it is ready.

        Raises what `meanwhile` raises; the worker waits on then, since it has imported nothing yet.
        """
        worker = self._running() or Worker(clock, Start.AHEAD, self._meanwhile)
        try:
            worker.ready()
        except WorkerStartError:
            return Worker(clock, Start.AHEAD, self._meanwhile)  # will say itself what is wrong
        try:
            self._meanwhile()
        except BaseException:
            self._waiting.insert(0, worker)
            raise
        return worker

    def _running(self) -> Worker | None:
        while True:
            try:
                worker = self._waiting.pop(0)
            except IndexError:
                return None
            if worker.running:
                return worker
            worker.close()

    def refill(self) -> None:
        """Start what is missing; where the system allows no further process, one is started on demand."""
        with contextlib.suppress(OSError):
            while len(self._waiting) < COUNT:
                self._waiting.append(Worker(self._clock, Start.AHEAD, self._meanwhile))

    def close(self) -> None:
        """End all that wait."""
        while self._waiting:
            self._waiting.pop().close()
