"""Cases whose tensors cannot fit into memory: known before anything is run."""

from __future__ import annotations

import contextlib
import math
import os
import re
from dataclasses import replace
from pathlib import Path

from gradverify.model import Case, CasePoint, Finding, TargetPlan, TensorInput, memory_text, tensors_of
from gradverify.rules import rule
from gradverify.session.request import Request

COPIES = 8
"""Of the tensors of a call that verification holds at once, at least: arguments, the copies that calls get,
outputs, gradients, directions. Some 40 were measured for an elementwise Function."""

_LIMIT_OF_GROUP = Path("/sys/fs/cgroup/memory.max")


def _tensors(case: Case) -> tuple[TensorInput, ...]:
    return tuple(t for one in case.inputs for t in tensors_of(one))


def tensor_bytes(case: Case) -> int:
    """What the tensors of one call take."""
    return sum(map(_bytes, _tensors(case)))


def fitting(plan: TargetPlan, request: Request) -> tuple[TargetPlan, tuple[Finding, ...]]:
    """The plan without the cases that cannot fit, and a GV903 for each of those that its spec asks for."""
    limit = request.memory << 20 or _of_this_machine(request.settings.device)

    def fits(case: Case) -> bool:
        return not limit or COPIES * tensor_bytes(case) <= limit

    def kept(cases: tuple[Case, ...]) -> tuple[Case, ...]:
        return tuple(case for case in cases if fits(case))

    whose = "that --memory allows" if request.memory else "of this machine"
    small = replace(
        plan,
        cases=kept(plan.cases),
        spares=kept(plan.spares),
        open_sized=kept(plan.open_sized),
        degenerate=kept(plan.degenerate),
        beyond=tuple(one for one in plan.beyond if fits(one.case)),
    )
    too_large = (case for case in plan.cases if not fits(case))
    return small, tuple(_too_large(case, f"{memory_text(limit)} {whose}") for case in too_large)


def _too_large(case: Case, limit: str) -> Finding:
    largest = max(_tensors(case), key=_bytes)
    of_one, needed = memory_text(tensor_bytes(case)), memory_text(COPIES * tensor_bytes(case))
    shape = ", ".join(map(str, largest.shape))
    return Finding(
        "GV903",
        rule("GV903").severity,
        f"the inputs of case {case.id} take {of_one} (`{largest.name}` is [{shape}]): verifying it needs at "
        f"least {needed}, more than the {limit}",
        case=CasePoint(case.id, case.sizes, case.options),
        hint="Use smaller sizes: a backward is right or wrong at small sizes as at large ones.",
    )


def _bytes(tensor: TensorInput) -> int:
    bits = re.search(r"\d+$", tensor.dtype)  # a bool takes a byte
    return math.prod(tensor.shape) * (int(bits[0]) // 8 if bits else 1)


def _of_this_machine(device: str) -> int:
    """Bytes of memory, or fewer where the system gives this process fewer; 0 where that is not known."""
    if device.startswith("cuda"):
        return 0
    found = []
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError):
        found.append(int(_LIMIT_OF_GROUP.read_text("ascii")))
    return min((one for one in found if one > 0), default=0)
