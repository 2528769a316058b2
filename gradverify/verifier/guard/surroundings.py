"""What user code may not replace: functions and classes of torch, of Python and of gradverify.

After such a replacement nothing that runs in the process can be believed. It is looked for by identity, and
without calling anything that could have been replaced.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from operator import is_
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.model import RaisedError

WATCHED = (
    "builtins",
    "math",
    "torch",
    "torch.autograd",
    "torch.autograd.functional",
    "torch.autograd.graph",
    "torch.fft",
    "torch.linalg",
    "torch.nn.functional",
    "torch.overrides",
    "torch.special",
)
"""Modules whose functions and classes are looked at; every one of ours that is loaded comes beside them."""

MOVING = frozenset({"AFTER_A_CALL", "LET_THROUGH", "Storage"})
"""Names that are set again: of ours, what a guard asks; of torch, what follows the default dtype."""

OWN = ("gradverify.verifier.", "gradverify.events.", "gradverify.model.")
"""Beginnings of the names of our own modules that a worker needs."""

_TORCH_CODE = str(Path(torch.__file__).parent)

_ALL, _MAP = all, map
"""As they were before user code could replace them."""

_ABSENT = object()
"""What an inherited name stands for in a class of its own."""


@dataclass(frozen=True)
class Namespace:
    """The functions and classes of a module or a class as they are at one time."""

    name: str
    owner: Any
    live: Mapping[str, Any]
    """Its names as they are whenever that is looked at."""
    kept: Mapping[str, Any]

    @staticmethod
    def of(name: str, owner: Any) -> Namespace:  # noqa: ANN401 - a module or a class
        """Remember them. What a class inherits may not be hidden by a name of its own either."""
        live = vars(owner)
        kept = {key: value for key, value in live.items() if _is_code(value) and key not in MOVING}
        bases = owner.__mro__[1:-1] if isinstance(owner, type) else ()
        inherited = {key for base in bases for key, value in vars(base).items() if _is_code(value)}
        return Namespace(name, owner, live, {**dict.fromkeys(inherited - live.keys(), _ABSENT), **kept})

    def changed(self) -> Iterator[str]:
        """Its names that stand for something else now."""
        found = _MAP(self.live.get, self.kept, repeat(_ABSENT))
        if _ALL(_MAP(is_, found, self.kept.values())):  # hundreds of names, after every request
            return
        for attribute, value in self.kept.items():
            now = self.live.get(attribute, _ABSENT)
            if not _is_same(now, value) and not _is_torchs_own(attribute, now):
                yield attribute

    def put_back(self) -> None:
        """Let these names stand for what they did."""
        for attribute in [*self.changed()]:
            value = self.kept[attribute]
            if value is _ABSENT:
                delattr(self.owner, attribute)
            else:
                setattr(self.owner, attribute, value)


@dataclass(frozen=True)
class Surroundings:
    """Modules, functions and classes as they are at one time."""

    modules: tuple[tuple[str, ModuleType], ...]
    """(name, module): what `sys.modules` must hold."""
    namespaces: tuple[Namespace, ...]

    @staticmethod
    def take() -> Surroundings:
        """Remember them."""
        names = [name for name in sys.modules if name.startswith(OWN)]
        modules = {name: importlib.import_module(name) for name in (*WATCHED, *names)}
        owners: dict[str, Any] = {**modules, "torch.Tensor": Tensor, "torch.autograd.Function": Function}
        return Surroundings(tuple(modules.items()), tuple(Namespace.of(*pair) for pair in owners.items()))

    @staticmethod
    def of_functions(module: ModuleType) -> Surroundings:
        """The methods of every Function that a module defines: one is not to replace another's."""
        found = [
            Namespace.of(value.__name__, value)
            for value in list(vars(module).values())
            if isinstance(value, type) and issubclass(value, Function) and value.__module__ == module.__name__
        ]
        return Surroundings((), tuple(found))

    def replaced(self) -> tuple[str, ...]:
        """Names that stand for something else now."""
        return (*self._replaced(),)

    def put_back(self) -> None:
        """Let them stand for what they did, so that the report can say what was replaced."""
        sys.modules.update(self.modules)
        for namespace in self.namespaces:
            namespace.put_back()

    def _replaced(self) -> Iterator[str]:
        loaded = sys.modules
        for name, module in self.modules:
            if loaded.get(name) is not module:
                yield "entries of sys.modules"
                break
        for namespace in self.namespaces:
            for attribute in namespace.changed():
                yield f"{namespace.name}.{attribute}"


class DisturbedError(Exception):
    """Nothing that this process answers is worth anything any more."""

    def __init__(self, how: str, raised: RaisedError | None = None) -> None:
        """`how` says what user code did, as the end of a sentence; `raised` where that is an exception."""
        super().__init__(how)
        self.how, self.raised = how, raised


def _is_same(now: Any, value: Any) -> bool:  # noqa: ANN401 - whatever has the name
    """Whether a name stands for what it did: a notebook's kernel binds `input` anew for each cell."""
    both = type(now) is type(value) is MethodType
    return now is value or (both and now.__self__ is value.__self__ and now.__func__ is value.__func__)


def _is_torchs_own(name: str, value: Any) -> bool:  # noqa: ANN401
    """Whether torch has put a wrapper of its own in the place: it does when its compiler is loaded."""
    code = value.__code__ if type(value) is FunctionType else None
    return code is not None and value.__name__ == name and code.co_filename.startswith(_TORCH_CODE)


def _is_code(value: Any) -> bool:  # noqa: ANN401
    return callable(value) or isinstance(value, staticmethod | classmethod)


def reported(names: tuple[str, ...]) -> str:
    """What was replaced, as the end of a sentence about the code that did it."""
    more = len(names) - 1
    first = names[0] if " " in names[0] else f"`{names[0]}`"
    return f"replaced {first}" + (f" and {more} more" if more else "")
