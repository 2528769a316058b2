"""From a live target to a deduced spec entry, or to the attempts that failed."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from gradverify.deduced import Attempt, Deduced
from gradverify.model import Target, with_parts
from gradverify.verifier.guard import default_dtype
from gradverify.verifier.infer.chance import is_by_chance
from gradverify.verifier.infer.doubts import doubts_of_source
from gradverify.verifier.infer.entry import entry_of
from gradverify.verifier.infer.filling import to_fill_in
from gradverify.verifier.infer.known import Known, begun, known_of
from gradverify.verifier.infer.repairs import BROADCAST
from gradverify.verifier.infer.search import NoSolution, Solution, search
from gradverify.verifier.infer.trial import Caller, Ran, attempt

FEWER_TRIES = 150
"""Calls of the search in float32: by then every state has been refused in float64."""

OF_FLOAT32, OF_FLOAT64 = 1e-4, 1e-10
"""How far outputs differ, relatively or not, that were rounded to float32 on the way; and that were not."""


def deduce(
    value: Any,  # noqa: ANN401
    target: Target,
    module: ModuleType | None,
    device: str = "cpu",
) -> Deduced | tuple[Attempt, ...]:
    """Inputs that the target accepts as a spec entry, or the attempts with how they were answered."""
    known = known_of(value, target, module, device)
    found, known, dtype = _searched(target, known)
    if isinstance(found, NoSolution):
        return tuple(replace(a, inputs=to_fill_in(known, state)) for a, state in found.attempts)
    if not dtype and _follows_default(known.caller, found):
        dtype = "float64"
    with default_dtype(dtype):
        entry = entry_of(target, module, known, found)
    doubts = (*entry.doubts, *doubts_of_source(value, module, known.evidence))
    return replace(entry, doubts=doubts, default_dtype=dtype)


def _searched(target: Target, known: Known) -> tuple[Solution | NoSolution, Known, str]:
    """What the search finds, with what is known for it, and the default dtype of torch that it takes."""
    names, states = [p.name for p in with_parts(target.parameters)], list(begun(known))
    found = search(known.caller, states, names)
    if isinstance(found, NoSolution) or is_by_chance(found.state):
        found = _better(found, search(known.caller, states, names, further=[BROADCAST]))
    if isinstance(found, Solution):
        return found, known, ""
    if _mixes_dtypes(found):
        with default_dtype("float64"):
            again = search(known.caller, states, names)
        if isinstance(again, Solution):
            return again, known, "float64"
    # Kernels that know float32 alone: the verifier finds that float64 is refused, too.
    in_float32 = replace(known, caller=replace(known.caller, dtype=torch.float32))
    again = search(in_float32.caller, states, names, FEWER_TRIES)
    whole = isinstance(again, Solution) and again.ran.is_whole
    return (again, in_float32, "") if whole else (found, known, "")


def _better(first: Solution | NoSolution, again: Solution | NoSolution) -> Solution | NoSolution:
    """Inputs with a number beside tensors whose sizes differ, which tell more than squares; or the first."""
    if isinstance(first, NoSolution) or isinstance(again, NoSolution):
        return first if isinstance(again, NoSolution) else again
    shows_less = is_by_chance(again.state) or (first.ran.is_whole and not again.ran.is_whole)
    return first if shows_less else again


def _mixes_dtypes(found: NoSolution) -> bool:
    words = " ".join(a.answer for a, _ in found.attempts).lower()
    return "float" in words and ("double" in words or "overflow" in words)


def _follows_default(caller: Caller, found: Solution) -> bool:
    """Whether forward keeps what it computes in torch's default dtype, which takes digits from float64."""
    if caller.dtype is not torch.float64 or not found.ran.is_whole:
        return False
    with default_dtype("float64"):
        wider = attempt(caller, found.state)
    if not isinstance(wider, Ran) or not wider.is_whole or len(wider.outputs) != len(found.ran.outputs):
        return False
    pairs = [(a.to(b.dtype), b) for a, b in zip(found.ran.outputs, wider.outputs, strict=True)]
    if any(a.shape != b.shape for a, b in pairs):
        return False
    near = all(torch.allclose(a, b, rtol=OF_FLOAT32, atol=OF_FLOAT32) for a, b in pairs)
    return near and any(not torch.allclose(a, b, rtol=OF_FLOAT64, atol=OF_FLOAT64) for a, b in pairs)
