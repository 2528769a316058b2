"""GV501: what forward mode makes of a direction must be what the verified backward says of it.

For every direction v, u·(J v) = (Jᵀ u)·v. The right side is known, so one forward with dual tensors for each
direction is enough, and no derivative is measured anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from gradverify.model import Finding, RaisedError
from gradverify.verifier.checks.result import FirstOrder
from gradverify.verifier.checks.wording import apart, listed_names, number
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.questions.answers import NOT_RUN, UNSUPPORTED, Answer, refusal, wrong
from gradverify.verifier.questions.call import called, is_refusal
from gradverify.verifier.questions.verified import Variant, Verified
from gradverify.verifier.witnesses.rounding import FACTOR, spread

CODE = "GV501"

DRAWS = 2
"""Random directions for each set of inputs that has tangents."""

EVERY_SET = 3
"""Of so many inputs every set gets tangents; of more each alone, and all."""

ROUNDINGS = 10.0
"""Roundings of the terms of both sides by which these may be apart."""

SAME_FACTOR = 1e-6
"""Ratios that agree to this share are one constant factor."""

HINT = (
    "jvp gets one tangent for each input of forward (None for what is not a tensor) and returns the "
    "derivative of each output in that direction: the transpose of what backward computes."
)


@dataclass(frozen=True)
class _Pair:
    """The two sides of u·(J v) = (Jᵀ u)·v."""

    forward: float
    backward: float
    bound: float
    """How far they may be apart."""

    @property
    def is_wrong(self) -> bool:
        return not abs(self.forward - self.backward) <= self.bound


def forward_mode(base: Verified, first: FirstOrder) -> Answer:
    """Hold forward-mode derivatives against the verified backward.

    At a kink both may choose another derivative and be right, so nothing is said there.
    """
    function_class = base.sample.subject.function_class
    if function_class is not None and function_class.jvp is Function.jvp:
        return UNSUPPORTED
    if first.result.uncovered:
        return NOT_RUN
    for chosen in _subsets(len(base.names)):
        answer = _along(base, chosen, short=first.single_precision)
        if answer is not None:
            return answer
    return Answer("yes")


def _along(base: Verified, chosen: frozenset[int], *, short: bool) -> Answer | None:
    """What is to be said of tangents in the chosen inputs; None where they are pushed forward right."""
    x = base.inputs.flatten(base.sample.problem.primals)
    pairs: list[_Pair] = []
    for draw in range(DRAWS):
        v = _direction(base, chosen, draw)
        pushed = _pushed(base, x, v, chosen)
        if pushed is None:
            return UNSUPPORTED
        if isinstance(pushed, Raised):
            return _raised(base, pushed.error, chosen)
        pairs.append(_pair(base, pushed.value, v, chosen, short=short))
    return wrong(_mismatch(base, chosen, pairs)) if any(p.is_wrong for p in pairs) else None


def _subsets(count: int) -> Iterator[frozenset[int]]:
    """Which inputs have a tangent, the fewest first."""
    sizes = range(1, count + 1) if count <= EVERY_SET else (1, count)
    for size in sizes:
        yield from map(frozenset, combinations(range(count), size))


def _direction(base: Verified, chosen: frozenset[int], draw: int) -> Tensor:
    """A random direction in the chosen inputs, flat; zero where entries are held."""
    v = random_signs(base.inputs.size, base.sample.case.seed + 211 + draw)
    differentiable = [a for a in base.sample.arguments if a.differentiable]
    for position, (block, argument) in enumerate(zip(base.inputs.blocks, differentiable, strict=True)):
        part = v[block.start : block.stop]
        if position not in chosen:
            part.zero_()
        elif argument.held is not None:
            held = argument.held.reshape(-1)
            part[held.repeat_interleave(2) if block.is_complex else held] = 0.0
    return v


def _pushed(base: Verified, x: Tensor, v: Tensor, chosen: frozenset[int]) -> Returned[Tensor] | Raised | None:
    """J v, flat; None where a callable drops every tangent or the inputs cannot carry one."""
    primals, tangents = base.inputs.unflatten(x), base.inputs.unflatten(v)
    is_function = base.sample.subject.function_class is not None

    def arrange(passed: list[Any]) -> list[Any]:
        numbered = iter(enumerate(primals))
        made = []
        for argument, value in zip(base.sample.arguments, passed, strict=True):
            if not argument.differentiable:
                made.append(value)
                continue
            number, primal = next(numbered)
            leaf = primal.requires_grad_().clone()
            if number in chosen:
                leaf = forward_ad.make_dual(leaf, tangents[number])  # type: ignore[no-untyped-call]
            made.append(argument.moved(leaf))
        return made

    if any(p.layout is not torch.strided for p in base.sample.problem.primals):
        return None
    with forward_ad.dual_level():
        call = called(base.sample, arrange=arrange)
        if isinstance(call, Raised):
            return call
        outputs = call.value.outputs
        if [t.shape for t in outputs] != [t.shape for t in base.grad_outputs()]:
            said = "forward returns other shapes with tangents than without"
            return Raised(RaisedError("ValueError", said))
        found = [forward_ad.unpack_dual(t).tangent for t in outputs]  # type: ignore[no-untyped-call]
        if not is_function and all(t is None for t in found):
            return None
        return Returned(
            base.sample.problem.outputs.flatten([None if t is None else t.detach() for t in found])
        )


def _pair(base: Verified, pushed: Tensor, v: Tensor, chosen: frozenset[int], *, short: bool) -> _Pair:
    """Both sides; where they differ, what rounding explains of it is in the bound."""
    one, other = base.u * pushed, base.gradient * v
    settings, problem = base.sample.subject.settings, base.sample.problem
    eps = max(float(layout.rounding.max()) for layout in (base.inputs, problem.outputs))
    eps = max(eps, torch.finfo(torch.float32).eps) if short else eps
    size = float(one.abs().sum() + other.abs().sum())
    bound = settings.atol + (settings.rtol + ROUNDINGS * eps) * size
    pair = _Pair(one.sum().item(), other.sum().item(), bound)
    if not pair.is_wrong or not abs(pair.forward) < torch.inf:
        return pair

    def sides(x: Tensor) -> Tensor | None:
        there = _pushed(base, x, v, chosen)
        back = problem.pull_back(base.inputs.unflatten(x), base.grad_outputs())
        if not isinstance(there, Returned) or isinstance(back, Raised):
            return None
        return (base.u * there.value).sum()[None] - base.inputs.flatten(back.value) @ v

    moved = spread(sides, base.inputs.flatten(problem.primals), eps)
    return replace(pair, bound=max(bound, 0.0 if moved is None else FACTOR * float(moved)))


def _mismatch(base: Verified, chosen: frozenset[int], pairs: Sequence[_Pair]) -> Finding:
    worst = max(pairs, key=lambda p: min(torch.inf, abs(p.forward - p.backward)))
    factor = _factor(pairs)
    times = f", {number(factor)} times as much" if factor is not None else ""
    forwards, backwards = apart(worst.forward, worst.backward)
    return base.finding(
        CODE,
        f"the forward-mode derivative in a random direction in {_named(base, chosen)} is {forwards} where "
        f"the verified backward gives {backwards}{times}",
        hint=HINT,
        input=base.names[min(chosen)] if len(chosen) == 1 else None,
        factor=factor,
        cause="constant-factor" if factor is not None else "",
    )


def _named(base: Verified, chosen: frozenset[int]) -> str:
    """`x` and `w` alone, or all inputs."""
    if 1 < len(chosen) == len(base.names):
        return "all inputs"
    names = listed_names([base.names[k] for k in sorted(chosen)])
    return f"{names} alone" if len(chosen) > 1 else names


def _factor(pairs: Sequence[_Pair]) -> float | None:
    """The constant between both sides, where it is one for every direction."""
    if len({p.backward for p in pairs}) < DRAWS or any(p.backward == 0 for p in pairs):
        return None
    one, other = (p.forward / p.backward for p in pairs)
    return one if 0 < abs(one) < torch.inf and abs(one - other) <= SAME_FACTOR * abs(one) else None


def _raised(base: Verified, error: RaisedError, chosen: frozenset[int]) -> Answer:
    """A class's own jvp must not raise unless it says that it refuses; others promise nothing."""
    if base.sample.subject.function_class is None:
        return UNSUPPORTED
    if is_refusal(error):
        return Answer("no", (refusal(base, CODE, "jvp", error),))
    name = base.names[min(chosen)] if len(chosen) == 1 else None
    when = f"where `{name}` alone has a tangent" if name else f"where {_named(base, chosen)} have tangents"
    found = Variant(CODE, when, HINT).raised(base, error, "jvp", serious=True)
    return wrong(replace(found, input=name))
