"""GV501: what forward mode makes of a direction must be what the verified backward says of it.

For every direction v and grad_output u, u·(J v) = (Jᵀ u)·v. The right side is known, so one forward with
dual tensors for each direction is enough, and no derivative is measured anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from gradverify.model import Finding, RaisedError
from gradverify.verifier import guard
from gradverify.verifier.checks.result import FirstOrder
from gradverify.verifier.checks.wording import apart, listed_names, number
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.arguments import arguments_of_call
from gradverify.verifier.numerics.calling import returned_tensors
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.round_off import SCALES, nudged
from gradverify.verifier.numerics.tolerance import UNDERFLOW
from gradverify.verifier.variations.call import is_refusal
from gradverify.verifier.variations.verified import (
    NOT_RUN,
    ROUND_OFFS,
    UNSUPPORTED,
    Answer,
    Variant,
    Verified,
    refusal,
    wrong,
)

CODE = "GV501"

DRAWS = 2
"""Random directions for each set of inputs that has tangents, and grad_outputs beside the verified one."""

MOST_SINGLES = 8
"""So many inputs get a tangent alone, which names the wrong one; after them only all together."""

EVERY_SET = 4
"""Of so many inputs every set gets tangents, once for each combination of options."""

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
    size: float
    """Sum of the absolute values of the terms on both sides."""

    @property
    def difference(self) -> float:
        return self.forward - self.backward


def forward_mode(base: Verified, first: FirstOrder) -> Answer:
    """Hold forward-mode derivatives against the verified backward.

    At a kink both may choose another derivative and be right, so nothing is said there.
    """
    function_class = base.sample.subject.function_class
    if function_class is not None and function_class.jvp is Function.jvp:
        return UNSUPPORTED
    gradients = None if first.result.uncovered else _gradients(base)
    if gradients is None:
        return NOT_RUN
    for chosen in _subsets(len(base.names), every=base.sample.subject.is_first_of_options):
        answer = _along(base, chosen, gradients, first)
        if answer is not None:
            return answer
    return Answer("yes")


def _along(
    base: Verified, chosen: frozenset[int], gradients: Sequence[tuple[Tensor, Tensor]], first: FirstOrder
) -> Answer | None:
    """What is to be said of tangents in the chosen inputs; None where they are pushed forward right."""
    x = base.inputs.flatten(base.sample.problem.primals)
    pairs: list[_Pair] = []
    is_right = True
    for draw in range(DRAWS):
        v = _direction(base, chosen, draw)
        pushed = _pushed(base, x, v, chosen)
        if pushed is None:
            return UNSUPPORTED
        if isinstance(pushed, Raised):
            return _raised(base, pushed.error, chosen)
        for u, gradient in gradients:
            pairs.append(_pair(u, pushed.value, gradient, v))
            is_right = is_right and not _is_wrong(base, chosen, v, u, pairs[-1], first)
    return None if is_right else wrong(_mismatch(base, chosen, pairs, first))


def _gradients(base: Verified) -> list[tuple[Tensor, Tensor]] | None:
    """(grad_outputs, gradient) pairs, flat: the verified one first."""
    pairs = [(base.u, base.gradient)]
    for draw in range(DRAWS):
        u = random_signs(base.sample.problem.outputs.size, base.sample.case.seed + 101 + draw)
        gradient = base.gradient_for(u)
        if gradient is None or not gradient.isfinite().all():
            return None
        pairs.append((u, gradient))
    return pairs


def _subsets(count: int, *, every: bool) -> Iterator[frozenset[int]]:
    """Which inputs have a tangent: each alone, `every` other set of few inputs, then all."""
    if count > 1:
        yield from (frozenset({i}) for i in range(min(count, MOST_SINGLES)))
    if every and count <= EVERY_SET:
        for size in range(2, count):
            yield from map(frozenset, combinations(range(count), size))
    yield frozenset(range(count))


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
    sample, problem = base.sample, base.sample.problem
    problem.counter.forward += 1
    with forward_ad.dual_level(), torch.enable_grad():
        given = guard.call(_duals, base, base.inputs.unflatten(x), base.inputs.unflatten(v), chosen)
        if isinstance(given, Raised):
            return None
        problem.random_states.replay()
        result = guard.call(sample.subject.function, *given.value)
        if isinstance(result, Raised):
            return result
        returned = returned_tensors(result.value)
        picked = [returned[p] for p in problem.output_positions if p < len(returned)]
        if [tuple(t.shape) for t in picked] != [tuple(t.shape) for t in base.grad_outputs()]:
            said = "forward returns other shapes with tangents than without"
            return Raised(RaisedError("ValueError", said))
        tangents = [forward_ad.unpack_dual(t).tangent for t in picked]  # type: ignore[no-untyped-call]
        if sample.subject.function_class is None and all(t is None for t in tangents):
            return None
        return Returned(problem.outputs.flatten([None if t is None else t.detach() for t in tangents]))


def _duals(
    base: Verified, primals: Sequence[Tensor], tangents: Sequence[Tensor], chosen: frozenset[int]
) -> list[object]:
    values: list[object] = []
    numbered = iter(enumerate(primals))
    for argument in base.sample.arguments:
        value = argument.value
        if argument.differentiable:
            position, primal = next(numbered)
            leaf = primal.requires_grad_().clone()
            if position in chosen:
                leaf = forward_ad.make_dual(leaf, tangents[position])  # type: ignore[no-untyped-call]
            value = argument.moved(leaf)
        elif isinstance(value, Tensor):
            value = value.clone()
        values.append(value)
    return arguments_of_call(base.sample.arguments, values)


def _pair(u: Tensor, pushed: Tensor, gradient: Tensor, v: Tensor) -> _Pair:
    one, other = u * pushed, gradient * v
    return _Pair(one.sum().item(), other.sum().item(), (one.abs().sum() + other.abs().sum()).item())


def _is_wrong(
    base: Verified, chosen: frozenset[int], v: Tensor, u: Tensor, pair: _Pair, first: FirstOrder
) -> bool:
    """Whether both sides differ by more than the tolerance and than rounding moves the difference."""
    if not abs(pair.forward) < torch.inf:
        return True
    off = abs(pair.difference)
    if off <= _tolerance(base, pair, first):
        return False
    differences = [pair.difference]
    generator = torch.Generator().manual_seed(20_264)
    flat = base.inputs.flatten(base.sample.problem.primals)
    for _ in SCALES:
        x = nudged(flat, base.inputs, generator, most=4)
        pushed = _pushed(base, x, v, chosen)
        back = base.sample.problem.pull_back(base.inputs.unflatten(x), base.grad_outputs(u))
        if isinstance(pushed, Returned) and not isinstance(back, Raised):
            differences.append(_pair(u, pushed.value, base.inputs.flatten(back.value), v).difference)
    return off > ROUND_OFFS * (max(differences) - min(differences))


def _tolerance(base: Verified, pair: _Pair, first: FirstOrder) -> float:
    settings = base.sample.subject.settings
    rounding = max(t.rounding.max().item() for t in (base.inputs, base.sample.problem.outputs))
    if first.single_precision:
        rounding = max(rounding, torch.finfo(torch.float32).eps)
    return max(UNDERFLOW, settings.atol + (settings.rtol + ROUND_OFFS * rounding) * pair.size)


def _mismatch(base: Verified, chosen: frozenset[int], pairs: Sequence[_Pair], first: FirstOrder) -> Finding:
    name = base.names[min(chosen)] if len(chosen) == 1 else None
    worst = max(pairs, key=lambda p: min(torch.inf, abs(p.difference)))
    where = f"in {_named(base, chosen)}"
    factor = _factor(pairs)
    times = f", {number(factor)} times as much" if factor is not None else ""
    forwards, backwards = apart(worst.forward, worst.backward)
    return base.finding(
        CODE,
        f"the forward-mode derivative in a random direction {where} is {forwards} where the verified "
        f"backward gives {backwards}{times}",
        hint=HINT,
        input=name,
        factor=factor,
        cause="constant-factor" if factor is not None else "",
        badness=abs(worst.difference) / max(_tolerance(base, worst, first), torch.finfo(torch.float64).tiny),
    )


def _named(base: Verified, chosen: frozenset[int]) -> str:
    """`x` and `w` alone, or all inputs."""
    if 1 < len(chosen) == len(base.names):
        return "all inputs"
    names = listed_names([base.names[k] for k in sorted(chosen)])
    return f"{names} alone" if len(chosen) > 1 else names


def _factor(pairs: Sequence[_Pair]) -> float | None:
    """The constant between both sides, where it is one for every direction and grad_output tried."""
    if len({round(abs(p.backward), 12) for p in pairs}) < 2 or any(p.backward == 0 for p in pairs):
        return None
    ratios = [p.forward / p.backward for p in pairs]
    spread = max(ratios) - min(ratios)
    return ratios[0] if abs(ratios[0]) > 0 and spread <= SAME_FACTOR * abs(ratios[0]) else None


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
