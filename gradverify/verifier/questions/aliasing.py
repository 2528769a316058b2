"""GV405: one tensor for two inputs (its gradient is the sum), two views of one, and an expanded input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, islice
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Finding, RaisedError, Severity, Swept, TensorInput, tensors_of
from gradverify.verifier.checks.wording import listed_names
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.questions.call import Arrange, called, is_accident
from gradverify.verifier.questions.changes import HINTS, OF_INPUTS, THAN
from gradverify.verifier.questions.layouts import EXPANDED, arranged, described
from gradverify.verifier.questions.verified import Variant, Varied, Verified

MOST_PAIRS = 3
"""Pairs of inputs that are tried."""

NEAR = 1e-7
"""Relative distance at which a gradient that differs is looked at again, to see whether it jumps there."""

SMOOTH = 1e-4
"""A gradient that changes by no more than this share over that distance does not jump."""

VIEWS_HINT = (
    "Two tensors may share a storage and be no copies of each other: tell inputs by their position, not by "
    "data_ptr() of a storage or by _base."
)

TWICE_HINT = "Tell inputs by their position, not by identity or address, and write into none of them."


def same_tensor_twice(base: Verified) -> Varied:
    """Forward and backward with one tensor for two inputs, against two tensors of the same values."""
    swept = Swept()
    for one, other in islice(() if base.forward_draws else _pairs(base), MOST_PAIRS):
        names = [base.sample.arguments[k].name for k in (one, other)]
        apart = _with_value(base, (other,), base.sample.arguments[one].value)
        if apart is None:
            continue
        first, second = (apart.inputs.blocks[base.names.index(name)] for name in names)
        apart.gradient[first.start : first.stop] += apart.gradient[second.start : second.stop]
        apart.gradient[second.start : second.stop] = 0.0
        when = f"when the same tensor is passed as `{names[0]}` and `{names[1]}`"

        def arrange(passed: list[Any], one: int = one, other: int = other) -> list[Any]:
            return [passed[one] if k == other else value for k, value in enumerate(passed)]

        found = _judged(apart, arrange, Variant("GV405", when, TWICE_HINT, ", the sum of both"))
        swept = Swept(calls=("same tensor twice",))
        if found is not None and not _writes(apart):
            return Varied((replace(found, input=names[0]),), swept)
    return Varied(swept=swept)


def views_of_one_base(base: Verified) -> Varied:
    """Forward and backward with inputs that are parts of one tensor, as a split makes them.

    A forward that writes into one of them writes into a part of the other's base, which torch may refuse.
    """
    plain = [(k, a) for k, a in enumerate(base.sample.arguments) if _is_plain(base, a)]
    places = [k for k, a in plain if a.value.dtype == plain[0][1].value.dtype]
    if base.draws or len(places) < 2:
        return Varied()

    def arrange(passed: list[Any]) -> list[Any]:
        parts = [passed[k] for k in places]
        whole = torch.cat([p.reshape(-1) for p in parts])
        for k, part, view in zip(
            places, parts, whole.split_with_sizes([p.numel() for p in parts]), strict=True
        ):
            passed[k] = view.view(part.shape)
        return passed

    names = [base.sample.arguments[k].name for k in places]
    variant = Variant("GV405", f"when {listed_names(names)} are views of one tensor", VIEWS_HINT)
    found = _judged(base, arrange, variant)
    found = replace(found, input=found.input or names[0]) if found and not _writes(base) else None
    return Varied(() if found is None else (found,), Swept(calls=("views of one tensor",)))


def expanded_inputs(base: Verified) -> Varied:
    """One input at a time, its first slice in place of all: compared with the same values, contiguous."""
    swept = Swept()
    for position, argument in enumerate(base.sample.arguments if not base.draws else ()):
        laid = _slices_alike(base, argument)
        same = None if laid is None else _with_value(base, (position,), laid.contiguous())
        if laid is None or same is None:
            continue

        def arrange(passed: list[Any], place: int = position) -> list[Any]:
            return [arranged(v, EXPANDED) if k == place else v for k, v in enumerate(passed)]

        when = f"when `{argument.name}` is {EXPANDED.name} ({described(laid)})"
        found = _judged(same, arrange, Variant(OF_INPUTS, when, HINTS[OF_INPUTS], THAN[OF_INPUTS]))
        swept = Swept(layouts=("inputs expanded",))
        if found is not None and _is_smooth(same) and not _writes(same):
            return Varied((replace(found, input=found.input or argument.name),), swept)
    return Varied(swept=swept)


def _judged(base: Verified, arrange: Arrange, variant: Variant) -> Finding | None:
    """An error, also by an accident; None where it is right, or refuses."""
    call = called(base.sample, arrange=arrange)
    if isinstance(call, Raised):
        return None
    found = variant.forward(base, call.value.outputs) or variant.gradient(base, call.value)
    if isinstance(found, RaisedError):
        return variant.raised(base, found) if is_accident(found) else None
    return found if found is None or found.severity is Severity.ERROR else None


def _is_plain(base: Verified, argument: Argument) -> bool:
    """Whether the caller passes it as a dense tensor of its own, with a gradient."""
    free = argument.differentiable and argument.step is None and argument.held is None
    return free and base.is_passed(argument)


def _pairs(base: Verified) -> Iterator[tuple[int, int]]:
    """Positions of two differentiable arguments for which the same values are valid."""
    described_as = {t.name: replace(t, name="") for i in base.sample.case.inputs for t in tensors_of(i)}
    for one, other in combinations(range(len(base.sample.arguments)), 2):
        a, b = base.sample.arguments[one], base.sample.arguments[other]
        if not _is_plain(base, a) or not _is_plain(base, b) or a.value.dtype != b.value.dtype:
            continue
        spec = described_as.get(a.name)
        known = spec is not None and not spec.make and spec.value is None
        if known and a.value.shape == b.value.shape and spec == described_as.get(b.name):
            yield one, other


def _slices_alike(base: Verified, argument: Argument) -> Tensor | None:
    """The argument with its first slice in place of all; None where such values may not be valid."""
    spec = next((i for i in base.sample.case.inputs if i.name == argument.name), None)
    may_be = isinstance(spec, TensorInput) and not spec.distinct and not spec.structure
    return EXPANDED.arrange(argument.value.detach()) if may_be and _is_plain(base, argument) else None


def _with_value(base: Verified, places: tuple[int, ...], value: Tensor) -> Verified | None:
    arguments = enumerate(base.sample.arguments)
    return base.at(tuple(replace(a, value=value) if k in places else a for k, a in arguments))


def _writes(base: Verified) -> bool:
    """Whether forward writes into an argument: then one tensor for two is another computation."""
    made = called(base.sample)
    if isinstance(made, Raised):
        return True
    tensors = [p for p in made.value.passed if isinstance(p, Tensor)]
    return any(t._version > 0 or any(r is t for r in made.value.returned) for t in tensors)  # noqa: SLF001


def _is_smooth(base: Verified) -> bool:
    """Whether the gradient does not jump near these values, as it does where ties are broken."""
    generator = torch.Generator().manual_seed(20_264)
    x = base.inputs.flatten(base.sample.problem.primals)
    away = torch.rand(x.shape, generator=generator, dtype=torch.float64) - 0.5
    moved = base.inputs.unflatten(x * (1 + NEAR * away))
    result = base.sample.problem.pull_back(moved, base.grad_outputs())
    if isinstance(result, Raised):
        return False
    change = (base.inputs.flatten(result.value) - base.gradient).abs()
    return bool((change <= SMOOTH * base.gradient.abs().max()).all())
