"""Objects of the author's own that a parameter stands for: a configuration, a quantisation type.

Found by what the parameter is annotated with, or else by the attributes that forward reads of it.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from gradverify.model import Parameter
from gradverify.verifier import guard
from gradverify.verifier.collect.inference.uses import Facts
from gradverify.verifier.guard import Raised

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
    made: bool
    """A class: what it returns when called without arguments is passed."""
    annotated: bool
    """The parameter says that it is one."""


def objects_of(
    parameters: Sequence[Parameter], facts: Mapping[str, Facts], module: ModuleType | None, prefix: str
) -> dict[str, tuple[Found, ...]]:
    """For each parameter the objects that it may be, the likeliest first. `prefix` stands before a name."""
    own = vars(module) if module is not None else {}
    found = {}
    for parameter in parameters:
        several = [
            *_annotated(parameter, own, prefix),
            *_alike(facts[parameter.name], own, prefix, getattr(module, "__name__", "")),
        ]
        found[parameter.name] = tuple(several[:MOST_FOUND])
    return found


def _annotated(parameter: Parameter, own: Mapping[str, Any], prefix: str) -> Iterator[Found]:
    name = parameter.annotation.strip("'\"").rpartition(".")[2]
    kind = own.get(name)
    if not isinstance(kind, type) or issubclass(kind, (*_KNOWN, enum.Enum)):
        return
    if can_be_made(kind):
        yield Found(f"{prefix}:{name}", kind, made=True, annotated=True)
    for other, value in own.items():
        if isinstance(value, kind):
            yield Found(f"{prefix}:{other}", value, made=False, annotated=True)


def _alike(facts: Facts, own: Mapping[str, Any], prefix: str, module: str) -> Iterator[Found]:
    """Objects and classes that have all the attributes which are read of a parameter."""
    read = facts.attributes
    if not read or all(hasattr(torch.Tensor, a) for a in read):
        return
    for name, value in own.items():
        is_class = isinstance(value, type)
        if is_class and _is_plain(value, module) and can_be_made(value):
            made = guard.call(value)
            if not isinstance(made, Raised) and all(hasattr(made.value, a) for a in read):
                yield Found(f"{prefix}:{name}", value, made=True, annotated=False)
        elif not isinstance(value, _NO_OBJECTS) and all(hasattr(value, a) for a in read):
            yield Found(f"{prefix}:{name}", value, made=False, annotated=False)


def _is_plain(kind: type, module: str) -> bool:
    """Whether a class of the same package does nothing but hold values."""
    package = module.partition(".")[0]
    others = (*_KNOWN, enum.Enum, BaseException, torch.autograd.Function)
    return kind.__module__.partition(".")[0] == package and not issubclass(kind, others)


def can_be_made(kind: type) -> bool:
    """Whether a class can be called without arguments."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(p.default is not p.empty or p.kind in {p.VAR_POSITIONAL, p.VAR_KEYWORD} for p in parameters)
