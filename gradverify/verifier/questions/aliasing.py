"""GV405: one tensor for two inputs (its gradient is the sum of both), and views of one tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, islice
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Finding, RaisedError, Severity, Swept, tensors_of
from gradverify.verifier.checks.wording import listed_names
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.questions.call import Arrange, called, is_accident
from gradverify.verifier.questions.verified import Variant, Varied, Verified

MOST_PAIRS = 3
"""Pairs of inputs that are tried."""

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
        arguments = list(base.sample.arguments)
        arguments[other] = replace(arguments[other], value=arguments[one].value)
        apart = base.at(tuple(arguments))
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


def _writes(base: Verified) -> bool:
    """Whether forward writes into an argument: then one tensor for two is another computation."""
    made = called(base.sample)
    if isinstance(made, Raised):
        return True
    tensors = [p for p in made.value.passed if isinstance(p, Tensor)]
    return any(t._version > 0 or any(r is t for r in made.value.returned) for t in tensors)  # noqa: SLF001
