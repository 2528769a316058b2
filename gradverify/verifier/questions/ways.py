"""Other ways to make the verified call, each of which must give its result and its gradient.

A way is one forward and one backward: arguments that share memory, saved tensors that come back as others,
leaves, other devices and groups of ranks. The verified gradient is the truth for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, wraps
from itertools import combinations, islice
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Parameter

from gradverify.model import Finding, Severity, Swept, indexed
from gradverify.verifier import guard
from gradverify.verifier.guard import OutOfStepError, Raised, Returned
from gradverify.verifier.guard.engine import run_every_node
from gradverify.verifier.inputs.arguments import Argument, OfRanks
from gradverify.verifier.numerics.calling import (
    as_laid_out,
    differentiate,
    differentiate_with_graph,
    with_zeros,
)
from gradverify.verifier.questions.again import again, read_unwritten
from gradverify.verifier.questions.findings import CheckResult, apart, listed_names
from gradverify.verifier.questions.subject import Sample, first_line, placed_on, tensors_in
from gradverify.verifier.questions.verified import (
    Call,
    Variant,
    Verified,
    called,
    drawn_again,
    known,
)
from gradverify.verifier.questions.witnessing import largest
from gradverify.verifier.witnesses.values import alone as only
from gradverify.verifier.witnesses.values import probe

Way = tuple[str, Variant, Verified, Returned[Call] | Raised]
"""What the report calls it, how it is reported, and the call with the verified one that it must reproduce."""

MOST_PAIRS = 3
"""Pairs of inputs that are tried."""

MOST_ALONE = 2
"""Inputs that require grad alone, and outputs that alone have a grad_output, in a second derivative."""

VIEWS_HINT = (
    "Two tensors may share a storage and be no copies of each other: tell inputs by their position, not by "
    "data_ptr() of a storage or by _base."
)

TWICE_HINT = "Tell inputs by their position, not by identity or address, and write into none of them."

SAVED_HINT = (
    "Read what backward needs from ctx.saved_tensors alone: attributes of a tensor, its identity and what a "
    "call leaves behind elsewhere are not there when saved tensors are offloaded or recomputed."
)

LATE_HINT = (
    "Work that was started with async_op=True must be waited for before its result is used or returned."
)

OTHER_GROUP = Variant(
    "GV724",
    "in a process group that is not the whole world",
    "Pass the group on to every collective, and count ranks in it: dist.get_rank(group). `src` and `dst` are "
    "numbers in the world: dist.get_global_rank(group, 0).",
    is_mistake=lambda _: True,
)


def _in_turn(ways: Callable[[Verified], Iterator[Way]]) -> Callable[[Verified], CheckResult]:
    """A question that makes one call after the other, up to the first that shows something."""

    @wraps(ways)
    def ask(base: Verified) -> CheckResult:
        asked: list[str] = []
        found = None
        for said, variant, there, call in ways(base):
            asked.append(said)
            found = variant.judged(there, call)
            if found is not None:
                break
        return CheckResult.of(found, calls=asked)

    return ask


@_in_turn
def same_tensor_twice(base: Verified) -> Iterator[Way]:
    """GV405: one tensor for two inputs, against two tensors of the same values: its gradient is the sum.

    A forward that writes into an argument computes something else then, or torch refuses it.
    """
    for one, other in islice(() if base.forward_draws or base.writes else _pairs(base), MOST_PAIRS):
        arguments = list(base.sample.arguments)
        arguments[other] = replace(arguments[other], value=arguments[one].value)
        apart = base.at(tuple(arguments))
        if apart is None:
            continue
        names = [arguments[k].name for k in (one, other)]
        first, second = (apart.gradient[apart.inputs.slices[base.names.index(name)]] for name in names)
        first += second
        second.zero_()
        when = f"when the same tensor is passed as `{names[0]}` and `{names[1]}`"
        variant = Variant("GV405", when, TWICE_HINT, ", the sum of both", input=names[0])
        call = called(apart.sample, arrange=partial(_instead, one, other))
        yield "same tensor twice", variant, apart, call


@_in_turn
def views_of_one_base(base: Verified) -> Iterator[Way]:
    """GV405: inputs that are parts of one tensor, as a split makes them."""
    plain = _plain(base)
    places = [k for k, a in plain if a.value.dtype == plain[0][1].value.dtype]
    if base.draws or base.writes or len(places) < 2:
        return

    def of_one(passed: list[Any]) -> list[Any]:
        parts = [passed[k] for k in places]
        whole = torch.cat([p.reshape(-1) for p in parts]).split_with_sizes([p.numel() for p in parts])
        views = dict(zip(places, map(Tensor.view_as, whole, parts), strict=True))
        return [views.get(k, value) for k, value in enumerate(passed)]

    names = [base.sample.arguments[k].name for k in places]
    when = f"when {listed_names(names)} are views of one tensor"
    call = called(base.sample, arrange=of_one)
    yield "views of one tensor", Variant("GV405", when, VIEWS_HINT, input=names[0]), base, call


@_in_turn
def saved_elsewhere(base: Verified) -> Iterator[Way]:
    """GV413: what backward saved comes back as another tensor, offloaded or recomputed as by a checkpoint."""
    # As with `torch.autograd.graph.save_on_cpu`: packed into a copy.
    ways = {"saved tensors offloaded": saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)}
    if not base.forward_draws:
        ways["saved tensors recomputed"] = _recomputed(base.sample)
    for words, saving in ways.items():
        with saving:
            call = called(base.sample)
        yield words, Variant("GV413", f"with its {words}", SAVED_HINT), base, call


@_in_turn
def late_ranks(base: Verified) -> Iterator[Way]:
    """GV410: the same with one rank that comes late to every collective."""
    across = base.subject.across
    for rank in range(min(base.sample.case.world, 2)) if across is not None else ():
        when = f"when rank {rank} comes late to every collective"
        variant = Variant("GV410", when, LATE_HINT, is_mistake=lambda _: True)
        with across.with_late(rank):  # type: ignore[union-attr]
            yield "late ranks", variant, base, called(base.sample)


def other_group(base: Verified) -> CheckResult:
    """GV724: the same in a part of a larger world. Not asked where an integer, maybe a rank, is passed."""
    across = base.subject.across
    numbers = any(type(a.value) is int or isinstance(a.value, OfRanks) for a in base.sample.arguments)
    if across is None or across.in_other_group is None or numbers:
        return CheckResult()
    other, said = across.in_other_group(), f"ranks disagree on a value that they share {OTHER_GROUP.when}"
    moved = replace(base.sample, problem=replace(base.sample.problem, function=other))
    try:
        found = OTHER_GROUP.judged(replace(base, sample=moved), called(moved))
        disagrees = bool(other.differences)
    except OutOfStepError as error:
        found, disagrees, said = None, True, f"{error}, {OTHER_GROUP.when}"
    told = base.sample.finding(OTHER_GROUP.code, said, hint=OTHER_GROUP.hint) if disagrees else None
    return CheckResult.of(found or told)


def _instead(one: int, other: int, passed: list[Any]) -> list[Any]:
    """One argument in place of another."""
    return [*passed[:other], passed[one], *passed[other + 1 :]]


def _plain(base: Verified) -> list[tuple[int, Argument]]:
    """The arguments that a caller passes as dense tensors of their own, with a gradient."""
    return [
        (k, a)
        for k, a in enumerate(base.sample.arguments)
        if a.differentiable and a.step is None and a.held is None and base.is_passed(a)
    ]


def _pairs(base: Verified) -> Iterator[tuple[int, int]]:
    """Positions of two differentiable arguments for which the same values are valid."""
    specs = {t.name: replace(t, name="") for t in tensors_in(base.sample.case)}
    for (one, a), (other, b) in combinations(_plain(base), 2):
        spec, is_alike = specs.get(a.name), a.value.shape == b.value.shape and a.value.numel()
        if spec and spec == specs.get(b.name) and not spec.make and spec.value is None and is_alike:
            yield one, other


def _recomputed(sample: Sample) -> saved_tensors_hooks:
    """As in a checkpoint: dropped, and taken from a second forward when backward asks for the first.

    Written out, as importing `torch.utils.checkpoint` takes a second.
    """
    saved: list[None] = []
    again: list[Tensor] = []

    def pack(_: Tensor) -> int:
        saved.append(None)
        return len(saved) - 1

    def pack_again(tensor: Tensor) -> Tensor:
        again.append(tensor.detach())
        return again[-1]

    def unpack(number: int) -> Tensor:
        if not again:
            states = sample.problem.random_states.aside()
            with states, saved_tensors_hooks(pack_again, lambda t: t):
                called(sample)
            if len(again) != len(saved):
                message = f"forward saved {len(saved)} tensors at first, {len(again)} when it ran again"
                raise RuntimeError(message)
        return again[number]

    return saved_tensors_hooks(pack, unpack)


ALREADY_THERE = 0.5
"""What `.grad` holds before: a gradient that is written over it is not added to it."""

LEAVES_HINT = (
    "Backward returns the gradient and autograd adds it to .grad. Look for is_leaf, isinstance(x, "
    "nn.Parameter), .grad, or something kept on the tensor that is stale once its values change."
)


def as_leaves(base: Verified) -> CheckResult:
    """GV414: two steps of a training of parameters that have a `.grad`, the second at other values.

    Backward may ask whether an input is a leaf, add into `.grad` by hand, or keep something on the parameter
    that an optimizer's step makes stale.
    """
    if base.writes:  # torch refuses that for a leaf
        return CheckResult()
    drawn = drawn_again(base.sample)
    second = None if drawn is None else base.at(drawn)
    parameters = tuple(Parameter(p.detach().clone()) for p in base.sample.problem.primals)
    found: Finding | None = None
    for said, there in (("in the first step", base), ("in the second step, at other values", second)):
        when = f"when the inputs are parameters with {ALREADY_THERE} in .grad already, {said}"
        if found is None and there is not None:
            found = _step(there, parameters, Variant("GV414", when, LEAVES_HINT))
    return CheckResult.of(found, calls=["parameters"])


def _step(base: Verified, parameters: Sequence[Parameter], variant: Variant) -> Finding | None:
    """What is wrong in a step of a training at the values of a call, or what is raised there."""
    sample, problem, rest = base.sample, base.sample.problem, iter(parameters)
    for parameter, value in zip(parameters, problem.primals, strict=True):
        if not torch.equal(parameter, value):
            with torch.no_grad():
                parameter.copy_(value)
        parameter.grad = torch.full_like(parameter, ALREADY_THERE)

    def arrange(passed: list[Any]) -> list[Any]:
        pairs = zip(sample.arguments, passed, strict=True)
        return [
            value if not a.differentiable else next(rest) if a.step is None else a.moved(next(rest).clone())
            for a, value in pairs
        ]

    call = called(sample, arrange=arrange)
    if isinstance(call, Raised):
        return variant.raised(base, call.error, "the call")
    pairs = zip(call.value.outputs, base.grad_outputs(), strict=True)
    connected = [(output, g) for output, g in pairs if output.requires_grad]
    problem.counter.backward += 1
    problem.random_states.replay_for_backward()
    with problem.around():
        done = guard.call(run_every_node, *map(list, zip(*connected, strict=True)), keep=False)
    if connected and isinstance(done, Raised):
        return variant.raised(base, done.error, "the call")
    before = [torch.full_like(p, ALREADY_THERE) for p in problem.primals]
    there = tuple(as_laid_out(p.grad, p) for p in parameters)
    whole = replace(base, gradient=base.gradient + base.inputs.flatten(before))
    return variant.differs(base, whole.difference(there))


OF_A_SECOND = 1e-6
"""Share of the largest second derivative by which those of two calls may differ."""

PENALTY_HINT = (
    "Let what backward computes depend on its inputs whether grad_output requires grad or not: test "
    "ctx.needs_input_grad for each gradient, and torch.is_grad_enabled() for a graph."
)


def as_in_a_penalty(base: Verified) -> CheckResult:
    """GV201, GV202: the derivative of gradients where something does not require grad, or is undefined.

    A gradient penalty gives ones for grad_output, a frozen layer has inputs without a gradient, and of some
    outputs one is used alone. The truth is the derivative that was verified with all of them.
    """
    sample, count, layout = base.sample, len(base.names), base.inputs
    if base.draws or base.writes:
        return CheckResult()
    w, outputs = probe(layout.size, sample.key + 17), sample.problem.outputs.slices
    ways = [("where grad_output does not require grad", frozenset[int](), base.u, False)]
    if count > 1:
        said = "where only `{}` requires grad, grad_output neither"
        others = [(k, frozenset(range(count)) - {k}) for k in range(count)[:MOST_ALONE]]
        ways = [(said.format(base.names[k]), frozen, base.u, False) for k, frozen in others]
    if len(outputs) > 1:
        said, places = "where only output {} has a grad_output", sample.problem.output_positions
        each = [*zip(places, outputs, strict=True)][:MOST_ALONE]
        ways += [(said.format(place), frozenset[int](), only(base.u, own), True) for place, own in each]
    for when, frozen, u, requires in ways if sample.subject.is_base else ways[:1]:
        weights = w.clone()
        for k in frozen:
            weights[layout.blocks[k].span] = 0.0
        truth = _differentiated_again(base, u, weights)
        found = _differentiated_again(base, u, weights, frozen, defined=False, requires=requires)
        if truth is None or found is None or not truth.isfinite().all():
            continue
        for k in frozen:
            found[layout.blocks[k].span] = truth[layout.blocks[k].span]
        if not bool(((found - truth).abs() <= OF_A_SECOND * largest(truth)).all()):
            return CheckResult.of(_of_a_penalty(sample, when, found, truth), calls=["gradient penalty"])
    return CheckResult.of(calls=["gradient penalty"])


def _of_a_penalty(sample: Sample, when: str, found: Tensor, truth: Tensor) -> Finding:
    worst = int((found - truth).abs().nan_to_num(torch.inf).argmax())
    number_of = sample.inputs.block_of(worst)
    name, block = sample.problem.input_names[number_of], sample.inputs.blocks[number_of]
    place, cut = indexed(name, block.index(worst)), not bool(found.any())
    got, wanted = apart(found[worst].item(), truth[worst].item())
    said = f"the derivative of a sum of gradients by {place} is {got}, and {wanted} where all require grad"
    what = "the second derivative is silently cut" if cut else "the second derivative is wrong"
    return sample.finding(
        "GV202" if cut else "GV201", f"{what} {when}: {said}", hint=PENALTY_HINT, input=name
    )


def _differentiated_again(
    base: Verified,
    u: Tensor,
    w: Tensor,
    frozen: frozenset[int] = frozenset(),
    *,
    defined: bool = True,
    requires: bool = True,
) -> Tensor | None:
    """The derivative of w · gradients by the inputs, flat; None where something raises.

    Unless `defined`, a grad_output of zeros is undefined.
    """
    problem, call = base.sample.problem, called(base.sample, frozen=frozen)
    if isinstance(call, Raised):
        return None
    parts = problem.outputs.unflatten(u)
    given = [g.requires_grad_(requires) if defined or g.detach().any() else None for g in parts]
    leaves = [leaf for leaf in call.value.leaves if leaf.requires_grad]
    weights = [one for k, one in enumerate(base.inputs.unflatten(w)) if k not in frozen]
    problem.counter.backward += 1
    problem.random_states.replay_for_backward()
    with problem.around():
        first = guard.call(differentiate_with_graph, call.value.outputs, leaves, given)
        if isinstance(first, Raised):
            return None
        gradients = with_zeros(first.value, leaves)
        second = guard.call(differentiate, gradients, leaves, weights)
    if isinstance(second, Raised):
        return None
    rest = iter(second.value)
    return base.inputs.flatten([next(rest) if leaf.requires_grad else None for leaf in call.value.leaves])


DEVICE_HINT = (
    "On {here} it was verified against forward. Look for a kernel that differs on {there}: its index "
    "arithmetic, a block that is not synchronised, a constant, the device it is launched on, or memory that "
    "backward allocates elsewhere than grad_output."
)

CPU_ONLY = "If it is meant for some devices alone, name them in its spec: `devices: [{kind}]`."


def other_devices(base: Verified) -> CheckResult:
    """GV701: every other device that the run asks for, up to the first where something is wrong."""
    result = CheckResult()
    for device in base.subject.other_devices:
        findings = _on_device(base, device)
        if findings:
            return result.beside(CheckResult.of(*findings))
        result = result.beside(CheckResult(swept=Swept(devices=(device,))))
    return result


def _on_device(base: Verified, device: str) -> list[Finding]:
    here = base.subject.settings.device
    placed = placed_on(device, base.sample)
    call = placed if isinstance(placed, Raised) else called(placed.value)
    if base.draws or isinstance(placed, Raised) or isinstance(call, Raised):
        error = call.error if isinstance(call, Raised) else None
        why = "it draws random numbers, and other devices draw others"
        why = f"forward raises {error.type}: {first_line(error.message)}" if error else why
        hint = CPU_ONLY.format(kind=here.partition(":")[0])
        said = f"not compared with {device}: {why}"
        return [base.sample.finding("GV109", said, hint=hint, raised=error)]
    when = f"on {device}, at the same float64 inputs as on {here}"
    hint = DEVICE_HINT.format(here=here, there=device)
    variant = Variant("GV701", when, hint, is_mistake=lambda error: not error.deliberate)
    found, there = variant.judged(replace(base, sample=placed.value), call), known(placed.value)
    repeated = read_unwritten(placed.value) if there is None else again(there).findings
    unsteady = [f for f in repeated if f.severity is not Severity.NOTE]
    # Its formula may round otherwise there.
    explained = there and not there.difference(base.inputs.unflatten(base.gradient))
    if unsteady or found is None or (explained and found.input):
        return [replace(f, message=f"on {device}, {f.message}") for f in unsteady]
    return [found]
