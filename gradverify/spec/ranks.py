"""Functions that run on several ranks: what their keys may say together, and inputs as all ranks have them.

A `local` tensor is that of every rank in a row: its first dimension counts the ranks. Where its shape depends
on `rank`, all entries of all ranks are in one dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gradverify.model import WORLD, Input, LiteralInput, Nested, Ranks, TensorInput
from gradverify.spec.fields_function import SHARD
from gradverify.spec.inputs import InputSpec, expressions, tensors_of
from gradverify.spec.messages import Path
from gradverify.spec.schema import ConcatEntry, GroupEntry, SizeEntry, TensorEntry, TupleEntry
from gradverify.spec.sizes import RANK
from gradverify.spec.source import At, Complaint
from gradverify.spec.tensors import rank

if TYPE_CHECKING:
    from gradverify.spec.relations import RawFunction
    from gradverify.spec.schema import CommonEntry

GROUP = "torch.distributed:group.WORLD"
"""What `{process_group: world}` stands for, where a process has joined one."""

STACKED = ("local", "partial")
"""Placements of which every rank has a tensor of its own."""

_OF_THE_WHOLE = ("structure", "layout", "make", "constant_at")
"""Keys of a tensor that are about its last dimensions, or build it whole."""

Binding = Callable[[Mapping[str, int]], Input]


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
        if isinstance(item.entry, GroupEntry):
            yield Complaint(("inputs", name), "`process_group` needs a `world_size`", At.KEY)
        for tensor in tensors_of(item):
            for key in ("placement", "gradient"):
                if key in tensor.entry.model_fields_set:
                    path: Path = ("inputs", name, *tensor.path, key)
                    yield Complaint(path, f"`{key}` says nothing without `world_size`", At.KEY)


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
        if isinstance(item.entry, ConcatEntry):
            yield Complaint(("inputs", name, "concat"), "`concat` conflicts with `world_size`", At.KEY)
        for path, message in _wrong_across(item):
            yield Complaint(("inputs", name, *path), message)


def _wrong_across(item: InputSpec) -> Iterator[tuple[Path, str]]:
    """Yield what cannot be said of an input across ranks, with its path inside the entry."""
    for path, expression in expressions(item):
        if RANK in expression.names and not _may_name_a_rank(item, path):
            yield path, "`rank` is allowed in the shape of a `local` tensor, in `size` and in `tuple`"
    for tensor in tensors_of(item):
        entry = tensor.entry
        if entry.gradient and entry.placement != "replicate":
            yield (*tensor.path, "gradient"), "`gradient` is allowed with `placement: replicate` only"
        for key in ("placement", "gradient"):
            shard = SHARD.fullmatch(getattr(entry, key))
            if shard is not None and int(shard[1]) >= rank(entry):
                message = f"a tensor of {rank(entry)} dimensions has no dimension {shard[1]} to split"
                yield (*tensor.path, key), message
        if placement_of(tensor) in STACKED:
            for key in _OF_THE_WHOLE:
                if getattr(entry, key):
                    message = f"`{key}` conflicts with a tensor of each rank: use replicate or shard"
                    yield (*tensor.path, key), message


def _may_name_a_rank(item: InputSpec, path: Path) -> bool:
    if isinstance(item.entry, SizeEntry | TupleEntry):
        return True
    of = next((t for t in tensors_of(item) if path[: len(t.path)] == t.path), None)
    in_shape = of is not None and (of.inline or path[len(of.path) : len(of.path) + 1] == ("shape",))
    return of is not None and in_shape and placement_of(of) == "local"


def placement_of(tensor: InputSpec) -> str:
    """How a tensor lies on the ranks, as the spec says or by default."""
    return tensor.entry.placement or "local"


def tensor_across(
    tensor: InputSpec, sizes: Mapping[str, int], bound: Callable[[InputSpec, Mapping[str, int]], TensorInput]
) -> TensorInput:
    """A tensor as all ranks have it. Raises what `bound`, which binds that of one rank, raises."""
    entry: TensorEntry = tensor.entry
    place, world = placement_of(tensor), sizes[WORLD]
    if place not in STACKED:
        return replace(bound(tensor, sizes), placement=place, gradient=entry.gradient)
    each = [bound(tensor, {**sizes, RANK: number}) for number in range(world)]
    shapes = tuple(one.shape for one in each)
    value: Nested = None if each[0].value is None else tuple(one.value for one in each)
    if len(set(shapes)) == 1:
        return replace(each[0], shape=(world, *shapes[0]), placement=place, value=value)
    total = sum(map(math.prod, shapes))
    return replace(each[0], shape=(total,), placement=place, rank_shapes=shapes)


def literal_across(item: InputSpec, sizes: Mapping[str, int], bound: Binding) -> Input | None:
    """A number or tuple that names a rank, as each rank has it; None for everything else."""
    named = any(RANK in expression.names for _, expression in expressions(item))
    if not named or not isinstance(item.entry, SizeEntry | TupleEntry):
        return None
    every = [bound({**sizes, RANK: number}) for number in range(sizes[WORLD])]
    values = tuple(made.value for made in every if isinstance(made, LiteralInput))
    return LiteralInput(item.name, values[0], values)
