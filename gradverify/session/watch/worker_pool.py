"""Workers for one verification each: forked when they are asked for, or started ahead where nothing forks.

The next verification need not wait for torch, and still gets a fresh process.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from gradverify.model import Settings
from gradverify.session.pool import Meanwhile, Worker
from gradverify.session.processes import Start
from gradverify.session.template import Template, can_fork, template_for
from gradverify.session.worker_errors import WorkerStartError

COUNT = 2
"""Workers that wait: one for the next save, one for the save that follows while another gets ready. Each
holds a torch of its own, some 200 MB."""


class WorkerPool:
    """Workers that wait for work; none is used twice, since what a module did to its process stays there."""

    def __init__(self, meanwhile: Meanwhile, clock: Callable[[], float] = time.monotonic) -> None:
        """`meanwhile` is called now and then while one of them answers."""
        self._meanwhile, self._clock = meanwhile, clock
        self._waiting: list[Worker] = []
        self._settings: Settings | None = None
        self._template: Template | None = None
        self._is_preloaded = False

    def suit(self, settings: Settings) -> None:
        """Have workers as these settings ask for them."""
        self._settings = settings
        if not can_fork(settings):
            self._end_template()

    def take(self, clock: Callable[[], float]) -> Worker:
        """The one that waits longest, else another, once it is ready.

        Raises what `meanwhile` raises; the worker waits on then, since it has imported nothing yet.
        """
        if self._template is None and self._settings is not None:
            self._template, self._is_preloaded = template_for(self._settings), False
        worker = self._running() or Worker(clock, Start.AHEAD, self._meanwhile, self._template)
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
        if self._template is not None and not self._is_preloaded:
            self._template.preload()
            self._is_preloaded = True
        if self._settings is None or can_fork(self._settings):
            return
        with contextlib.suppress(OSError):
            while len(self._waiting) < COUNT:
                self._waiting.append(Worker(self._clock, Start.AHEAD, self._meanwhile))

    def close(self) -> None:
        """End all that wait."""
        while self._waiting:
            self._waiting.pop().close()
        self._end_template()

    def _end_template(self) -> None:
        if self._template is not None:
            self._template.close()
            self._template = None
