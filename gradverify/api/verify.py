"""`verify`: everything the command checks, on the inputs of a test and in its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradverify.api.call import as_tuple
from gradverify.api.distributed import REFERENCE, OnRanks, report_of_ranks
from gradverify.api.gradient_error import passed
from gradverify.api.messages import target_of
from gradverify.api.states import states_kept
from gradverify.errors import UsageError
from gradverify.events import Verify
from gradverify.model import (
    Case,
    Finding,
    InputSource,
    Settings,
    TargetPlan,
    TargetReport,
)
from gradverify.session.aggregate import TargetState
from gradverify.verifier import guard
from gradverify.verifier.process.run import verify as verify_target
from gradverify.verifier.targets.discover import describe_target
from gradverify.verifier.verify.verification import Live

GIVEN = "inputs"
"""Under which name the case finds the arguments of the call."""

ONE_PROCESS = 0
"""The `world_size` of what runs in the caller's process."""


def verify(  # noqa: PLR0913 - what decides the verdict, by name
    fn: Callable[..., Any] | type[torch.autograd.Function],
    inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    reference: Callable[..., Any] | None = None,
    *,
    rtol: float = Settings.rtol,
    atol: float = Settings.atol,
    name: str = "",
    world_size: int = ONE_PROCESS,
    placements: str | Mapping[str, str] | Sequence[str | Mapping[str, str]] = "local",
    output_placements: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = "local",
    second_order: bool = False,
) -> TargetReport:
    """Verify first and second order, the contract of backward, and a composite reference where one is given.

    `fn` is an autograd Function (the class or its `apply`) or any callable. `inputs` are its arguments, by
    position or by name: tensors that require grad are differentiated, and if none does, every floating one.
    An entry is wrong only beyond its measured error and atol + rtol · (its size + the typical size of its
    row). `name` is what the report calls it.

    With a `world_size` the target runs on so many ranks, processes that are started for it and import it:
    it is at the top of a module. Inputs are whole tensors; a `local` or `partial` one has a row for each
    rank. A process group is passed as `{"process_group": "world"}`. `placements` (one for all inputs, or
    one for each), `output_placements` and `second_order` are the words of a spec (docs/distributed.md).

    Returns the report of a pass; its warnings are issued as warnings. Raises `GradientError` with the text
    report where something is wrong or could not be verified, `UsageError` for what cannot be called, and
    without a tensor to differentiate.
    """
    __tracebackhide__ = True  # the failure of a test is the report
    if not callable(fn):
        raise UsageError(f"verify: fn is to be an autograd Function or a callable, not {type(fn).__name__}")
    given = inputs if isinstance(inputs, Mapping) else as_tuple(inputs)
    values = list(given.values() if isinstance(given, Mapping) else given)
    settings = Settings(rtol=rtol, atol=atol, device=device_of(values, "verify"))
    words = (placements, output_placements, second_order)
    if world_size == ONE_PROCESS and words != ("local", "local", False):
        raise UsageError("verify: placements are of several ranks: give a world_size")
    with states_kept(), guard.LeavingTheCallers():
        if world_size != ONE_PROCESS:
            asked = OnRanks(world_size, *words)
            report = report_of_ranks(fn, given, asked, settings, name, reference)
        else:
            report = report_of(live_of(fn, given, reference), name, settings)
    return passed(report)


def device_of(values: Sequence[Any], name: str) -> str:
    """Where the first floating or complex tensor is; raises `UsageError` where there is none."""
    tensors = [v for v in values if isinstance(v, Tensor) and (v.is_floating_point() or v.is_complex())]
    if not tensors:
        raise UsageError(f"{name}: none of the inputs is a floating or complex tensor")
    return str(tensors[0].device)


def live_of(
    fn: Callable[..., Any], given: Mapping[str, Any] | Sequence[Any], reference: Callable[..., Any] | None
) -> Live:
    """The objects of a call on given inputs."""

    def arguments(*_: Any, **__: Any) -> Any:  # noqa: ANN401
        return ((), dict(given)) if isinstance(given, Mapping) else list(given)

    owner = getattr(fn, "__self__", None)
    applied = isinstance(owner, type) and issubclass(owner, torch.autograd.Function) and fn == owner.apply
    named = {GIVEN: arguments, **({} if reference is None else {REFERENCE: reference})}
    return Live(owner if applied else fn, named)


def report_of(live: Live, name: str, settings: Settings, open_sized: tuple[Case, ...] = ()) -> TargetReport:
    """What the verifier says of an object on the inputs under `GIVEN`, and at sizes that it may refuse."""
    where = target_of(live.value)
    called = name or where.name
    plan = TargetPlan(
        called,
        called,
        InputSource.SPEC,
        cases=(Case("", settings.seed, hook=GIVEN),),
        open_sized=open_sized,
        reference=REFERENCE if REFERENCE in live.named else "",
        rtol=settings.rtol,
        atol=settings.atol,
    )
    target = replace(describe_target(live.value, called, called, where.file), line=where.line)
    state = TargetState(target, plan, settings, Path(where.file))
    for event in verify_target(Verify(target, plan, settings), live):
        state.add(event, _captured_by_the_test)
    report = state.report()
    reported_here = (
        replace(f, case=f.case if _is_elsewhere(f) else None, reproduce="") for f in report.findings
    )
    return replace(report, findings=tuple(reported_here))


def _is_elsewhere(finding: Finding) -> bool:
    """Whether it was made on other inputs than the caller's."""
    return finding.case is not None and bool(finding.case.id)


def _captured_by_the_test(_until: int | None) -> str:
    """Nothing: what user code prints in this process is the test runner's to show."""
    return ""
