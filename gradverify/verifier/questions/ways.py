"""Other ways to make the verified call, each of which must give its result and its gradient.

GV405: one tensor for two inputs (its gradient is the sum of both), and views of one tensor. A forward that
writes into an argument computes something else then, or torch refuses it: it is not asked.

GV413: what backward saved comes back as another tensor. Activation offloading packs and unpacks what
`save_for_backward` was given; a checkpoint (`torch.utils.checkpoint`, not reentrant) drops it, runs forward
again, and leaves the random states as backward has them. It is written out: importing torch's takes a
second.

GV410, on several ranks: what is not waited for is not there yet where another rank comes late.
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

from gradverify.model import tensors_of
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.questions.call import Call, called
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.verified import Variant, Varied, Verified
from gradverify.verifier.questions.wording import listed_names

Way = tuple[str, Variant, Verified, Returned[Call] | Raised]
"""What the report calls it, how it is reported, and the call with the verified one that it must reproduce."""

MOST_PAIRS = 3
"""Pairs of inputs that are tried."""

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


def _in_turn(ways: Callable[[Verified], Iterator[Way]]) -> Callable[[Verified], Varied]:
    """A question that makes one call after the other, up to the first that shows something."""

    @wraps(ways)
    def ask(base: Verified) -> Varied:
        asked: list[str] = []
        for said, variant, there, call in ways(base):
            asked.append(said)
            found = variant.judged(there, call)
            if found is not None:
                return Varied.of(found, calls=asked)
        return Varied.of(calls=asked)

    return ask


@_in_turn
def same_tensor_twice(base: Verified) -> Iterator[Way]:
    """Forward and backward with one tensor for two inputs, against two tensors of the same values."""
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
    """Forward and backward with inputs that are parts of one tensor, as a split makes them."""
    plain = [(k, a) for k, a in enumerate(base.sample.arguments) if _is_plain(base, a)]
    places = [k for k, a in plain if a.value.dtype == plain[0][1].value.dtype]
    if base.draws or base.writes or len(places) < 2:
        return
    names = [base.sample.arguments[k].name for k in places]
    when = f"when {listed_names(names)} are views of one tensor"
    call = called(base.sample, arrange=partial(_of_one, places))
    yield "views of one tensor", Variant("GV405", when, VIEWS_HINT, input=names[0]), base, call


@_in_turn
def saved_elsewhere(base: Verified) -> Iterator[Way]:
    """The gradient is the same where saved tensors are offloaded, and where they are recomputed."""
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
    """The same with one rank that comes late to every collective."""
    across = base.sample.subject.across
    for rank in range(min(base.sample.case.world, 2)) if across is not None else ():
        when = f"when rank {rank} comes late to every collective"
        variant = Variant("GV410", when, LATE_HINT, is_mistake=lambda _: True)
        with across.with_late(rank):  # type: ignore[union-attr]
            yield "late ranks", variant, base, called(base.sample)


def _instead(one: int, other: int, passed: list[Any]) -> list[Any]:
    """One argument in place of another."""
    return [passed[one] if k == other else value for k, value in enumerate(passed)]


def _of_one(places: Sequence[int], passed: list[Any]) -> list[Any]:
    """Some arguments as views of one tensor."""
    parts = [passed[k] for k in places]
    whole = torch.cat([p.reshape(-1) for p in parts]).split_with_sizes([p.numel() for p in parts])
    views = dict(zip(places, map(Tensor.view_as, whole, parts), strict=True))
    return [views.get(k, value) for k, value in enumerate(passed)]


def _is_plain(base: Verified, argument: Argument) -> bool:
    """Whether the caller passes it as a dense tensor of its own, with a gradient."""
    free = argument.differentiable and argument.step is None and argument.held is None
    return free and base.is_passed(argument)


def _pairs(base: Verified) -> Iterator[tuple[int, int]]:
    """Positions of two differentiable arguments for which the same values are valid."""
    described_as = {t.name: replace(t, name="") for i in base.sample.case.inputs for t in tensors_of(i)}
    plain = [(k, a) for k, a in enumerate(base.sample.arguments) if _is_plain(base, a) and a.value.numel()]
    for (one, a), (other, b) in combinations(plain, 2):
        spec = described_as.get(a.name)
        known = spec is not None and not spec.make and spec.value is None and spec == described_as.get(b.name)
        if known and a.value.dtype == b.value.dtype and a.value.shape == b.value.shape:
            yield one, other


def _recomputed(sample: Sample) -> saved_tensors_hooks:
    """As in a checkpoint: dropped, and taken from a second forward when backward asks for the first."""
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
