"""`verify(..., world_size=2)`: a Function that communicates, on ranks that are started for it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from gradverify.api.distributed import (
    REFERENCE,
    one_for_each,
    outputs_on_ranks,
    report_on_ranks,
    tensor_input,
)
from gradverify.errors import UsageError
from gradverify.model import Input, LiteralInput, ObjectInput, Settings, TargetReport
from gradverify.verifier.building import Live
from gradverify.verifier.collect.discover import describe_target
from gradverify.verifier.inputs.arguments import OnEachRank
from gradverify.verifier.ranks.messages import GROUP_PATHS
from gradverify.verifier.ranks.worlds import Worlds

GROUP = {"process_group": "world"}
"""The group of the ranks, in the words of a spec."""

PER_RANK = ("local", "partial")
"""Placements of which a tensor holds a row for each rank."""


@dataclass(frozen=True)
class OnRanks:
    """How a target runs on ranks: the arguments of `verify` that say so."""

    world_size: int
    placements: Any
    output_placements: Any
    second_order: bool


def report_of_ranks(
    fn: Callable[..., Any],
    given: Mapping[str, Any] | Sequence[Any],
    asked: OnRanks,
    settings: Settings,
    name: str,
    reference: Callable[..., Any] | None,
) -> TargetReport:
    """The report on a target on ranks that import it themselves. Raises `UsageError`."""
    if asked.world_size < 1:
        raise UsageError(f"verify: world_size is {asked.world_size}: a number of processes")
    if dist.is_initialized():
        raise UsageError(
            "verify: this program runs on several ranks already: call gradverify.gradcheck_distributed"
        )
    file, attribute, value = _importable(fn)
    named = given if isinstance(given, Mapping) else {f"input{k}": one for k, one in enumerate(given)}
    words = one_for_each(asked.placements, len(named), "verify")
    chosen = any(isinstance(one, Tensor) and one.requires_grad for one in named.values())
    inputs = tuple(
        _input(key, one, each, asked.world_size, chosen=chosen)
        for (key, one), each in zip(named.items(), words, strict=True)
    )
    target = describe_target(value, attribute, attribute, file)
    ranks = outputs_on_ranks(asked.output_placements, asked.second_order, "verify")
    with closing(Worlds(file, target, settings.device)) as worlds:
        objects = {path: OnEachRank(path) for path in GROUP_PATHS} | (
            {} if reference is None else {REFERENCE: reference}
        )
        live = Live(value, objects, worlds=worlds)
        return report_on_ranks(live, target, asked.world_size, inputs, ranks, settings, name)


def _importable(fn: Callable[..., Any]) -> tuple[str, str, Any]:
    """The file of a function, its name there, and what has that name. Raises `UsageError`."""
    owner = getattr(fn, "__self__", None)
    value = owner if isinstance(owner, type) and fn == getattr(owner, "apply", None) else fn
    attribute = getattr(value, "__qualname__", "")
    module = sys.modules.get(getattr(value, "__module__", "") or "")
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    file = None if found is not value else inspect.getsourcefile(value)
    if file is None:
        raise UsageError(
            f"verify: every rank imports fn itself, and `{attribute or fn}` is not at the top of a module: "
            "define it there, or call gradverify.gradcheck_distributed under torchrun"
        )
    return str(Path(file).resolve()), attribute, value


def _input(name: str, given: Any, words: Mapping[str, str], world: int, *, chosen: bool) -> Input:  # noqa: ANN401
    """An argument as a case has it. Raises `UsageError`."""
    if isinstance(given, Mapping) and given == GROUP:
        return ObjectInput(name, next(iter(GROUP_PATHS)))
    if not isinstance(given, Tensor):
        return LiteralInput(name, given)
    if words["placement"] in PER_RANK and given.shape[:1] != (world,):
        raise UsageError(
            f"verify: `{name}` is {words['placement']}, so that its first dimension is the rank: "
            f"{tuple(given.shape)} is to begin with {world}"
        )
    return tensor_input(name, given, words, requires_grad=given.requires_grad if chosen else None)
