"""`-j N`: modules and targets spread over threads of the front, each with worker processes of its own.

What comes out is in the order of the plan, so that nobody can tell from a report how many worked on it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gradverify.session.modules import Module
from gradverify.session.planning import Planned
from gradverify.session.request import Progress, Request, TargetProgress
from gradverify.session.verifying import Judged, timed_verification
from gradverify.session.worker_ended import WorkerError

T = TypeVar("T")

STOP_SECONDS = 0.05
"""Between two rounds of ending the workers of threads that are to stop: one may just be starting another."""


def for_each_module(modules: Sequence[Module], do: Callable[[Module], T], jobs: int) -> list[T]:
    """Do something to every module, so many at once; the results in their order.

    Raises what `do` raises. Left early, no worker of the modules is left.
    """
    if jobs == 1 or len(modules) < 2:
        return [do(module) for module in modules]
    left = deque((module, Future[T]()) for module in modules)
    results = [result for _, result in left]

    def work(over: threading.Event) -> None:
        with suppress(IndexError):  # another thread took the last one
            while not over.is_set():
                module, result = left.popleft()
                _settle(result, partial(do, module))

    with _threads(work, min(jobs, len(modules)), lambda: modules) as threads:
        done = [result.result() for result in results]
        for thread in threads:  # those that are still alive below lose their workers
            thread.join()
    return done


def verify_in_threads(planned: Sequence[Planned], request: Request, progress: Progress) -> Iterator[Judged]:
    """Verify targets, `request.jobs` at once, and give their verdicts in order.

    Raises what gradverify's own mistakes raise. However it is left, no worker stays.
    """
    schedule = _Schedule(planned)
    results = [Future[Judged]() for _ in planned]
    started = iter(range(1, len(planned) + 1))

    def verify(one: Planned) -> Judged:
        shown = TargetProgress(progress, one.target, next(started), len(planned))
        return timed_verification(one, request, shown)

    def work(over: threading.Event) -> None:
        while not over.is_set() and (found := schedule.hire()) is not None:
            module, own = found
            try:
                if own is not module and not _imported(own, request):
                    continue  # it can be imported once only: whoever did so verifies the rest
                while not over.is_set() and (taken := schedule.take(module)) is not None:
                    index, one = taken
                    _settle(results[index], partial(verify, replace(one, module=own)))
            finally:
                own.close()

    with _threads(work, min(request.jobs, len(planned)), lambda: schedule.modules):
        for result in results:
            yield result.result()


def _settle(result: Future[T], do: Callable[[], T]) -> None:
    """Keep what a function gives, or raises: it is raised again by whoever asks for the result."""
    try:
        result.set_result(do())
    except Exception as error:  # noqa: BLE001 - any
        result.set_exception(error)


def _imported(module: Module, request: Request) -> bool:
    try:
        module.running(request)
    except (WorkerError, OSError):  # OSError: the system allows no further process
        return False
    return True


class _Schedule:
    """Who verifies what: a thread stays with its module, and goes to one without a thread next.

    Only then it helps with a module that has one, in another worker.
    """

    def __init__(self, planned: Sequence[Planned]) -> None:
        self._lock = threading.Lock()
        self._left: dict[int, deque[tuple[int, Planned]]] = {}
        self._originals: dict[int, Module] = {}
        self._hired: dict[int, int] = {}
        self.modules: list[Module] = []
        """All that may have a worker."""
        for index, one in enumerate(planned):
            key = id(one.module)
            if key not in self._left:
                self._left[key], self._originals[key], self._hired[key] = deque(), one.module, 0
            self._left[key].append((index, one))

    def hire(self) -> tuple[Module, Module] | None:
        """A module with targets left, and what to import it as; None where there is none."""
        with self._lock:
            waiting = [key for key, left in self._left.items() if left]
            if not waiting:
                return None
            key = min(waiting, key=lambda k: (self._hired[k], -len(self._left[k])))
            module = self._originals[key]
            own = replace(module, worker=None) if self._hired[key] else module
            self._hired[key] += 1
            self.modules.append(own)
            return module, own

    def take(self, module: Module) -> tuple[int, Planned] | None:
        """The next target of a module, with its place in the plan."""
        with self._lock:
            left = self._left[id(module)]
            return left.popleft() if left else None


@contextmanager
def _threads(
    work: Callable[[threading.Event], None], count: int, modules: Callable[[], Sequence[Module]]
) -> Iterator[list[threading.Thread]]:
    """Threads at work. Left while some are, their workers are killed, from which the threads end."""
    over = threading.Event()
    threads = [threading.Thread(target=work, args=(over,), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        over.set()
        while any(thread.is_alive() for thread in threads):
            for module in tuple(modules()):
                module.kill()
            for thread in threads:
                thread.join(STOP_SECONDS)
