"""GV405: one tensor for two inputs (its gradient is the sum of both), and views of one tensor.

A forward that writes into an argument computes something else then, or torch refuses it: it is not asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, islice
from typing import Any

import torch

from gradverify.model import Finding, tensors_of
from gradverify.verifier.checks.wording import listed_names
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.questions.call import Arrange, called
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
    asked: list[str] = []
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
        found, asked = _judged(apart, partial(_instead, one, other), variant), ["same tensor twice"]
        if found is not None:
            return Varied.of(found, calls=asked)
    return Varied.of(calls=asked)


def views_of_one_base(base: Verified) -> Varied:
    """Forward and backward with inputs that are parts of one tensor, as a split makes them."""
    plain = [(k, a) for k, a in enumerate(base.sample.arguments) if _is_plain(base, a)]
    places = [k for k, a in plain if a.value.dtype == plain[0][1].value.dtype]
    if base.draws or base.writes or len(places) < 2:
        return Varied()
    names = [base.sample.arguments[k].name for k in places]
    when = f"when {listed_names(names)} are views of one tensor"
    variant = Variant("GV405", when, VIEWS_HINT, input=names[0])
    return Varied.of(_judged(base, partial(_of_one, places), variant), calls=["views of one tensor"])


def _instead(one: int, other: int, passed: list[Any]) -> list[Any]:
    """One argument in place of another."""
    return [passed[one] if k == other else value for k, value in enumerate(passed)]


def _of_one(places: Sequence[int], passed: list[Any]) -> list[Any]:
    """Some arguments as views of one tensor."""
    parts = [passed[k] for k in places]
    whole = torch.cat([p.reshape(-1) for p in parts]).split_with_sizes([p.numel() for p in parts])
    views = dict(zip(places, map(torch.Tensor.view_as, whole, parts), strict=True))
    return [views.get(k, value) for k, value in enumerate(passed)]


def _judged(base: Verified, arrange: Arrange, variant: Variant) -> Finding | None:
    """What is wrong; nothing where rounding leaves no digit: equal inputs may cancel."""
    found = variant.judged(base, called(base.sample, arrange=arrange))
    return found if found is None or found.code == variant.code else None


def _is_plain(base: Verified, argument: Argument) -> bool:
    """Whether the caller passes it as a dense tensor of its own, with a gradient."""
    free = argument.differentiable and argument.step is None and argument.held is None
    return free and base.is_passed(argument)


def _pairs(base: Verified) -> Iterator[tuple[int, int]]:
    """Positions of two differentiable arguments for which the same values are valid."""
    described_as = {t.name: replace(t, name="") for i in base.sample.case.inputs for t in tensors_of(i)}
    for (one, a), (other, b) in combinations(enumerate(base.sample.arguments), 2):
        spec = described_as.get(a.name)
        known = spec is not None and not spec.make and spec.value is None and spec == described_as.get(b.name)
        if known and _is_plain(base, a) and _is_plain(base, b):
            is_alike = a.value.dtype == b.value.dtype and a.value.shape == b.value.shape
            yield from [(one, other)][: is_alike and a.value.numel() > 0]
