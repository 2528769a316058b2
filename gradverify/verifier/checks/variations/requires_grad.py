"""GV406: the gradient of an input must not depend on which other inputs require grad."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from gradverify.model import Finding, RaisedError, Severity, Swept
from gradverify.verifier.checks.subject import first_line
from gradverify.verifier.checks.variations.running import backward, called, is_accident
from gradverify.verifier.checks.variations.variation import Varied
from gradverify.verifier.checks.variations.verified import Verified
from gradverify.verifier.checks.wording import listed_names
from gradverify.verifier.guard import Raised

ALL_SUBSETS = 4
"""Up to so many differentiable inputs every subset is tried; beyond, singles and all but one."""

REFUSING_WORDS = ("not implemented", "not supported", "unsupported")
"""What a compiled backward says that refuses on purpose."""

HINT = (
    "Test ctx.needs_input_grad for each gradient by itself, save what every one of them needs, and return "
    "them at the places of their own inputs."
)


def requires_grad_subsets(base: Verified) -> Varied:
    """Forward and backward with some of the inputs frozen."""
    count = len(base.names)
    if count < 2:
        return Varied(swept=Swept(requires_grad=(_key(base, frozenset(range(count))),)))
    swept = [_key(base, frozenset(range(count)))]
    refused: Finding | None = None
    for chosen in _subsets(count):
        finding = _with_subset(base, chosen)
        if finding is None:
            swept.append(_key(base, chosen))
        elif finding.severity is Severity.ERROR:
            return Varied((finding,), Swept(requires_grad=(*swept, _key(base, chosen))))
        else:
            refused = refused or finding
    return Varied(() if refused is None else (refused,), Swept(requires_grad=tuple(swept)))


def _subsets(count: int) -> Iterator[frozenset[int]]:
    """Proper subsets, the smallest first: a finding should name the fewest inputs."""
    sizes = range(1, count) if count <= ALL_SUBSETS else dict.fromkeys((1, count - 1))
    for size in sizes:
        yield from map(frozenset, combinations(range(count), size))


def _key(base: Verified, chosen: frozenset[int]) -> str:
    return ",".join(base.names[i] for i in sorted(chosen))


def _with_subset(base: Verified, chosen: frozenset[int]) -> Finding | None:
    sample = base.sample
    names = listed_names([base.names[i] for i in sorted(chosen)])
    when = f"when only {names} require{'s' if len(chosen) == 1 else ''} grad"
    call = called(sample, frozen=frozenset(range(len(base.names))) - chosen)
    if isinstance(call, Raised):
        return _raised(base, call.error, "forward", when, accident=is_accident(call.error))
    result = backward(sample, call.value, base.grad_outputs())
    if isinstance(result, Raised):
        error = result.error
        refusal = error.deliberate or any(words in error.message.lower() for words in REFUSING_WORDS)
        return _raised(base, error, "backward", when, accident=is_accident(error) or not refusal)
    difference = base.difference(result.value, only=chosen)
    if difference is not None:
        return base.finding(
            "GV406",
            f"the gradient of `{difference.name}` is wrong {when}: {difference.place} is "
            f"{difference.values}, which it is when every input does",
            hint=HINT,
            input=difference.name,
        )
    moved = base.forward_difference(call.value.outputs)
    if moved is None:
        return None
    return base.finding(
        "GV406",
        f"forward gives another result {when}: {moved.place} is {moved.values}",
        hint="What forward computes must not depend on ctx.needs_input_grad or requires_grad.",
    )


def _raised(base: Verified, error: RaisedError, where: str, when: str, *, accident: bool) -> Finding:
    return base.finding(
        "GV406",
        f"{where} raises {error.type} {when}: {first_line(error.message)}",
        hint=HINT,
        raised=error,
        **({} if accident else {"severity": Severity.NOTE}),
    )
