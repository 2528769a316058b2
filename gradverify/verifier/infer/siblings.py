"""A function of the same module that computes the same by itself: `foo_ref` beside `Foo`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gradverify.source import is_sibling
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.infer.state import State
from gradverify.verifier.infer.trial import Caller, Ran, attempt

AGREES = 1e-6
"""Relative difference up to which two forwards compute the same; a different one computes something else."""


def sibling(module: ModuleType, target: str, caller: Caller, state: State) -> str:
    """Name of a sibling whose forward agrees on these inputs and can be differentiated; empty for none.

    `target` is the name of the Function or operator.
    """
    own = [a.name for a in state.arguments]
    for name, candidate in sorted(vars(module).items()):
        if not inspect.isfunction(candidate) or candidate.__module__ != module.__name__:
            continue
        named = is_sibling(name, list(inspect.signature(candidate).parameters), target, own)
        if named and _takes(candidate, len(own)) and _agrees(candidate, target, caller, state):
            return name
    return ""


def _takes(candidate: Callable[..., Any], count: int) -> bool:
    parameters = list(inspect.signature(candidate).parameters.values())
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}
    ]
    return len(needed) <= count <= len(parameters)


def _agrees(candidate: Callable[..., Any], target: str, caller: Caller, state: State) -> bool:
    mine = attempt(caller, state)
    other = attempt(replace(caller, call=candidate, function=None), state)
    if not isinstance(mine, Ran) or not isinstance(other, Ran) or not other.connected:
        return False
    if [o.shape for o in mine.outputs] != [o.shape for o in other.outputs]:
        return False
    same = all(
        torch.allclose(a, b, rtol=AGREES, atol=AGREES, equal_nan=True)
        for a, b in zip(mine.outputs, other.outputs, strict=True)
    )
    own = {f"{target}Backward"} | {
        name for name in _nodes(caller.call, other) or () if name.startswith("GeneratedBackward")
    }
    nodes = _nodes(candidate, other)
    # A sibling that only calls the target itself is no other computation.
    return same and nodes is not None and not own & nodes


def _nodes(function: Callable[..., Any], ran: Ran) -> set[str] | None:
    """Names of all autograd nodes behind what a function returns; None where it raises."""
    result = guard.call(function, *ran.arguments)
    if isinstance(result, Raised):
        return None
    returned = result.value if isinstance(result.value, tuple | list) else (result.value,)
    pending: list[Any] = [r.grad_fn for r in returned if isinstance(r, Tensor)]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        pending += [following for following, _ in node.next_functions]
    return {type(node).__name__ for node in seen}
