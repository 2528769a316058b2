"""GV501: what forward mode makes of a direction must be what the verified backward says of it.

For every direction v, u·(J v) = (Jᵀ u)·v. The right side is known, so one forward with dual tensors for each
set of inputs is enough, and no derivative is measured anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from gradverify.model import Finding, RaisedError
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.questions.call import called, is_refusal
from gradverify.verifier.questions.result import FirstOrder
from gradverify.verifier.questions.verified import NOT_RUN, UNSUPPORTED, Answer, Variant, Verified
from gradverify.verifier.questions.wording import apart, listed_names, number

CODE = "GV501"

EVERY_SET = 3
"""Of so many inputs every set gets tangents; of more each alone, and all."""

ROUNDINGS = 10.0
"""Roundings of the terms of both sides by which these may be apart."""

HINT = (
    "jvp gets one tangent for each input of forward (None for what is not a tensor) and returns the "
    "derivative of each output in that direction: the transpose of what backward computes."
)


def forward_mode(base: Verified, first: FirstOrder) -> Answer:
    """Hold forward-mode derivatives against the verified backward.

    At a kink both may choose another derivative and be right, so nothing is said there.
    """
    function_class = base.sample.subject.function_class
    is_sparse = any(p.layout is not torch.strided for p in base.sample.problem.primals)
    if is_sparse or (function_class is not None and function_class.jvp is Function.jvp):
        return UNSUPPORTED
    if first.result.uncovered:
        return NOT_RUN
    x = base.inputs.flatten(base.sample.problem.primals)
    for chosen in _sets(len(base.names)):
        v = _direction(base, chosen)
        pushed = _pushed(base, x, v, chosen)
        if isinstance(pushed, Raised):
            return _raised(base, pushed.error, chosen)
        finding = _compared(base, pushed.value, v, chosen)
        if finding is not None:
            return Answer.of(finding)
    return Answer.of()


def _sets(count: int) -> Iterator[frozenset[int]]:
    """Which inputs have a tangent, the fewest first."""
    sizes = range(1, count + 1) if count <= EVERY_SET else (1, count)
    for size in sizes:
        yield from map(frozenset, combinations(range(count), size))


def _direction(base: Verified, chosen: frozenset[int]) -> Tensor:
    """A random direction in the chosen inputs, flat; zero where entries are held."""
    v = random_signs(base.inputs.size, base.sample.case.seed + 211)
    differentiable = [a for a in base.sample.arguments if a.differentiable]
    for position, (block, argument) in enumerate(zip(base.inputs.blocks, differentiable, strict=True)):
        part = v[block.start : block.stop]
        if position not in chosen:
            part.zero_()
        elif argument.held is not None:
            held = argument.held.reshape(-1)
            part[held.repeat_interleave(2) if block.is_complex else held] = 0.0
    return v


def _pushed(base: Verified, x: Tensor, v: Tensor, chosen: frozenset[int]) -> Returned[Tensor] | Raised:
    """J v, flat. A callable that is no Function may drop every tangent: it has no forward mode."""
    primals, tangents = base.inputs.unflatten(x), base.inputs.unflatten(v)

    def arrange(passed: list[Any]) -> list[Any]:
        numbered = iter(enumerate(primals))
        made = []
        for argument, value in zip(base.sample.arguments, passed, strict=True):
            if not argument.differentiable:
                made.append(value)
                continue
            place, primal = next(numbered)
            leaf = primal.requires_grad_().clone()
            if place in chosen:
                leaf = forward_ad.make_dual(leaf, tangents[place])  # type: ignore[no-untyped-call]
            made.append(argument.moved(leaf))
        return made

    with forward_ad.dual_level():
        call = called(base.sample, arrange=arrange)
        if isinstance(call, Raised):
            return call
        outputs = call.value.outputs
        if [t.shape for t in outputs] != [t.shape for t in base.grad_outputs()]:
            said = "forward returns other shapes with tangents than without"
            return Raised(RaisedError("ValueError", said))
        found = [forward_ad.unpack_dual(t).tangent for t in outputs]  # type: ignore[no-untyped-call]
        if base.sample.subject.function_class is None and all(t is None for t in found):
            return Raised(RaisedError("NotImplementedError", "forward drops tangents"))
        pushed = [None if t is None else t.detach() for t in found]
        return Returned(base.sample.problem.outputs.flatten(pushed))


def _compared(base: Verified, pushed: Tensor, v: Tensor, chosen: frozenset[int]) -> Finding | None:
    """What is wrong where both sides differ by more than the tolerance and than rounding explains."""
    settings, problem = base.sample.subject.settings, base.sample.problem
    one, other = base.u * pushed, base.gradient * v
    size = float(one.abs().sum() + other.abs().sum())
    forward, backward = one.sum().item(), other.sum().item()
    off, bound = abs(forward - backward), settings.atol + (settings.rtol + ROUNDINGS * base.rounding) * size

    def sides(x: Tensor) -> Tensor | None:
        there = _pushed(base, x, v, chosen)
        back = problem.pull_back(base.inputs.unflatten(x), base.grad_outputs())
        if isinstance(there, Raised) or isinstance(back, Raised):
            return None
        return (base.u * there.value).sum()[None] - base.inputs.flatten(back.value) @ v

    if bound < off < torch.inf:
        bound = max(bound, float(base.spread_of(sides, torch.zeros(1))))
    if off <= bound:
        return None
    times = f", {number(forward / backward)} times as much" if backward and off < torch.inf else ""
    forwards, backwards = apart(forward, backward)
    return base.finding(
        CODE,
        f"the forward-mode derivative in a random direction in {_named(base, chosen)} is {forwards} where "
        f"the verified backward gives {backwards}{times}",
        hint=HINT,
        input=_input(base, chosen),
    )


def _named(base: Verified, chosen: frozenset[int]) -> str:
    """`x` and `w` alone, or all inputs."""
    if 1 < len(chosen) == len(base.names):
        return "all inputs"
    return f"{listed_names([base.names[k] for k in sorted(chosen)])}{' alone' * (len(chosen) > 1)}"


def _raised(base: Verified, error: RaisedError, chosen: frozenset[int]) -> Answer:
    """A class's own jvp must not raise unless it says that it refuses; others promise nothing."""
    if base.sample.subject.function_class is None:
        return UNSUPPORTED
    name, when = _input(base, chosen), f"where {_named(base, chosen)} has a tangent"
    variant = Variant(CODE, when, HINT, input=name, is_mistake=lambda error: not is_refusal(error))
    return Answer.of(variant.raised(base, error, "jvp"))


def _input(base: Verified, chosen: frozenset[int]) -> str | None:
    return base.names[min(chosen)] if len(chosen) == 1 else None
