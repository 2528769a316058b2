"""A function of the same module that computes the same by itself: `foo_ref` beside `Foo`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Target, TargetKind
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.infer.state import State
from gradverify.verifier.infer.trial import Caller, Ran, attempt

MARKS = ("ref", "reference", "torch", "pytorch", "naive", "composite", "slow", "python", "native", "eager")
"""What authors add to the name of the plain version."""

AGREES = 1e-6
"""Relative difference up to which two forwards compute the same; a different one computes something else."""


def sibling(module: ModuleType | None, target: Target, caller: Caller, state: State) -> str:
    """`module:name` of one whose forward agrees on these inputs and can be differentiated; empty for none."""
    if module is None or target.kind not in {TargetKind.FUNCTION, TargetKind.CUSTOM_OP}:
        return ""
    own = target.name.rpartition(".")[2]
    agreeing = (name for name, one in _candidates(module, own) if _agrees(one, own, caller, state))
    place = module.__name__.rpartition(".")[2].removeprefix("_gradverify_target_")
    return next((f"{place}:{name}" for name in agreeing), "")


def _candidates(module: ModuleType, target: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions called as the target is, `SoftmaxFunction` or `softmax`, and by one of the marks."""
    plain = target.replace("_", "").lower()
    stems = {plain, re.sub(r"(autograd|custom)?(function|func|fn|op|impl|backward)$", "", plain)} - {""}
    for name, value in sorted(vars(module).items()):
        if inspect.isfunction(value) and value.__module__ == module.__name__:
            words = [w for w in name.lower().split("_") if w]
            rest = [w for w in words if w not in MARKS]
            if len(rest) < len(words) and "".join(rest) in stems:
                yield name, value


def _agrees(candidate: Callable[..., Any], target: str, caller: Caller, state: State) -> bool:
    mine = attempt(caller, state)
    other = attempt(Caller(candidate, caller.defaults, caller.variadic), state)
    if not isinstance(mine, Ran) or not isinstance(other, Ran) or not other.connected:
        return False
    if [o.shape for o in mine.outputs] != [o.shape for o in other.outputs]:
        return False
    pairs = zip(mine.outputs, other.outputs, strict=True)
    same = all(torch.allclose(a, b, rtol=AGREES, atol=AGREES, equal_nan=True) for a, b in pairs)
    generated = {n for n in _nodes(caller.call, other.arguments) if n.startswith("GeneratedBackward")}
    # A sibling that only calls the target itself is no other computation.
    return same and not ({f"{target}Backward"} | generated) & _nodes(candidate, other.arguments)


def _nodes(function: Callable[..., Any], arguments: Sequence[Any]) -> set[str]:
    """Names of all autograd nodes behind what a function returns."""
    result = guard.call(function, *arguments)
    returned = () if isinstance(result, Raised) else result.value
    several = returned if isinstance(returned, tuple | list) else (returned,)
    pending: list[Any] = [r.grad_fn for r in several if isinstance(r, Tensor)]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending += [following for following, _ in node.next_functions]
    return {type(node).__name__ for node in seen}
