"""Objects that the module holds and a parameter may be: a configuration, a member of an enumeration.

Found by the parameter's annotation, by what it is compared with, or by the attributes that forward reads
of it. An object that would need arguments of its own is never made up.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from gradverify.model import Parameter
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.infer.facts import Facts

MOST_FOUND = 3
"""Objects that are tried for one parameter."""

_KNOWN = (torch.Tensor, nn.Module, torch.Size, torch.dtype, torch.device, int, float, str, list, dict, tuple)
"""Types that other guesses stand for."""

_NO_OBJECTS = (ModuleType, FunctionType, type, *_KNOWN)


@dataclass(frozen=True)
class Found:
    """An object of the module, by its path."""

    path: str
    value: Any
    annotated: bool
    """The parameter says that it is one."""
    made: bool = False
    """A class that takes no arguments: what it returns when called is passed."""

    @property
    def is_member(self) -> bool:
        """Whether it is one of an enumeration."""
        return isinstance(self.value, enum.Enum)


def objects_of(
    parameters: Sequence[Parameter], facts: Mapping[str, Facts], module: ModuleType | None, prefix: str
) -> dict[str, tuple[Found, ...]]:
    """For each parameter the objects that it may be, the likeliest first. `prefix` stands before a name."""
    own = vars(module) if module is not None else {}
    found = {}
    for parameter in parameters:
        known = facts[parameter.name]
        several = [
            *_annotated(parameter, own, prefix),
            *_compared(known, own, prefix),
            *_alike(known.attributes, own, prefix),
        ]
        found[parameter.name] = tuple(several[:MOST_FOUND])
    return found


def _annotated(parameter: Parameter, own: Mapping[str, Any], prefix: str) -> Iterator[Found]:
    name = parameter.annotation.strip("'\"").rpartition(".")[2]
    kind = own.get(name)
    if not isinstance(kind, type) or kind is Any:
        return
    if issubclass(kind, enum.Enum):
        yield from (Found(f"{prefix}:{name}.{member.name}", member, annotated=True) for member in kind)
        return
    if issubclass(kind, _KNOWN) and not hasattr(kind, "_fields"):
        return
    if _needs_nothing(kind):
        yield Found(f"{prefix}:{name}", kind, annotated=True, made=True)
    for other, value in own.items():
        if not isinstance(guard.call(isinstance, value, kind), Raised) and isinstance(value, kind):
            yield Found(f"{prefix}:{other}", value, annotated=True)


def _compared(facts: Facts, own: Mapping[str, Any], prefix: str) -> Iterator[Found]:
    """Members of enumerations that the parameter is compared with: `kind is Norm.L1`."""
    for path in facts.compared:
        owner, _, name = path.partition(".")
        kind = own.get(owner)
        if isinstance(kind, type) and issubclass(kind, enum.Enum) and name in kind.__members__:
            yield Found(f"{prefix}:{path}", kind[name], annotated=True)


def _alike(read: Collection[str], own: Mapping[str, Any], prefix: str) -> Iterator[Found]:
    """Objects that have all the attributes which are read of a parameter, some of which no tensor has."""
    for name, value in own.items() if read and not all(hasattr(torch.Tensor, a) for a in read) else ():
        if isinstance(value, type) and _is_plain(value, own) and _needs_nothing(value):
            made = guard.call(value)
            if not isinstance(made, Raised) and _has(made.value, read):
                yield Found(f"{prefix}:{name}", value, annotated=False, made=True)
        elif not isinstance(value, _NO_OBJECTS) and _has(value, read):
            yield Found(f"{prefix}:{name}", value, annotated=False)


def _is_plain(kind: type, own: Mapping[str, Any]) -> bool:
    """Whether a class of the module does nothing but hold values."""
    others = (*_KNOWN, enum.Enum, BaseException, torch.autograd.Function)
    return kind.__module__ == own.get("__name__") and not issubclass(kind, others)


def _has(value: Any, attributes: Collection[str]) -> bool:  # noqa: ANN401
    """Whether an object has all of these; not if it raises when asked, as a proxy that is not set up."""
    asked = guard.call(lambda: all(hasattr(value, a) for a in attributes))
    return not isinstance(asked, Raised) and asked.value


def _needs_nothing(kind: type) -> bool:
    """Whether a class can be called without arguments."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(p.default is not p.empty or p.kind in {p.VAR_POSITIONAL, p.VAR_KEYWORD} for p in parameters)
