"""Functions that run on several ranks: what their keys may say together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from gradverify.cases.inputs import (
    STACKED,
    ConcatSpec,
    InputSpec,
    TensorSpec,
    ValueSpec,
    expressions,
    parts_of,
)
from gradverify.cases.messages import Path
from gradverify.cases.sizes import RANK
from gradverify.model import WORLD, Ranks
from gradverify.spec.fields import SHARD
from gradverify.spec.inputs import given_keys
from gradverify.spec.source import At, Complaint

if TYPE_CHECKING:
    from gradverify.spec.relations import RawFunction
    from gradverify.spec.schema import CommonEntry

_OF_THE_WHOLE = ("structure", "layout", "make", "constant_at")
"""Keys of a tensor that are about its last dimensions, or build it whole."""


def reserved(raw: Mapping[str, object]) -> tuple[str, ...]:
    """Names in size expressions that are not declared."""
    return (WORLD, RANK) if "world_size" in raw else ()


def ranks_of(entry: CommonEntry) -> Ranks | None:
    """What a function says of its ranks; None where it runs in one process."""
    if not entry.world_size:
        return None
    return Ranks(tuple(entry.output_placement) or ("local",), entry.second_order)


def check_ranks(function: RawFunction) -> Iterator[Complaint]:
    """Yield what is wrong with the keys about ranks."""
    if "world_size" in function.raw:
        yield from _check_across(function)
        return
    for key in ("output_placement", "second_order"):
        if key in function.raw:
            yield Complaint((key,), f"`{key}` says nothing without `world_size`", At.KEY)
    for name, item in function.good.items():
        if "process_group" in _keys(function, name, ()):
            yield Complaint(("inputs", name), "`process_group` needs a `world_size`", At.KEY)
        for path, _ in parts_of(item):
            for key in ("placement", "gradient"):
                if key in _keys(function, name, path):
                    where: Path = ("inputs", name, *path, key)
                    yield Complaint(where, f"`{key}` says nothing without `world_size`", At.KEY)


def _keys(function: RawFunction, name: str, path: Path) -> Collection[str]:
    return given_keys(function.inputs[name], path)


def _check_across(function: RawFunction) -> Iterator[Complaint]:
    for name in reserved(function.raw):
        if name in function.sizes:
            message = f"`{name}` is known where there is a `world_size`: call this size otherwise"
            yield Complaint(("sizes", name), message, At.KEY)
    for key in ("arguments", "init"):
        if key in function.raw:
            message = f"`{key}` conflicts with `world_size`: write a function of tensors as the target"
            yield Complaint((key,), message, At.KEY)
    for name, item in function.good.items():
        if isinstance(item, ConcatSpec):
            yield Complaint(("inputs", name, "concat"), "`concat` conflicts with `world_size`", At.KEY)
        for path, message in _wrong_across(item):
            yield Complaint(("inputs", name, *path), message)


def _wrong_across(item: InputSpec) -> Iterator[tuple[Path, str]]:
    """Yield what cannot be said of an input across ranks, with its path inside the entry."""
    local = [(*path, "shape") for path, spec in parts_of(item) if spec.placement == "local"]
    for path, expression in expressions(item):
        of_rank = isinstance(item, ValueSpec) or any(path[: len(one)] == one for one in local)
        if RANK in expression.names and not of_rank:
            yield path, "`rank` is allowed in the shape of a `local` tensor, in `size` and in `tuple`"
    for path, spec in parts_of(item):
        yield from (((*path, key), message) for key, message in _wrong_placement(spec))


def _wrong_placement(spec: TensorSpec) -> Iterator[tuple[str, str]]:
    if spec.gradient and spec.placement != "replicate":
        yield "gradient", "`gradient` is allowed with `placement: replicate` only"
    for key in ("placement", "gradient"):
        shard, rank = SHARD.fullmatch(getattr(spec, key)), len(spec.shape)
        if shard is not None and int(shard[1]) >= rank:
            yield key, f"a tensor of {rank} dimensions has no dimension {shard[1]} to split"
    for key in _OF_THE_WHOLE if spec.placement in STACKED else ():
        if getattr(spec, key):
            yield key, f"`{key}` conflicts with a tensor of each rank: use replicate or shard"
