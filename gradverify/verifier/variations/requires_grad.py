"""GV406: the gradient of an input must not depend on which other inputs require grad."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from gradverify.model import Finding, Severity, Swept
from gradverify.verifier.checks.wording import listed_names
from gradverify.verifier.guard import Raised
from gradverify.verifier.variations.call import called, is_accident, is_refusal
from gradverify.verifier.variations.variation import Variant, Varied
from gradverify.verifier.variations.verified import Verified

ALL_SUBSETS = 4
"""Up to so many differentiable inputs every subset is tried; beyond, singles and all but one."""

HINT_OF_A_SUBSET = (
    "Test ctx.needs_input_grad for each gradient separately, save what every one of them needs, and return "
    "them at the places of their own inputs."
)


def requires_grad_subsets(base: Verified) -> Varied:
    """Forward and backward with some of the inputs frozen."""
    count = len(base.names)
    swept = [_key(base, frozenset(range(count)))]
    refused: Finding | None = None
    for chosen in _subsets(count, singles=base.sample.subject.brief):
        finding = _with_subset(base, chosen)
        if finding is None:
            swept.append(_key(base, chosen))
        elif finding.severity is Severity.ERROR:
            return Varied((finding,), Swept(requires_grad=(*swept, _key(base, chosen))))
        else:
            refused = refused or finding
    return Varied(() if refused is None else (refused,), Swept(requires_grad=tuple(swept)))


def _subsets(count: int, *, singles: bool) -> Iterator[frozenset[int]]:
    """Proper subsets, the smallest first: a finding should name the fewest inputs."""
    sizes = range(1, count) if count <= ALL_SUBSETS else dict.fromkeys((1, count - 1))
    sizes = range(1, min(count, 2)) if singles else sizes
    for size in sizes:
        yield from map(frozenset, combinations(range(count), size))


def singles_and_all_but_one(some: int, count: int) -> Iterator[frozenset[int]]:
    """Each of the first `some` of `count` inputs alone, then all but each of these."""
    if count > 1:
        yield from (frozenset({k}) for k in range(some))
    if count > 2:
        yield from (frozenset(range(count)) - {k} for k in range(some))


def _key(base: Verified, chosen: frozenset[int]) -> str:
    return ",".join(base.names[i] for i in sorted(chosen))


def _with_subset(base: Verified, chosen: frozenset[int]) -> Finding | None:
    names = listed_names([base.names[i] for i in sorted(chosen)])
    when = f"when only {names} require{'s' if len(chosen) == 1 else ''} grad"
    variant = Variant("GV406", when, HINT_OF_A_SUBSET)
    call = called(base.sample, frozen=frozenset(range(len(base.names))) - chosen)
    if isinstance(call, Raised):
        return variant.raised(base, call.error, "forward")
    found = variant.gradient(base, call.value, only=chosen)
    if isinstance(found, Finding):
        return found
    if found is not None:
        said = variant.raised(base, found, serious=is_accident(found) or not is_refusal(found))
        # Whoever freezes parameters of a module reads what it raises at once, and no gradient is wrong.
        is_loud = base.sample.problem.of_module and said.severity is Severity.ERROR
        return replace(said, severity=Severity.WARNING) if is_loud else said
    return variant.forward(base, call.value.outputs)
