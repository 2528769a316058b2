"""GV405: the same tensor passed for two inputs (its gradient is the sum of both), and two views of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, islice

from torch import Tensor

from gradverify.model import Finding, RaisedError, Swept, TensorInput, tensors_of
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import copies
from gradverify.verifier.variations.call import Call, backward, called, is_accident
from gradverify.verifier.variations.verified import Variant, Varied, Verified

MOST_PAIRS = 3
"""Pairs of inputs that are tried."""

VIEWS_HINT = (
    "Two tensors may share a storage and be no copies of each other: tell inputs by their position, not by "
    "data_ptr() of a storage or by _base."
)

HINT = "Tell inputs by their position, not by identity or address, and write into none of them."


def same_tensor_twice(base: Verified) -> Varied:
    """Forward and backward with one tensor for two inputs, against two tensors of the same values."""
    if base.forward_draws:
        return Varied()
    swept = Swept()
    for one, other in islice(_pairs(base), MOST_PAIRS):
        apart = _apart(base, one, other)
        judged = None if apart is None else _judged(apart, one, other)
        if judged is not None:
            swept = Swept(calls=("same tensor twice",))
        if isinstance(judged, Finding):
            return Varied((judged,), swept)
    return Varied(swept=swept)


def views_of_one_base(base: Verified) -> Varied:
    """Forward and backward with two inputs that are parts of one tensor, as a split makes them.

    A forward that writes into one of them writes into a part of the other's base, which torch may refuse.
    """
    ordinary = None if base.draws or not base.sample.subject.is_first_of_options else called(base.sample)
    if ordinary is None or isinstance(ordinary, Raised) or _writes(ordinary.value):
        return Varied()
    arguments = base.sample.arguments
    swept = Swept()
    plain = [k for k, argument in enumerate(arguments) if _is_plain(base, argument)]
    alike = [p for p in combinations(plain, 2) if len({arguments[k].value.dtype for k in p}) == 1]
    for one, other in alike[:MOST_PAIRS]:
        a, b = arguments[one].name, arguments[other].name
        variant = Variant("GV405", f"when `{a}` and `{b}` are views of one tensor", VIEWS_HINT)
        call = called(base.sample, of_one_base=(one, other))
        if isinstance(call, Raised):
            continue
        moved = variant.forward(base, call.value.outputs)
        found = variant.gradient(base, call.value) if moved is None else moved
        swept = Swept(calls=("views of one tensor",))
        if isinstance(found, RaisedError):
            found = variant.raised(base, found) if is_accident(found) else None
        if found is not None:
            return Varied((replace(found, input=found.input or a),), swept)
    return Varied(swept=swept)


def _is_plain(base: Verified, argument: Argument) -> bool:
    """Whether the caller passes it as a dense tensor of its own, with a gradient."""
    free = argument.differentiable and argument.step is None and argument.held is None
    return free and base.is_passed(argument)


def _pairs(base: Verified) -> Iterator[tuple[int, int]]:
    """Positions of two differentiable arguments for which the same values are valid."""
    described = {t.name: t for i in base.sample.case.inputs for t in tensors_of(i)}
    arguments = base.sample.arguments
    for one, other in combinations(range(len(arguments)), 2):
        a, b = arguments[one], arguments[other]
        plain = _is_plain(base, a) and _is_plain(base, b)
        if not plain or a.value.shape != b.value.shape or a.value.dtype != b.value.dtype:
            continue
        spec_a, spec_b = described.get(a.name), described.get(b.name)
        if spec_a is not None and spec_b is not None and _is_alike(spec_a, spec_b):
            yield one, other


def _is_alike(a: TensorInput, b: TensorInput) -> bool:
    return replace(a, name="") == replace(b, name="") and not a.make and a.value is None


def _apart(base: Verified, one: int, other: int) -> Verified | None:
    """The call with two tensors of the same values, the gradients of both as one; None if it is no use."""
    value = base.sample.arguments[one].value
    arguments = tuple(
        replace(a, value=value) if k == other else a for k, a in enumerate(base.sample.arguments)
    )
    problem = replace(base.sample.problem, arguments=arguments)
    same = replace(base.sample, arguments=arguments, problem=problem)
    call = called(same)
    if isinstance(call, Raised) or _writes(call.value):
        return None
    values = problem.outputs.flatten(copies(call.value.outputs))
    result = backward(same, call.value, base.grad_outputs())
    if isinstance(result, Raised):
        return None
    wanted = base.inputs.flatten(result.value)
    if not wanted.isfinite().all() or not values.isfinite().all():
        return None
    numbers = [i for i, a in enumerate(arguments) if a.differentiable]
    first, second = (base.inputs.blocks[numbers.index(k)] for k in (one, other))
    wanted[first.start : first.stop] += wanted[second.start : second.stop]
    wanted[second.start : second.stop] = 0.0
    return replace(base, sample=same, gradient=wanted, values=values)


def _judged(base: Verified, one: int, other: int) -> Finding | bool | None:
    """A finding, True where it is right, None where it is not known."""
    given: dict[int, Tensor] = {}

    def arrange(position: int, value: Tensor) -> Tensor:
        given[position] = given[one] if position == other else value
        return given[position]

    a, b = (base.sample.arguments[k].name for k in (one, other))
    variant = Variant("GV405", f"when the same tensor is passed as `{a}` and `{b}`", HINT)
    call = called(base.sample, arrange=arrange)
    if isinstance(call, Raised):
        return None
    moved = variant.forward(base, call.value.outputs)
    if moved is not None:
        return replace(moved, input=a)
    found = replace(variant, than=", the sum of both").gradient(base, call.value)
    if found is None:
        return True
    if isinstance(found, Finding):
        return replace(found, input=a)
    return replace(variant.raised(base, found), input=a) if is_accident(found) else None


def _writes(call: Call) -> bool:
    """Whether forward writes into an argument: then one tensor for two is another computation."""
    tensors = [p for p in call.passed if isinstance(p, Tensor)]
    return any(r is p for r in call.returned for p in tensors) or any(t._version > 0 for t in tensors)  # noqa: SLF001
