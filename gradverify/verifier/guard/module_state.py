"""What calls of user code leave behind for the next target: state of its module, threads.

GV816: what the calls of a target changed that is neither their result nor ctx, as seen from outside.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor
from torch.nn import Module

from gradverify.model import Finding, Severity

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

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SERIES = (list, tuple, set, frozenset, deque)
_DATA = (*_PLAIN, *_SERIES, dict, Tensor)


@dataclass(frozen=True)
class Left:
    """What a process holds at one time that calls of user code may change."""

    state: Mapping[str, Hashable]
    """By name, as `Class._calls`."""
    threads: int
    data: frozenset[str] = frozenset()
    """Names of numbers, texts, tensors and containers."""

    @staticmethod
    def take(module: ModuleType | None) -> Left:
        """Look at a module."""
        named = {} if module is None else dict(_named(module))
        marks = _Marks(getattr(module, "__name__", ""))
        state = {name: marks.of(value, DEPTH) for name, value in named.items()}
        data = frozenset(name for name, value in named.items() if issubclass(type(value), _DATA))
        return Left(state, threading.active_count(), data)

    def changed(self, later: Left) -> tuple[str, ...]:
        """Names of the state that differs; of those that came, data alone.

        Functions and modules come with an import at run time; Triton's interpreter puts all of its own there.
        """
        came = [name for name in later.state if name not in self.state and name in later.data]
        names = [*self.state, *came]
        return tuple(name for name in names if self.state.get(name, "") != later.state.get(name, ""))

    def running(self, later: Left) -> tuple[str, ...]:
        """What has been started since, and still runs."""
        return ("a thread",) if later.threads > self.threads else ()


def _named(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What every name of a module and of its classes holds; dunders belong to Python."""
    for name, value in _own(module):
        if not issubclass(type(value), type):
            yield name, value
        elif value.__module__ == module.__name__:
            yield from ((f"{name}.{inner}", held) for inner, held in _own(value))


class _Marks:
    """What differs where a value does; of what is not looked into, which object it is."""

    def __init__(self, module: str) -> None:
        """Objects of classes of a module are looked into."""
        self._module, self._left = module, VALUES

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
        if kind.__module__ == self._module or issubclass(kind, Module | Tensor):
            return [object.__getattribute__(value, "__dict__")] if hasattr(value, "__dict__") else []
        return ()


def _own(owner: Any) -> list[tuple[str, Any]]:  # noqa: ANN401 - a module or a class
    return [(name, value) for name, value in list(vars(owner).items()) if not name.startswith("__")]
