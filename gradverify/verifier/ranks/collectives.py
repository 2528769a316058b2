"""Which collectives a rank enters, and what the records of all ranks say: whether they are in step.

Operations of `torch.distributed` pass torch's dispatcher under two names: `c10d::allreduce_` of the
functions that write, `_c10d_functional::all_reduce` of those that return. Both are seen, wherever they are
called.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from gradverify.verifier.dispatching import Dispatched
from gradverify.verifier.ranks.messages import Entered

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

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parents[1])


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
    """`file.py:line` of the innermost frame that is neither torch's nor ours; empty without one."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH, _OURS, "<frozen")):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@dataclass
class Record:
    """What one rank did in a step so far."""

    entered: list[Entered] = field(default_factory=list)
    ended: str = ""
    """`returned` or what it raised; empty while it runs."""


def out_of_step(records: Sequence[Record]) -> str:
    """Why some rank waits for what will never come, in words; empty as long as that is not certain."""
    for rank, record in enumerate(records):
        if record.entered:
            last = record.entered[-1]
            found = "" if record.ended else _without_members(rank, last) or _alone(rank, last, records)
            found = found or _another(rank, last, records)
            if found:
                return found
    return ""


def _without_members(rank: int, last: Entered) -> str:
    """Whether a rank waits for one that takes no part: its number is below those of the target's group."""
    if min(last.members, default=0) < 0:
        return f"{_in(rank, last)}, in another group than the one it was given"
    return ""


def _of(record: Record, like: Entered) -> list[Entered]:
    """What a rank did in one group, sends and receives aside."""
    return [e for e in record.entered if e.group == like.group and e.peer < 0]


def _another(rank: int, last: Entered, records: Sequence[Record]) -> str:
    """Whether another rank of the group is in another operation of the same number."""
    if last.peer >= 0:
        return ""
    number = len(_of(records[rank], last)) - 1
    for other in last.members:
        theirs = _of(records[other], last) if 0 <= other < len(records) else []
        if len(theirs) > number and theirs[number].operation != last.operation:
            return f"{_in(rank, last)}, {_in(other, theirs[number])}"
    return ""


def _alone(rank: int, last: Entered, records: Sequence[Record]) -> str:
    """Whether a rank waits for one that has ended without it."""
    for other in last.members:
        if other == rank or not 0 <= other < len(records) or not records[other].ended:
            continue
        if last.peer < 0:
            missing = len(_of(records[other], last)) < len(_of(records[rank], last))
        else:
            sent = [e for e in records[other].entered if e.peer == rank and e.operation == "send"]
            got = [e for e in records[rank].entered if e.peer == other and e.operation == "recv"]
            missing = other == last.peer and last.operation == "recv" and len(sent) < len(got)
        if missing:
            return f"{_in(rank, last)}, rank {other} {records[other].ended} without it"
    return ""


def waiting(records: Sequence[Record]) -> str:
    """Where the ranks are that have not ended."""
    return ", ".join(_in(rank, r.entered[-1]) for rank, r in enumerate(records) if not r.ended and r.entered)


def _in(rank: int, at: Entered) -> str:
    where = f" ({at.place})" if at.place else ""
    peer = f" {'to' if at.operation == 'send' else 'from'} rank {at.peer}" if at.peer >= 0 else ""
    return f"rank {rank} is in {at.operation}{peer}{where}"
