"""`gradcheck_distributed`: a Function that communicates, in a program that already runs on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradverify.api.gradient_error import passed
from gradverify.api.messages import target_of
from gradverify.api.states import states_kept
from gradverify.errors import UsageError
from gradverify.events import Verify
from gradverify.model import (
    WORLD,
    Case,
    Input,
    InputSource,
    LiteralInput,
    Ranks,
    Settings,
    Target,
    TargetPlan,
    TargetReport,
    TensorInput,
)
from gradverify.session.aggregate import TargetState
from gradverify.spec import fields_ranks
from gradverify.verifier import guard
from gradverify.verifier.building import Live
from gradverify.verifier.collect.discover import describe_target
from gradverify.verifier.ranks.messages import PackedTensor, packed, unpacked
from gradverify.verifier.ranks.placement import Placement, whole
from gradverify.verifier.ranks.program import Program, calls_here, follow
from gradverify.verifier.run import verify as verify_target

REFERENCE = "reference"
"""Under which name a case finds a composite reference."""


def gradcheck_distributed(  # noqa: PLR0913 - tolerances and words of a spec
    fn: Callable[..., Any] | type[torch.autograd.Function],
    local_inputs: Tensor | Sequence[Any],
    *,
    placements: str | Mapping[str, str] | Sequence[str | Mapping[str, str]] = "local",
    output_placements: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = "local",
    second_order: bool = False,
    rtol: float = Settings.rtol,
    atol: float = Settings.atol,
    name: str = "",
) -> TargetReport:
    """Verify a target across the ranks of a program that runs: every rank calls this, as under `torchrun`.

    `fn` takes this rank's tensors; a process group, or anything else that no other process can be sent, it
    holds itself (`lambda x: Copy.apply(x, group)`). `local_inputs` are this rank's arguments in float64:
    those that require grad are differentiated, and if none does, every floating one. `placements` and
    `output_placements` are the words of a spec, one for each or one for all: `local`, `replicate`,
    `shard(0)`, `partial`; `{"replicate": "partial"}` where each rank returns its part of the gradient.

    Returns the report of a pass, on every rank the same. Raises `GradientError` with the text report where
    something is wrong or could not be judged, and `UsageError` for what cannot be called.
    """
    __tracebackhide__ = True  # the failure of a test is the report
    if not dist.is_initialized():
        raise UsageError("gradcheck_distributed: call torch.distributed.init_process_group first")
    try:
        import_module("numpy")
    except ImportError:
        raise UsageError("gradcheck_distributed: torch needs NumPy to send objects between ranks") from None
    values = [local_inputs] if isinstance(local_inputs, Tensor) else list(local_inputs)
    words = one_for_each(placements, len(values), "gradcheck_distributed")
    outputs = outputs_on_ranks(output_placements, second_order, "gradcheck_distributed")
    group = dist.new_group(backend="gloo")
    try:
        verdict = _verdict(fn, values, words, outputs, group, rtol, atol, name)
    finally:
        dist.destroy_process_group(group)
    if isinstance(verdict, str):
        raise UsageError(f"gradcheck_distributed: {verdict}")
    return passed(verdict)


def _verdict(  # noqa: PLR0913 - what the call decides
    fn: Callable[..., Any],
    values: Sequence[Any],
    words: Sequence[Mapping[str, str]],
    ranks: Ranks,
    group: dist.ProcessGroup,
    rtol: float,
    atol: float,
    name: str,
) -> TargetReport | str:
    """The report that all ranks are given, or why there is none."""
    device = next((v.device for v in values if isinstance(v, Tensor)), torch.device("cpu"))
    every: list[Any] = [None] * dist.get_world_size(group)
    function = fn.apply if isinstance(fn, type) and issubclass(fn, torch.autograd.Function) else fn
    calls = calls_here(function, device)
    try:
        dist.all_gather_object(every, [packed(v) if isinstance(v, Tensor) else v for v in values], group)
    except (TypeError, AttributeError, ValueError) as error:
        return f"an argument cannot be sent to other ranks: let fn hold it ({error})"
    if dist.get_rank(group) > 0:
        verdict: TargetReport | str = follow(calls, group)
        return verdict
    program = Program(calls, group)
    found: TargetReport | str = "the first rank failed before it had a verdict"
    try:
        with states_kept(), guard.LeavingTheCallers():
            chosen = any(isinstance(one, PackedTensor) and one.requires_grad for one in every[0])
            inputs = [_input(k, each, words[k], chosen) for k, each in enumerate(zip(*every, strict=True))]
            where = target_of(fn)
            target = replace(describe_target(fn, where.name, where.name, where.file), line=where.line)
            settings = Settings(rtol=rtol, atol=atol, device=str(device))
            live = Live(fn, worlds=program)
            found = report_on_ranks(live, target, program.size, tuple(inputs), ranks, settings, name)
    except UsageError as error:
        found = str(error)
    finally:
        program.end(found)
    return found


def report_on_ranks(
    live: Live,
    target: Target,
    world: int,
    inputs: tuple[Input, ...],
    ranks: Ranks,
    settings: Settings,
    name: str,
) -> TargetReport:
    """What the verifier says of a target on a world, on inputs whose values are given."""
    called = name or target.name
    target = replace(target, name=called)
    case = Case("", settings.seed, sizes=((WORLD, world),), inputs=inputs)
    plan = TargetPlan(
        called,
        called,
        InputSource.SPEC,
        cases=(case,),
        ranks=ranks,
        reference=REFERENCE if REFERENCE in live.named else "",
        rtol=settings.rtol,
        atol=settings.atol,
    )
    state = TargetState(target, plan, settings, Path(target.file))
    for event in verify_target(Verify(target, plan, settings), live):
        state.add(event, lambda _: "")
    report = state.report()
    return replace(report, findings=tuple(replace(f, case=None, reproduce="") for f in report.findings))


def _input(number: int, each: Sequence[Any], words: Mapping[str, str], chosen: bool) -> Input:  # noqa: FBT001
    """An argument of all ranks as a case has it; `chosen`: some require grad, and these alone are meant.

    Raises `UsageError`.
    """
    name = f"input{number}"
    if not isinstance(each[0], PackedTensor):
        same = all(value == each[0] for value in each)
        return LiteralInput(name, each[0], () if same else tuple(each))
    tensors = [unpacked(one) for one in each]
    place = Placement("local") if words["placement"] == "partial" else Placement.of(words["placement"])
    shapes = tuple(tuple(t.shape) for t in tensors)
    uneven = shapes if place.kind == "local" and len(set(shapes)) > 1 else ()
    value = whole(place, tensors, lambda *_: _refuse(name))
    requires_grad = each[0].requires_grad if chosen else None
    return replace(tensor_input(name, value, words, requires_grad=requires_grad), rank_shapes=uneven)


def tensor_input(
    name: str, value: Tensor, words: Mapping[str, str], *, requires_grad: bool | None
) -> TensorInput:
    """A tensor of all ranks as a case has it. Raises `UsageError` where no derivative can be measured."""
    if value.is_floating_point() and value.dtype is not torch.float64:
        raise UsageError(f"{name} is {value.dtype}: give float64, in which a derivative can be measured")
    return TensorInput(
        name,
        tuple(value.shape),
        dtype=str(value.dtype).removeprefix("torch."),
        requires_grad=requires_grad,
        value=_nested(value.tolist()),
        placement=words["placement"],
        gradient=words["gradient"],
    )


def _refuse(name: str) -> None:
    raise UsageError(f"{name} is to be the same on every rank (replicate), and is not")


def _nested(value: Any) -> Any:  # noqa: ANN401 - nested lists of numbers
    return tuple(map(_nested, value)) if isinstance(value, list) else value


def one_for_each(given: Any, count: int, caller: str) -> list[dict[str, str]]:  # noqa: ANN401 - the caller's
    """The placement of each input, in the words of a spec. Raises `UsageError`, naming who was called."""
    words = [given] * count if isinstance(given, str | Mapping) else list(given)
    if len(words) != count:
        raise UsageError(f"{caller}: {len(words)} placements for {count} inputs")
    return [_placement(word, caller) for word in words]


def _placement(word: Any, caller: str) -> dict[str, str]:  # noqa: ANN401 - as the caller wrote it
    of_gradient = word["replicate"] if isinstance(word, Mapping) and list(word) == ["replicate"] else None
    placed = _as_in_a_spec(fields_ranks.placement, word if of_gradient is None else "replicate", caller)
    gradient = "" if of_gradient is None else _as_in_a_spec(fields_ranks.gradient, of_gradient, caller)
    return {"placement": placed, "gradient": gradient}


def outputs_on_ranks(given: Any, second_order: bool, caller: str) -> Ranks:  # noqa: ANN401, FBT001 - the caller's
    """How outputs lie on the ranks, in the words of a spec. Raises `UsageError`, naming who was called."""
    words = [given] if isinstance(given, str | Mapping) else list(given)
    return Ranks(tuple(_as_in_a_spec(fields_ranks.output, word, caller) for word in words), second_order)


def _as_in_a_spec(check: Callable[[object], str], word: object, caller: str) -> str:
    """A word, checked as a spec's is. Raises `UsageError`."""
    try:
        return check(word)
    except ValueError as error:
        raise UsageError(f"{caller}: {error}") from None
