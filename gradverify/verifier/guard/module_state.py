"""What calls of user code leave behind for the next target: state of its module, threads, processes.

GV816: what the calls of a target changed that is neither their result nor ctx, as seen from outside.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor
from torch.nn import Module

from gradverify.model import Finding, Severity

OWN_PROCESSES: list[subprocess.Popen[bytes]] = []
"""Children that gradverify itself has started, in this process."""

SHOWN = 3
"""Names that are reported."""

HINT = (
    "Keep what backward needs on ctx. What is kept elsewhere outlives the call: another call may find it, "
    "and a verdict need not hold for what is called later."
)


def outside_ctx(changed: Sequence[str], running: Sequence[str], replaced: Sequence[str]) -> Iterator[Finding]:
    """A note for each kind: state that changed, what still runs, what the module replaced on import."""
    for names, what in (
        (changed, "its calls change {}, outside ctx"),
        (running, "its calls leave {} running"),
        (replaced, "its module replaces {} when it is imported"),
    ):
        if names:
            yield Finding("GV816", Severity.NOTE, what.format(_listed(names)), hint=HINT, part=what)


def _listed(names: Sequence[str]) -> str:
    shown = [name if " " in name else f"`{name}`" for name in names[:SHOWN]]
    more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
    *first, last = [*shown, *more]
    return f"{', '.join(first)} and {last}" if first else last


DEPTH = 4
"""Containers within containers that are looked into."""

MOST = 1000
"""Entries of a container that are looked at; its length tells of further ones."""

VALUES = 50_000
"""Values of a module that are looked at: it takes some 20 ms."""

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of packages that are none of the user's, although they may lie beside a module."""

OWN = __name__.partition(".")[0]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SERIES = (list, tuple, set, frozenset, deque)
_DATA = (*_PLAIN, *_SERIES, dict, Tensor)
_THREADS = Path("/proc/self/task")

A_THREAD, A_PROCESS = "a thread", "a process"


@dataclass(frozen=True)
class Left:
    """What a process holds at one time that calls of user code may change."""

    state: Mapping[str, Hashable]
    """By name, as `Class._calls`."""
    threads: int
    processes: int
    data: frozenset[str] = frozenset()
    """Names of numbers, texts, tensors and containers."""

    @staticmethod
    def take(module: ModuleType | None) -> Left:
        """Look at a module and at those beside it that it has imported."""
        modules = [] if module is None else [module, *_beside(module)]
        named = dict(_named(modules))
        marks = _Marks(frozenset(one.__name__ for one in modules))
        state = {name: marks.of(value, DEPTH) for name, value in named.items()}
        data = frozenset(name for name, value in named.items() if issubclass(type(value), _DATA))
        return Left(state, threading.active_count(), _processes(), data)

    def changed(self, later: Left) -> tuple[str, ...]:
        """Names of the state that differs; of those that came, data alone.

        Functions and modules come with an import at run time; Triton's interpreter puts all of its own there.
        """
        came = [name for name in later.state if name not in self.state and name in later.data]
        names = [*self.state, *came]
        return tuple(name for name in names if self.state.get(name, "") != later.state.get(name, ""))

    def running(self, later: Left) -> tuple[str, ...]:
        """What has been started since, and still runs."""
        more = (later.threads > self.threads, A_THREAD), (later.processes > self.processes, A_PROCESS)
        return tuple(name for is_more, name in more if is_more)


def _named(modules: Sequence[ModuleType]) -> Iterator[tuple[str, Any]]:
    """What every name of modules and of their classes holds; dunders belong to Python."""
    for owner in modules:
        prefix = "" if owner is modules[0] else f"{owner.__name__}."
        for name, value in _own(owner):
            if not issubclass(type(value), type):
                yield prefix + name, value
            elif value.__module__ == owner.__name__:
                yield from ((f"{prefix}{name}.{inner}", held) for inner, held in _own(value))


class _Marks:
    """What differs where a value does; of what is not looked into, which object it is."""

    def __init__(self, modules: frozenset[str]) -> None:
        """Objects of classes of these modules are looked into."""
        self._modules, self._left = modules, VALUES

    def of(self, value: Any, depth: int) -> Hashable:  # noqa: ANN401
        """The mark of a value; `isinstance` would ask the value."""
        kind = type(value)
        self._left -= 1
        if kind in _PLAIN:
            return kind.__name__, value
        version = value._version if issubclass(kind, Tensor) else 0  # noqa: SLF001 - torch's only name
        inside = self._inside(value, kind) if depth > 0 and self._left > 0 else ()
        return id(value), version, tuple(self.of(inner, depth - 1) for inner in inside)

    def _inside(self, value: Any, kind: type) -> Iterable[Any]:  # noqa: ANN401
        if issubclass(kind, dict):
            return [len(value), *islice(dict.keys(value), MOST), *islice(dict.values(value), MOST)]
        if issubclass(kind, _SERIES):
            return [len(value), *islice(value, MOST)]
        if kind is FunctionType:
            return [value.__defaults__, value.__kwdefaults__, value.__dict__]
        if kind.__module__ in self._modules or issubclass(kind, Module | Tensor):
            return [object.__getattribute__(value, "__dict__")] if hasattr(value, "__dict__") else []
        return ()


def _own(owner: Any) -> list[tuple[str, Any]]:  # noqa: ANN401 - a module or a class
    return [(name, value) for name, value in list(vars(owner).items()) if not name.startswith("__")]


def _beside(module: ModuleType) -> list[ModuleType]:
    """Loaded modules of files in the module's folder and below."""
    folder = str(Path(module.__file__ or "/nowhere").parent)
    found = []
    for name, one in list(sys.modules.items()):
        file = getattr(one, "__dict__", {}).get("__file__")  # a lazy module stays one
        mine = isinstance(file, str) and file.startswith(f"{folder}/") and not INSTALLED & {*Path(file).parts}
        if mine and one is not module and name.partition(".")[0] != OWN:
            found.append(one)
    return found


def _processes() -> int:
    """How many children this process has; 0 where the system does not list them."""
    try:
        children = sum(len((thread / "children").read_text().split()) for thread in _THREADS.iterdir())
    except OSError:
        return 0
    return children - sum(process.poll() is None for process in OWN_PROCESSES)
