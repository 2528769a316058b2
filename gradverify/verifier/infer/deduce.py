"""From a live target to a deduced spec entry, or to the attempts that failed."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from gradverify.deduced import Attempt, Deduced
from gradverify.model import Target
from gradverify.verifier.infer.doubts import doubts_of_source
from gradverify.verifier.infer.entry import entry_of
from gradverify.verifier.infer.known import Known, begun, known_of
from gradverify.verifier.infer.search import NoSolution, Solution, search

FEWER_TRIES = 150
"""Calls of the search in float32: by then every state has been refused in float64."""


def deduce(value: Any, target: Target, module: ModuleType | None) -> Deduced | tuple[Attempt, ...]:  # noqa: ANN401
    """Inputs that the target accepts as a spec entry, or the attempts with how they were answered."""
    found, known = _searched(target, known_of(value, target, module))
    if isinstance(found, NoSolution):
        return found.attempts
    entry = entry_of(target, module, known, found)
    return replace(entry, doubts=(*entry.doubts, *doubts_of_source(value, module, known.evidence)))


def _searched(target: Target, known: Known) -> tuple[Solution | NoSolution, Known]:
    """What the search finds, with what is known for it."""
    names, states = [p.name for p in target.parameters], list(begun(known))
    found = search(known.caller, states, names)
    if isinstance(found, Solution):
        return found, known
    # Kernels that know float32 alone: the verifier finds that float64 is refused, too.
    in_float32 = replace(known, caller=replace(known.caller, dtype=torch.float32))
    again = search(in_float32.caller, states, names, FEWER_TRIES)
    whole = isinstance(again, Solution) and again.ran.is_whole
    return (again, in_float32) if whole else (found, known)
