"""Which collectives a rank enters, and what the records of all ranks say: whether they are in step.

Operations of `torch.distributed` pass torch's dispatcher under two names: `c10d::allreduce_` of the
functions that write, `_c10d_functional::all_reduce` of those that return. Both are seen, wherever they are
called.

What goes out to the ranks in parts, and what comes back and is made whole.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from gradverify.verifier.guard.dispatching import Dispatched, users_frame
from gradverify.verifier.ranks.messages import Answer, Entered, PackedTensor, packed, unpacked
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


NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})

WRITING = "c10d"
"""Those that take memory as it lies; the others copy what is not contiguous."""

NOT_REPORTED = frozenset({"wait_tensor", "monitored_barrier_", "recv_any_source_"})
"""What waits for no other rank, is a barrier of torch's own, or says not for which rank it waits."""

LATE_SECONDS = 0.02
"""By how much a rank comes late to each collective, where one is to: far more than a collective takes."""

NAMED = {
    "allreduce": "all_reduce", "allgather": "all_gather", "allgather_base": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced": "all_gather", "reduce_scatter_base": "reduce_scatter_tensor",
    "alltoall": "all_to_all", "alltoall_base": "all_to_all_single", "allreduce_coalesced": "all_reduce",
}  # fmt: skip
"""What users call operations that the dispatcher knows by another name."""

resolve_group: Any = getattr(dist.distributed_c10d, "_resolve_process_group", None)
"""The group of a name, as operations that return have it. It has no public name."""


class Watched(Dispatched):  # type: ignore[no-untyped-call]
    """Tells of every collective before it begins."""

    def __init__(self, tell: Callable[[Entered], object]) -> None:
        super().__init__()
        self._tell = tell
        self.late = False
        self.told = False
        """It has told of a collective since this was set back."""

    @property
    def may_leave(self) -> bool:
        """Not after a collective: other ranks would not enter it again."""
        return not self.told

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Tell of a collective, then run it."""
        namespace, _, name = func._schema.name.partition("::")  # noqa: SLF001 - it has no public name
        if namespace in NAMESPACES and name not in NOT_REPORTED:
            if self.late:
                time.sleep(LATE_SECONDS)
            self.told = True
            if namespace == WRITING:
                _refuse_gaps(name, tree_leaves((args, given)))
            self._tell(entered(name, (*args, *given.values())))
        return func(*args, **given)


def _refuse_gaps(name: str, values: Sequence[Any]) -> None:
    """Raise as NCCL does for a tensor with gaps in its memory: gloo sends and overwrites what lies there."""
    is_whole: Any = torch.ops.aten.is_non_overlapping_and_dense
    for value in values:
        if isinstance(value, Tensor) and not is_whole(value):
            said = f"{NAMED.get(name.strip('_'), name.strip('_'))}: tensors must be contiguous"
            raise ValueError(f"{said}; NCCL raises this, gloo sends the memory between their entries")


def entered(name: str, args: Sequence[Any]) -> Entered:
    """What an operation of the dispatcher does, in the user's words."""
    group = next((g for g in map(_group_of, args) if g is not None), None)
    members = tuple(dist.get_process_group_ranks(group)) if group is not None else ()
    name = name.strip("_")
    numbers = [a for a in args if isinstance(a, int) and not isinstance(a, bool)]
    peer = members[numbers[0]] if name in {"send", "recv"} and numbers and members else -1
    shown = group.group_name if group is not None else ""
    return Entered(NAMED.get(name, name), shown, members, peer, place())


def _group_of(value: Any) -> dist.ProcessGroup | None:  # noqa: ANN401 - an argument of an operation
    if isinstance(value, dist.ProcessGroup):
        return value
    if isinstance(value, torch.ScriptObject):
        try:
            return dist.ProcessGroup.unbox(value)
        except (RuntimeError, TypeError):
            return None
    if isinstance(value, str) and resolve_group is not None:
        with contextlib.suppress(LookupError, RuntimeError):
            found: dist.ProcessGroup = resolve_group(value)
            return found
    return None


def place() -> str:
    """`file.py:line` of the user's code; empty without any."""
    frame = users_frame()
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


@dataclass
class Record:
    """What one rank did in a step so far."""

    entered: list[Entered] = field(default_factory=list)
    ended: str = ""
    """`returned` or what it raised; empty while it runs."""


def out_of_step(records: Sequence[Record]) -> str:
    """Why some rank waits for what will never come, in words; empty as long as that is not certain."""
    for rank, record in enumerate(records):
        for last in record.entered[-1:]:
            if min(last.members, default=0) < 0 and not record.ended:  # below those of the target's group
                return f"{_in(rank, last)}, in another group than the one it was given"
            others = (k for k in last.members if 0 <= k < len(records) and last.peer < 0)
            if found := next(filter(None, (_apart(rank, k, last, records) for k in others)), ""):
                return found
    return ""


def _apart(rank: int, other: int, last: Entered, records: Sequence[Record]) -> str:
    """Whether another rank of the group is in another operation of the same number, or ended without it."""
    mine, theirs = (
        [e for e in records[k].entered if e.group == last.group and e.peer < 0] for k in (rank, other)
    )
    if len(theirs) >= len(mine):
        there = theirs[len(mine) - 1]
        return f"{_in(rank, last)}, {_in(other, there)}" if there.operation != last.operation else ""
    is_alone = records[other].ended and not records[rank].ended
    return f"{_in(rank, last)}, rank {other} {records[other].ended} without it" if is_alone else ""


def waiting(records: Sequence[Record]) -> str:
    """Where the ranks are that have not ended."""
    return ", ".join(_in(rank, r.entered[-1]) for rank, r in enumerate(records) if not r.ended and r.entered)


def _in(rank: int, at: Entered) -> str:
    where = f" ({at.place})" if at.place else ""
    peer = f" {'to' if at.operation == 'send' else 'from'} rank {at.peer}" if at.peer >= 0 else ""
    return f"rank {rank} is in {at.operation}{peer}{where}"
