"""What goes out to the ranks in parts, and what comes back and is made whole."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gradverify.verifier.ranks.messages import Answer, PackedTensor, packed, unpacked
from gradverify.verifier.ranks.placement import MisplacedError, Placed, Placement, parts, whole


def in_parts(
    places: Sequence[Placement], tensors: Sequence[Tensor | None], world: int
) -> list[list[PackedTensor | None]]:
    """For every rank its parts of all tensors."""
    each = [[None] * world if t is None else parts(p, t, world) for p, t in zip(places, tensors, strict=True)]
    return [[part if (part := row[rank]) is None else packed(part) for row in each] for rank in range(world)]


def requiring(given: Sequence[PackedTensor | None], needed: Sequence[bool]) -> tuple[PackedTensor, ...]:
    """The inputs of one rank, those marked of which the gradient is wanted."""
    pairs = zip(given, needed, strict=True)
    return tuple(replace(p, requires_grad=wanted) for p, wanted in pairs if p is not None)


def whole_results(
    answers: Sequence[Answer],
    placed: Sequence[Placement],
    like: Sequence[Tensor],
    differs: Callable[[int, int, Tensor, Tensor], None],
) -> tuple[list[Tensor | None], list[bool]]:
    """The whole results, and which of them some rank can differentiate.

    None where no rank has one, zeros for ranks that have none where others do.
    """
    device = like[0].device if like else torch.device("cpu")
    found: list[Tensor | None] = []
    connected: list[bool] = []
    for position, place in enumerate(placed):
        given = [a.results[position] if position < len(a.results) else None for a in answers]
        connected.append(any(g is not None and g.requires_grad for g in given))
        tensors = [None if g is None else unpacked(g) for g in given]
        first = next((t for t in tensors if t is not None), None)
        if first is None:
            found.append(None)
            continue
        filled = [torch.zeros_like(first) if t is None else t for t in tensors]
        found.append(_made_whole(place, filled, partial(differs, position)).to(device))
    return found, connected


def _made_whole(
    place: Placement, given: Sequence[Tensor], differs: Callable[[int, Tensor, Tensor], None]
) -> Tensor:
    try:
        return whole(place, given, differs)
    except (RuntimeError, IndexError) as error:
        shapes = ", ".join(str(list(part.shape)) for part in given)
        raise MisplacedError(f"what the ranks returned, of shapes {shapes}, is no `{place.word}`") from error


def with_shapes(placed: Placed, results: Sequence[PackedTensor | None]) -> Placed:
    """How an output lies on the ranks, now that its shapes are known."""
    shapes = tuple(r.shape for r in results if r is not None)
    if placed.value.kind != "local" or len(set(shapes)) < 2:
        return placed
    return replace(placed, gradient=replace(placed.gradient, shapes=shapes))


def write_back(
    answers: Sequence[Answer], places: Sequence[Placement], tensors: Sequence[Tensor | None]
) -> None:
    """Write into the whole tensors what ranks have written into their parts."""
    for number in sorted({k for a in answers for k in a.written}):
        tensor = tensors[number]
        if tensor is None or any(
            n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True)
        ):
            continue
        before = parts(places[number], tensor, len(answers))
        after = [
            unpacked(a.written[number]) if number in a.written else part
            for a, part in zip(answers, before, strict=True)
        ]
        with torch.no_grad():
            tensor.copy_(whole(places[number], [p for p in after if p is not None], lambda *_: None))


def draw_too(answers: Sequence[Answer]) -> None:
    """Whoever looks at the random states here must see that numbers were drawn."""
    if any(a.drew for a in answers):
        torch.rand(1)


def seed_of_ranks() -> int:
    """Every rank starts from the same random states: those of this process, whatever they are."""
    return zlib.crc32(packed(torch.get_rng_state()).data)


def not_counted(places: Sequence[Placement], given: Sequence[Tensor | None], rank: int) -> frozenset[int]:
    """Outputs that count on another rank alone."""
    pairs = enumerate(zip(places, given, strict=True))
    return frozenset(k for k, (p, g) in pairs if g is not None and p.kind == "on" and p.number != rank)


def of_one_rank(placed: Placement, rank: int) -> Placement:
    """What one rank returned, where others return as much."""
    return Placement("on", rank) if placed.kind in {"replicate", "partial", "average"} else placed
