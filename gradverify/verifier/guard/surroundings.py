"""What user code may not replace: functions and classes of torch, of Python and of gradverify.

After such a replacement nothing that runs in the process can be believed. It is looked for by identity.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType
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


@dataclass(frozen=True)
class Surroundings:
    """Functions and classes as they are at one time."""

    kept: tuple[tuple[str, Any, Mapping[str, Any]], ...]
    """(name, module or class, what its names stand for)."""

    @staticmethod
    def take() -> Surroundings:
        """Remember them."""
        names = [*WATCHED, *(name for name in sys.modules if name.startswith(OWN))]
        owners: dict[str, Any] = {name: importlib.import_module(name) for name in names}
        owners |= {"torch.Tensor": Tensor, "torch.autograd.Function": Function}
        return Surroundings(tuple((name, owner, _code_of(owner)) for name, owner in owners.items()))

    def replaced(self) -> tuple[str, ...]:
        """Names that stand for something else now."""
        return tuple(f"{name}.{attribute}" for name, _, attribute, _ in self._changed())

    def put_back(self) -> None:
        """Let them stand for what they did, so that the report can say what was replaced."""
        for _, owner, attribute, value in [*self._changed()]:
            setattr(owner, attribute, value)

    def _changed(self) -> Iterator[tuple[str, Any, str, Any]]:
        for name, owner, kept in self.kept:
            live = _names_of(owner)
            for attribute, value in kept.items():
                now = live.get(attribute)
                if now is not value and not _is_torchs_own(attribute, now):
                    yield name, owner, attribute, value


class DisturbedError(Exception):
    """Nothing that this process answers is worth anything any more."""

    def __init__(self, how: str, raised: RaisedError | None = None) -> None:
        """`how` says what user code did, as the end of a sentence; `raised` where that is an exception."""
        super().__init__(how)
        self.how, self.raised = how, raised


def _names_of(owner: Any) -> Mapping[str, Any]:  # noqa: ANN401 - a module or a class
    """What its names stand for now; of a class, those that it inherits too."""
    if not isinstance(owner, type):
        names: Mapping[str, Any] = vars(owner)
        return names
    return {name: value for base in owner.__mro__[-2::-1] for name, value in vars(base).items()}


def _code_of(owner: Any) -> Mapping[str, Any]:  # noqa: ANN401 - a module or a class
    """Its functions and classes; a notebook's kernel binds the method `input` anew for each cell."""
    names = _names_of(owner).items()
    return {n: v for n, v in names if _is_code(v) and n not in MOVING and not isinstance(v, MethodType)}


def _is_torchs_own(name: str, value: Any) -> bool:  # noqa: ANN401
    """Whether torch has put a wrapper of its own in the place: it does when its compiler is loaded."""
    code = value.__code__ if type(value) is FunctionType else None
    return code is not None and value.__name__ == name and code.co_filename.startswith(_TORCH_CODE)


def _is_code(value: Any) -> bool:  # noqa: ANN401
    return callable(value) or isinstance(value, staticmethod | classmethod)


def reported(names: tuple[str, ...]) -> str:
    """What was replaced, as the end of a sentence about the code that did it."""
    more = len(names) - 1
    return f"replaced `{names[0]}`" + (f" and {more} more" if more else "")
