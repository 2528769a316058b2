"""`gradcheck_distributed`: a Function that communicates, in a program that already runs on several ranks.

`verify(..., world_size=2)`: a Function that communicates, on ranks that are started for it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
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
    ObjectInput,
    Ranks,
    Settings,
    Target,
    TargetPlan,
    TargetReport,
    TensorInput,
)
from gradverify.session.aggregate import TargetState
from gradverify.spec import fields
from gradverify.verifier import guard
from gradverify.verifier.inputs.arguments import OnEachRank
from gradverify.verifier.process.run import verify as verify_target
from gradverify.verifier.ranks.messages import GROUP_PATHS, PackedTensor, packed, unpacked
from gradverify.verifier.ranks.placement import Placement, whole
from gradverify.verifier.ranks.program import Program, calls_here, follow
from gradverify.verifier.ranks.worlds import Worlds
from gradverify.verifier.targets.discover import describe_target
from gradverify.verifier.verify.verification import Live

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
    placed = _as_in_a_spec(fields.placement, word if of_gradient is None else "replicate", caller)
    gradient = "" if of_gradient is None else _as_in_a_spec(fields.gradient, of_gradient, caller)
    return {"placement": placed, "gradient": gradient}


def outputs_on_ranks(given: Any, second_order: bool, caller: str) -> Ranks:  # noqa: ANN401, FBT001 - the caller's
    """How outputs lie on the ranks, in the words of a spec. Raises `UsageError`, naming who was called."""
    words = [given] if isinstance(given, str | Mapping) else list(given)
    return Ranks(tuple(_as_in_a_spec(fields.output, word, caller) for word in words), second_order)


def _as_in_a_spec(check: Callable[[object], str], word: object, caller: str) -> str:
    """A word, checked as a spec's is. Raises `UsageError`."""
    try:
        return check(word)
    except ValueError as error:
        raise UsageError(f"{caller}: {error}") from None


GROUP = {"process_group": "world"}
"""The group of the ranks, in the words of a spec."""

PER_RANK = ("local", "partial")
"""Placements of which a tensor holds a row for each rank."""


@dataclass(frozen=True)
class OnRanks:
    """How a target runs on ranks: the arguments of `verify` that say so."""

    world_size: int
    placements: Any
    output_placements: Any
    second_order: bool


def report_of_ranks(
    fn: Callable[..., Any],
    given: Mapping[str, Any] | Sequence[Any],
    asked: OnRanks,
    settings: Settings,
    name: str,
    reference: Callable[..., Any] | None,
) -> TargetReport:
    """The report on a target on ranks that import it themselves. Raises `UsageError`."""
    if asked.world_size < 1:
        raise UsageError(f"verify: world_size is {asked.world_size}: a number of processes")
    if dist.is_initialized():
        raise UsageError(
            "verify: this program runs on several ranks already: call gradverify.gradcheck_distributed"
        )
    file, attribute, value = _importable(fn)
    named = given if isinstance(given, Mapping) else {f"input{k}": one for k, one in enumerate(given)}
    words = one_for_each(asked.placements, len(named), "verify")
    chosen = any(isinstance(one, Tensor) and one.requires_grad for one in named.values())
    inputs = tuple(
        _input_on_ranks(key, one, each, asked.world_size, chosen=chosen)
        for (key, one), each in zip(named.items(), words, strict=True)
    )
    target = describe_target(value, attribute, attribute, file)
    ranks = outputs_on_ranks(asked.output_placements, asked.second_order, "verify")
    with closing(Worlds(file, target, settings.device)) as worlds:
        objects = {path: OnEachRank(path) for path in GROUP_PATHS} | (
            {} if reference is None else {REFERENCE: reference}
        )
        live = Live(value, objects, worlds=worlds)
        return report_on_ranks(live, target, asked.world_size, inputs, ranks, settings, name)


def _importable(fn: Callable[..., Any]) -> tuple[str, str, Any]:
    """The file of a function, its name there, and what has that name. Raises `UsageError`."""
    owner = getattr(fn, "__self__", None)
    value = owner if isinstance(owner, type) and fn == getattr(owner, "apply", None) else fn
    attribute = getattr(value, "__qualname__", "")
    module = sys.modules.get(getattr(value, "__module__", "") or "")
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    file = None if found is not value else inspect.getsourcefile(value)
    if file is None:
        raise UsageError(
            f"verify: every rank imports fn itself, and `{attribute or fn}` is not at the top of a module: "
            "define it there, or call gradverify.gradcheck_distributed under torchrun"
        )
    return str(Path(file).resolve()), attribute, value


def _input_on_ranks(name: str, given: Any, words: Mapping[str, str], world: int, *, chosen: bool) -> Input:  # noqa: ANN401
    """An argument as a case has it. Raises `UsageError`."""
    if isinstance(given, Mapping) and given == GROUP:
        return ObjectInput(name, next(iter(GROUP_PATHS)))
    if not isinstance(given, Tensor):
        return LiteralInput(name, given)
    if words["placement"] in PER_RANK and given.shape[:1] != (world,):
        raise UsageError(
            f"verify: `{name}` is {words['placement']}, so that its first dimension is the rank: "
            f"{tuple(given.shape)} is to begin with {world}"
        )
    return tensor_input(name, given, words, requires_grad=given.requires_grad if chosen else None)
