"""Objects of the author's own that a parameter stands for: a configuration, a quantisation type.

Found by what the parameter is annotated with, or else by the attributes that forward reads of it.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from gradverify.model import Parameter, Scalar
from gradverify.verifier import guard
from gradverify.verifier.collect.inference.candidates import Guess, Kind
from gradverify.verifier.collect.inference.facts import Facts
from gradverify.verifier.guard import Raised

MOST_FOUND = 3
"""Objects that are tried for one parameter."""

_KNOWN = (torch.Tensor, nn.Module, torch.Size, torch.dtype, torch.device, int, float, str, list, dict, tuple)
"""Types that other guesses stand for."""

_NO_OBJECTS = (ModuleType, FunctionType, type, *_KNOWN)


class Names:
    """By what path a spec would call a live object, and the objects that were asked for."""

    def __init__(self, module: ModuleType | None, prefix: str) -> None:
        """`prefix` stands before the names of the module."""
        self._own, self._prefix = vars(module) if module is not None else {}, prefix
        self.live: dict[str, Any] = {}

    def guess_of(self, value: Any) -> Guess | None:  # noqa: ANN401
        """The object as a guess; None where no path leads to it."""
        path, init, behind = self._path_of(value), None, value
        if not path:
            path, init = self._rebuilt(value)
            behind = self._own.get(path.partition(":")[2], type(value))
        if not path:
            return None
        self.live[path] = behind
        kind = Kind.CALLABLE if callable(value) and not isinstance(value, type) else Kind.OBJECT
        found = path.startswith(f"{self._prefix}:")  # not what stands in for something of the author's
        return Guess(kind, 0.0, found=found, path=path, made=init is not None, init=init or ())

    def _path_of(self, value: Any) -> str:  # noqa: ANN401
        if isinstance(value, enum.Enum):
            owner = self._path_of(type(value))
            return f"{owner}.{value.name}" if owner else ""
        for name, other in self._own.items():
            if other is value and not isinstance(value, ModuleType):
                return f"{self._prefix}:{name}"
        if isinstance(value, torch.dtype):
            return str(value)
        name = getattr(value, "__name__", "")
        return f"torch.{name}" if name and getattr(torch, name, None) is value else ""

    def _rebuilt(self, value: Any) -> tuple[str, tuple[Scalar, ...]]:  # noqa: ANN401
        """The class to call and plain arguments that give the same: of a named tuple, a dataclass."""
        if isinstance(value, torch.device):
            return _DEVICE, (str(value),)
        if isinstance(value, FunctionType):
            return self._made_by_factory(value)
        owner = self._path_of(type(value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            entries = tuple(value)
        elif is_dataclass(value) and not isinstance(value, type):
            entries = tuple(getattr(value, f.name) for f in fields(value) if f.init)
        else:
            entries = _kept_arguments(value)
        plain = all(v is None or isinstance(v, bool | int | float | str) for v in entries)
        return (owner, entries) if owner and entries and plain else ("", ())

    def _made_by_factory(self, value: FunctionType) -> tuple[str, tuple[Scalar, ...]]:
        """The function of the module that has made a closure, and what it was called with."""
        name, inside, _ = value.__qualname__.partition(".<locals>.")
        factory = self._own.get(name) if inside else None
        if not isinstance(factory, FunctionType):
            return "", ()
        known = inspect.getclosurevars(value).nonlocals
        needed = list(inspect.signature(factory).parameters)
        entries = tuple(known.get(n, factory) for n in needed)
        plain = bool(entries) and all(v is None or isinstance(v, bool | int | float | str) for v in entries)
        return (f"{self._prefix}:{name}", entries) if plain else ("", ())


def _kept_arguments(value: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """What an object was built with, where it keeps that under the names of the parameters."""
    if isinstance(value, torch.Tensor | nn.Module) or not hasattr(value, "__dict__"):
        return ()
    try:
        names = list(inspect.signature(type(value)).parameters)
    except (TypeError, ValueError):
        return ()
    kept = vars(value)
    return tuple(kept[n] for n in names) if set(names) <= set(kept) else ()


_DEVICE = "torch.device"


@dataclass(frozen=True)
class Found:
    """An object of the module, by its path."""

    path: str
    value: Any
    made: bool
    """A class: what it returns when called is passed."""
    annotated: bool
    """The parameter says that it is one."""
    init: tuple[Scalar, ...] = ()
    """What the class is called with."""

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
        several = [
            *_annotated(parameter, own, prefix),
            *_compared(facts[parameter.name], own, prefix),
            *_alike(facts[parameter.name], own, prefix, getattr(module, "__name__", "")),
        ]
        found[parameter.name] = tuple(several[:MOST_FOUND])
    return found


def _annotated(parameter: Parameter, own: Mapping[str, Any], prefix: str) -> Iterator[Found]:
    name = parameter.annotation.strip("'\"").rpartition(".")[2]
    kind = own.get(name)
    if not isinstance(kind, type) or kind is Any or (issubclass(kind, _KNOWN) and not _is_named_tuple(kind)):
        return
    if issubclass(kind, enum.Enum):
        yield from _members(kind, f"{prefix}:{name}", annotated=True)
        return
    init = plain_arguments(kind)
    if init is not None:
        yield Found(f"{prefix}:{name}", kind, made=True, annotated=True, init=init)
    for other, value in own.items():
        if not isinstance(guard.call(isinstance, value, kind), Raised) and isinstance(value, kind):
            yield Found(f"{prefix}:{other}", value, made=False, annotated=True)


def _compared(facts: Facts, own: Mapping[str, Any], prefix: str) -> Iterator[Found]:
    """Members of enumerations that the parameter is compared with: `kind is Norm.L1`."""
    for path in facts.compared:
        owner, _, name = path.partition(".")
        kind = own.get(owner)
        if isinstance(kind, type) and issubclass(kind, enum.Enum) and name in kind.__members__:
            yield Found(f"{prefix}:{path}", kind[name], made=False, annotated=True)


def _alike(facts: Facts, own: Mapping[str, Any], prefix: str, module: str) -> Iterator[Found]:
    """Objects and classes that have all the attributes which are read of a parameter."""
    read = facts.attributes
    if not read or all(hasattr(torch.Tensor, a) for a in read):
        return
    for name, value in own.items():
        is_class = isinstance(value, type)
        init = plain_arguments(value) if is_class and _is_plain(value, module) else None
        if init is not None:
            made = guard.call(value, *init)
            if not isinstance(made, Raised) and _has(made.value, read):
                yield Found(f"{prefix}:{name}", value, made=True, annotated=False, init=init)
        elif not isinstance(value, _NO_OBJECTS) and _has(value, read):
            yield Found(f"{prefix}:{name}", value, made=False, annotated=False)


def _has(value: Any, attributes: Collection[str]) -> bool:  # noqa: ANN401
    """Whether an object has all of these; not if it raises when asked, as a proxy that is not set up."""
    asked = guard.call(lambda: all(hasattr(value, a) for a in attributes))
    return not isinstance(asked, Raised) and asked.value


def _is_plain(kind: type, module: str) -> bool:
    """Whether a class of the same package does nothing but hold values."""
    package = module.partition(".")[0]
    others = (*_KNOWN, enum.Enum, BaseException, torch.autograd.Function)
    known = issubclass(kind, others) and not _is_named_tuple(kind)
    return kind.__module__.partition(".")[0] == package and not known


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _members(kind: type[enum.Enum], path: str, *, annotated: bool) -> Iterator[Found]:
    for member in kind:
        yield Found(f"{path}.{member.name}", member, made=False, annotated=annotated)


PLAIN: Mapping[str, Scalar] = {"float": 0.75, "int": 2, "bool": False}
"""What a constructor gets for an argument of a type: no number at which a wrong factor cannot be seen."""


def plain_arguments(kind: type) -> tuple[Scalar, ...] | None:
    """Plain arguments for what a class asks for without a default; None where that is anything else."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return None
    needed = [
        p for p in parameters if p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}
    ]
    types = ["" if p.annotation is p.empty else inspect.formatannotation(p.annotation) for p in needed]
    if any(
        p.kind is p.KEYWORD_ONLY or t.strip("'\"") not in {*PLAIN, ""}
        for p, t in zip(needed, types, strict=True)
    ):
        return None
    return tuple(PLAIN.get(t.strip("'\""), PLAIN["float"]) for t in types)
