"""Inputs of a target that communicates: found in a world of one rank, and said of several."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch.distributed as dist

from gradverify.deduced import Deduced, DeducedInput, DeducedLiteral, DeducedSize
from gradverify.source import GROUPS
from gradverify.verifier.infer.known import Known
from gradverify.verifier.infer.objects import Found
from gradverify.verifier.ranks.messages import GROUP_PATHS

NUMBERS_OF_RANKS = {
    **dict.fromkeys(("world_size", "world", "num_ranks", "nranks", "group_size", "tp_size"), "world"),
    **dict.fromkeys(("rank", "my_rank", "local_rank", "tp_rank"), "rank"),
}
"""What authors call a parameter for the number of ranks, or for the rank it runs on: how a spec says it."""

SPLIT = 2
"""What divides all sizes: what is split goes to two ranks."""


def with_groups(known: Known) -> Known:
    """The same, where parameters that are called so take the group of all ranks."""
    (path,) = GROUP_PATHS
    group = Found(path, dist.group.WORLD, annotated=True)
    named = {p.name: (group,) for p in known.parameters if p.name in GROUPS}
    caller = replace(known.caller, live={**known.caller.live, path: group.value})
    return replace(known, objects={**known.objects, **named}, caller=caller)


def said_of_ranks(found: Deduced) -> Deduced:
    """The entry on several ranks: what is a number of ranks follows them, and sizes can be split."""
    inputs = tuple(_said(i) for i in found.inputs)
    settled = {i.name for i, before in zip(inputs, found.inputs, strict=True) if i != before}
    doubts = tuple(d for d in found.doubts if d.name not in settled | GROUPS)
    return replace(found, inputs=inputs, sizes=tuple(_sizes(found)), doubts=doubts, on_ranks=True)


def _said(one: DeducedInput) -> DeducedInput:
    said = NUMBERS_OF_RANKS.get(one.name, "")
    return DeducedSize(one.name, said) if said and isinstance(one, DeducedLiteral) else one


def _sizes(found: Deduced) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each as it was, but even, and no two alike."""
    taken: set[int] = set()
    for name, (value, *_) in found.sizes:
        even = next(s for s in itertools.count(value + value % SPLIT, SPLIT) if s not in taken)
        taken.add(even)
        yield name, (even,)
