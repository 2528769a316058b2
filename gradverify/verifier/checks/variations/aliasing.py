"""GV405: the same tensor passed for two inputs. Its gradient is the sum of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

from torch import Tensor

from gradverify.model import Finding, Swept, TensorInput, tensors_of
from gradverify.verifier.checks.subject import first_line
from gradverify.verifier.checks.variations.running import Prepared, backward, called, is_accident, perform
from gradverify.verifier.checks.variations.running import prepared as fresh_arguments
from gradverify.verifier.checks.variations.variation import Varied
from gradverify.verifier.checks.variations.verified import Verified
from gradverify.verifier.guard import Raised

MOST_PAIRS = 3
"""Pairs of inputs that are tried."""


def same_tensor_twice(base: Verified) -> Varied:
    """Forward and backward with one tensor for two inputs, against two tensors of the same values."""
    if base.forward_draws:
        return Varied()
    swept: tuple[str, ...] = ()
    for number, (one, other) in enumerate(_pairs(base)):
        if number == MOST_PAIRS:
            break
        judged = _judged(base, one, other)
        if judged is None:
            continue
        swept = ("same tensor twice",)
        if isinstance(judged, Finding):
            return Varied((judged,), Swept(calls=swept))
    return Varied(swept=Swept(calls=swept))


def _pairs(base: Verified) -> Iterator[tuple[int, int]]:
    """Positions of two differentiable arguments for which the same values are valid."""
    described = {t.name: t for i in base.sample.case.inputs for t in tensors_of(i)}
    arguments = base.sample.arguments
    for one, other in combinations(range(len(arguments)), 2):
        a, b = arguments[one], arguments[other]
        plain = all(
            x.differentiable and x.step is None and x.held is None and base.is_passed(x) for x in (a, b)
        )
        if not plain or a.value.shape != b.value.shape or a.value.dtype != b.value.dtype:
            continue
        spec_a, spec_b = described.get(a.name), described.get(b.name)
        if spec_a is not None and spec_b is not None and _is_alike(spec_a, spec_b):
            yield one, other


def _is_alike(a: TensorInput, b: TensorInput) -> bool:
    return replace(a, name="") == replace(b, name="") and not a.make and a.value is None


def _judged(base: Verified, one: int, other: int) -> Finding | bool | None:
    """A finding, True where it is right, None where it cannot be told."""
    sample = base.sample
    value = sample.arguments[one].value
    arguments = tuple(replace(a, value=value) if k == other else a for k, a in enumerate(sample.arguments))
    problem = replace(sample.problem, arguments=arguments)
    same = replace(sample, arguments=arguments, problem=problem)
    apart = called(same)
    if isinstance(apart, Raised) or _writes(apart.value.passed, apart.value.returned):
        return None
    values = problem.outputs.flatten([o.detach().clone() for o in apart.value.outputs])
    result = backward(same, apart.value, base.grad_outputs())
    if isinstance(result, Raised):
        return None
    numbers = [i for i, a in enumerate(arguments) if a.differentiable]
    first, second = numbers.index(one), numbers.index(other)
    wanted = base.inputs.flatten(result.value)
    if not wanted.isfinite().all() or not values.isfinite().all():
        return None
    blocks = base.inputs.blocks
    into = slice(blocks[first].start, blocks[first].stop)
    wanted[into] += wanted[blocks[second].start : blocks[second].stop]
    wanted[blocks[second].start : blocks[second].stop] = 0.0
    ready = fresh_arguments(same)
    passed = tuple(ready.passed[one] if k == other else p for k, p in enumerate(ready.passed))
    at = replace(base, sample=same, gradient=wanted, values=values)
    return _compared(at, Prepared(ready.leaves, passed), (one, other))


def _compared(at: Verified, ready: Prepared, places: tuple[int, int]) -> Finding | bool | None:
    names = [at.sample.arguments[k].name for k in places]
    when = f"when the same tensor is passed as `{names[0]}` and `{names[1]}`"
    call = perform(at.sample, ready)
    if isinstance(call, Raised):
        return None
    result = backward(at.sample, call.value, at.grad_outputs())
    if isinstance(result, Raised):
        if not is_accident(result.error):
            return None
        said = f"backward raises {result.error.type} {when}: {first_line(result.error.message)}"
        return at.finding("GV405", said, raised=result.error, input=names[0])
    moved = at.forward_difference(call.value.outputs)
    if moved is not None:
        said = f"forward is wrong {when}: {moved.place} is {moved.values}, which two equal ones give"
        return at.finding(
            "GV405", said, input=names[0], hint="One of them is written to or told by identity."
        )
    difference = at.difference(result.value)
    if difference is None:
        return True
    return at.finding(
        "GV405",
        f"the gradient is wrong {when}: {difference.place} is {difference.values}, the sum of both",
        hint="Tell inputs by their position, not by identity or address.",
        input=names[0],
    )


def _writes(passed: tuple[Any, ...], returned: tuple[Any, ...]) -> bool:
    """Whether forward writes into an argument: then one tensor for two is another computation."""
    tensors = [p for p in passed if isinstance(p, Tensor)]
    return any(r is p for r in returned for p in tensors) or any(t._version > 0 for t in tensors)  # noqa: SLF001
