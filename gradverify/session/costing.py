"""What verifying a target would cost, estimated before it runs: calls of forward and backward, and memory.

A model of the counted calls: of a gradient that a few probes prove at every point, as they prove nearly
every right one. Where they do not, the Jacobian is measured, which is counted apart. The shares below are
from the counts of the Functions in `tests/zoo/general`; a test holds them to it.

Cases whose tensors cannot fit into memory are known before anything is run, too.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from gradverify.model import (
    Case,
    CasePoint,
    Effort,
    Engine,
    Evaluations,
    Finding,
    Settings,
    TargetPlan,
    TensorInput,
    memory_text,
    tensors_of,
)
from gradverify.model.points import is_declared, is_floating, points_of
from gradverify.rules import RULES, Family, rule
from gradverify.session.request import Request

FIRST_DRAW = Evaluations(74, 66)
"""The first typical draw with one input: both orders, the contract, the sweep, the transforms."""

FOR_A_SUBSET = Evaluations(3, 3)
"""Each further requires_grad set."""

NEXT_DRAW = Evaluations(30, 32)
"""Every further typical draw, and what a composite refines there."""

DECLARED = Evaluations(14, 12)
"""A declared wide or special point."""

UNDECLARED = Evaluations(8, 3)
"""An undeclared draw."""

NATIVE = Evaluations(18, 10)
"""Each dtype at one case."""

UNLISTED = Evaluations(14, 8)
"""A case at unlisted sizes."""

PAST = Evaluations(14, 8)
"""A case past a constant of the source."""

A_COLUMN = 42
"""Forwards for one column of a Jacobian that is measured, at most: 6, then 24 at other steps, and 12 to
confirm what they say."""

RESOLVED_COLUMN = Evaluations(8, 1)
"""One column that resolves at once, and a row for it: what thorough effort measures without need. Where
columns can be measured together it takes less."""

ALL_SUBSETS = 4
"""Up to so many inputs, every requires_grad set is swept; of more, single ones and all but one."""

STEADY = 3.0
"""Times what the first calls took, in which as many again come if none hangs: twice, and to spare."""

MARGIN = 2.0
"""Times the usual calls of a target: what is wrong, or no probe proves, takes more of them."""

COPIES = 8
"""Of the tensors of a call that verification holds at once, at least: arguments, the copies that calls get,
outputs, gradients, directions. Some 40 were measured for an elementwise Function."""

_LIMIT_OF_GROUP = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Cost:
    """What verifying one target takes."""

    usual: Evaluations
    """Where a few probes prove the gradient at every point."""
    a_point: int
    """Forwards, at most, at a point of the largest case where they do not."""
    input_bytes: int
    """What the tensors of one call of the largest case take."""


def cost_of(plan: TargetPlan, settings: Settings) -> Cost:
    """The cost of a plan."""
    every = (*plan.cases, *plan.open_sized, *plan.degenerate, *(one.case for one in plan.beyond))
    usual = sum((_of_case(case, plan, settings) for case in plan.cases), Evaluations())
    usual += _times(UNLISTED, len(plan.open_sized) + len(plan.degenerate))
    usual += _times(PAST, len(plan.beyond))
    columns = max((_coordinates(case) for case in every), default=0)
    return Cost(usual, A_COLUMN * columns, max((tensor_bytes(case) for case in every), default=0))


def check_names(plan: TargetPlan, settings: Settings) -> tuple[str, ...]:
    """The families of checks that would run, in the order in which they do."""
    ignored = (*settings.ignore, *(code for code, _ in plan.ignore))
    second = plan.ranks is None or plan.ranks.second_order
    families = [Family.GRADCHECK, Family.CONTRACT, *([Family.GRADGRADCHECK] if second else [])]
    families += [Family.REFERENCE] if plan.reference or plan.surrogate is not None else []
    families += [Family.PRECISION] if _dtypes(plan, settings) else []
    return tuple(f.value for f in families if _is_asked(f, settings, ignored))


def _is_asked(family: Family, settings: Settings, ignored: tuple[str, ...]) -> bool:
    """Whether some code of a family is selected and not ignored; the first order is what others build on."""
    codes = [r.code for r in RULES if r.family is family]
    kept = [c for c in codes if not c.startswith(ignored)]
    return family is Family.GRADCHECK or any(map(settings.selects, kept))


def _dtypes(plan: TargetPlan, settings: Settings) -> int:
    """How many native dtypes a target is judged in: those that are listed, else float32."""
    listed = settings.dtypes or plan.dtypes
    cheap = settings.effort is Effort.QUICK or settings.engine is Engine.TORCH
    return sum(d != "float64" for d in listed) if listed else int(not cheap)


def enough_time(calls: int, seconds: float, limit: float, usual: Evaluations) -> str:
    """What to try after a timeout of `limit` seconds, of which so many calls took so many `seconds`.

    The count is the last power of two that was reached: calls that go on as they began reach the next one in
    as long again. `usual` is what a target takes whose gradient a few probes prove.
    """
    if limit > STEADY * seconds:
        return (
            f"A call did not return for about {limit - seconds:.2g} s: is there an endless loop? Otherwise "
            "use smaller sizes, or a longer --timeout."
        )
    each = seconds / calls
    said = f"{calls} calls of forward and backward took {seconds:.3g} s, {each:.2g} s each."
    needed = usual.forward + usual.backward
    if needed <= calls:  # it is not usual, or was not planned yet
        return f"{said} Use smaller sizes, or a longer --timeout."
    enough = _round_up(MARGIN * each * needed)
    return f"{said} About {needed} are needed: `--timeout {enough}` is enough for that. Or use smaller sizes."


def _round_up(seconds: float) -> int:
    """To one digit, and no less than a second."""
    unit: int = 10 ** int(math.log10(max(seconds, 1.0)))
    return unit * math.ceil(seconds / unit)


def _of_case(case: Case, plan: TargetPlan, settings: Settings) -> Evaluations:
    total, subsets = Evaluations(), _subsets(len(_differentiable(case)))
    points = points_of(case, settings.effort)
    for number, (point, draw) in enumerate(points):
        if not number:
            total += FIRST_DRAW + _times(FOR_A_SUBSET, subsets - 1)
        elif not is_declared(point, draw):
            total += UNDECLARED
        else:
            total += NEXT_DRAW if point == points[0][0] else DECLARED
    total += _times(NATIVE, _dtypes(plan, settings))
    if settings.effort is Effort.THOROUGH:
        measured = sum(is_declared(*where) for where in points)
        total += _times(RESOLVED_COLUMN, measured * _coordinates(case))
    return total


def _times(cost: Evaluations, count: int) -> Evaluations:
    return Evaluations(cost.forward * count, cost.backward * count)


def _subsets(count: int) -> int:
    """requires_grad sets that are swept, that of all inputs among them."""
    return max(1, 2**count - 1 if count <= ALL_SUBSETS else 2 * count + 1)


def _tensors(case: Case) -> tuple[TensorInput, ...]:
    return tuple(t for one in case.inputs for t in tensors_of(one))


def _differentiable(case: Case) -> tuple[TensorInput, ...]:
    return tuple(t for t in _tensors(case) if is_floating(t) and t.requires_grad is not False)


def _coordinates(case: Case) -> int:
    """Columns of the Jacobian; a hook's are not known before it is called."""
    return sum(math.prod(t.shape) * (1 + t.dtype.startswith("complex")) for t in _differentiable(case))


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
