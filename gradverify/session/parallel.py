"""`-j N`: modules and targets spread over threads of the front, each with worker processes of its own.

What comes out is in the order of the plan, so that nobody can tell from a report how many worked on it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

from gradverify.session.modules import Module
from gradverify.session.planning import Planned
from gradverify.session.pool import WorkerError
from gradverify.session.request import Progress, Request, TargetProgress
from gradverify.session.verifying import Judged, timed_verification

T = TypeVar("T")

STOP_SECONDS = 0.05
"""Between two rounds of ending the workers of threads that are to stop: one may just be starting another."""


def for_each_module(modules: Sequence[Module], do: Callable[[Module], T], jobs: int) -> list[T]:
    """Do something to every module, so many at once; the results in their order.

    Raises what `do` raises. Left early, no worker of the modules is left.
    """
    if jobs == 1 or len(modules) < 2:
        return [do(module) for module in modules]
    left = deque(enumerate(modules))
    done: _Results[T] = _Results()

    def work(over: threading.Event) -> None:
        while not over.is_set():
            try:
                index, module = left.popleft()
            except IndexError:
                return
            done.put_what_comes_of(index, partial(do, module))

    with _threads(work, min(jobs, len(modules)), lambda: modules) as threads:
        results = list(done.in_order(len(modules)))
        for thread in threads:
            thread.join()
    return results


def verify_in_threads(planned: Sequence[Planned], request: Request, progress: Progress) -> Iterator[Judged]:
    """Verify targets, `request.jobs` at once, and give their verdicts in order.

    Raises what gradverify's own mistakes raise. However it is left, no worker stays.
    """
    schedule = _Schedule(planned)
    done: _Results[Judged] = _Results()
    started = iter(range(1, len(planned) + 1))

    def verify(one: Planned) -> Judged:
        told = TargetProgress(progress, one.target, next(started), len(planned))
        return timed_verification(one, request, told)

    def work(over: threading.Event) -> None:
        while not over.is_set() and (found := schedule.hire()) is not None:
            module, own = found
            try:
                if own is not module and not _imported(own, request):
                    continue  # it can be imported once only: whoever did so verifies the rest
                while not over.is_set() and (taken := schedule.take(module)) is not None:
                    index, one = taken
                    done.put_what_comes_of(index, partial(verify, replace(one, module=own)))
            finally:
                own.close()

    with _threads(work, min(request.jobs, len(planned)), lambda: schedule.modules):
        yield from done.in_order(len(planned))


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


class _Results(Generic[T]):
    """What threads have done, given out in order."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[int, T] | Exception] = SimpleQueue()

    def put_what_comes_of(self, index: int, do: Callable[[], T]) -> None:
        """Keep what a function gives, or raises."""
        try:
            self._queue.put((index, do()))
        except Exception as error:  # noqa: BLE001 - raised again by `in_order`, in the thread that can
            self._queue.put(error)

    def in_order(self, count: int) -> Iterator[T]:
        """The results 0 to count, each as soon as it and all before it are there. Raises what any raised."""
        early: dict[int, T] = {}
        for index in range(count):
            while index not in early:
                outcome = self._queue.get()
                if isinstance(outcome, Exception):
                    raise outcome
                early[outcome[0]] = outcome[1]
            yield early.pop(index)


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
