"""GV404: backward must give the same whatever way grad_output lies in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.model import Finding, RaisedError, Swept
from gradverify.verifier.checks.subject import first_line
from gradverify.verifier.checks.variations.arranging import (
    ARRANGEMENTS,
    CONJUGATED,
    described,
    expanded,
)
from gradverify.verifier.checks.variations.running import backward, called
from gradverify.verifier.checks.variations.variation import Varied
from gradverify.verifier.checks.variations.verified import Verified
from gradverify.verifier.checks.variations.where_read import where_read
from gradverify.verifier.checks.wording import output_name
from gradverify.verifier.guard import Raised

HINT = (
    "Call grad_output = grad_output.contiguous() before its memory is read (data_ptr, a kernel, as_strided, "
    "view), or pass its strides on."
)

RESOLVE = (
    "Call grad_output = grad_output.resolve_conj() before its memory is read (data_ptr, a kernel, numpy): "
    "what comes back through z.conj() is such a view."
)

SUMS_GRAD = 0.875
"""The one value of an expanded grad_output: no power of two, and not the 1 that hides a missing factor."""


def grad_output_layouts(base: Verified) -> Varied:
    """Every layout that the shape has, then one value expanded to the whole shape, as `.sum()` sends it."""
    if base.backward_draws or not base.u.numel():
        return Varied()
    swept: list[str] = []
    for arrangement in (*ARRANGEMENTS, CONJUGATED):
        given = [arrangement.arrange(t) for t in base.grad_outputs()]
        if all(t is None for t in given):
            continue
        swept.append(f"grad_output {arrangement.name}")
        tensors = _or_contiguous(given, base.grad_outputs())
        finding = _judged(base, tensors, base.u, base.gradient, arrangement.name)
        if finding is not None:
            return Varied((finding,), Swept(layouts=tuple(swept)))
    finding = _expanded(base, swept)
    return Varied(() if finding is None else (finding,), Swept(layouts=tuple(swept)))


def _or_contiguous(given: list[Tensor | None], contiguous: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(c if g is None else g for g, c in zip(given, contiguous, strict=True))


def _expanded(base: Verified, swept: list[str]) -> Finding | None:
    if not any(t.dim() and t.numel() > 1 for t in base.grad_outputs()):
        return None
    u = torch.full_like(base.u, SUMS_GRAD)
    wanted = base.gradient_for(u)
    if wanted is None or not wanted.isfinite().all():
        return None
    swept.append("grad_output expanded")
    given = tuple(expanded(t.flatten()[:1], t) if t.dim() and t.numel() else t for t in base.grad_outputs(u))
    return _judged(base, given, u, wanted, "expanded from one value, as .sum().backward() sends it")


def _judged(
    base: Verified, given: tuple[Tensor, ...], u: Tensor, wanted: Tensor, layout: str
) -> Finding | None:
    """The finding on one layout of all grad_outputs, narrowed to one output where one alone shows it."""
    finding = _one(base, given, u, wanted, layout, None)
    if finding is None or len(given) == 1:
        return finding
    plain = base.grad_outputs(u)
    for position in range(len(given)):
        alone = tuple(g if k == position else p for k, (g, p) in enumerate(zip(given, plain, strict=True)))
        narrowed = _one(base, alone, u, wanted, layout, position)
        if narrowed is not None:
            return narrowed
    return finding


def _one(
    base: Verified,
    given: tuple[Tensor, ...],
    u: Tensor,
    wanted: Tensor,
    layout: str,
    position: int | None,
) -> Finding | None:
    sample = base.sample
    call = called(sample)
    if isinstance(call, Raised):
        return None
    result = backward(sample, call.value, given)
    shown = given[position or 0]
    number = sample.problem.output_positions[position or 0]
    several = len(given) > 1
    which = f"grad_output of {output_name(number, sample.outputs_returned)}" if several else "grad_output"
    when = f"when {which} is {layout} ({described(shown)})"
    if isinstance(result, Raised):
        return _raised(base, result.error, when, number, given)
    difference = base.difference(result.value, wanted, u=u)
    if difference is None:
        return None
    return base.finding(
        "GV404",
        f"the gradient of `{difference.name}` is wrong {when}: {difference.place} is {difference.values}, "
        "which a contiguous one gives",
        hint=where_read(base, given, base.grad_outputs(u)) + _hint(given),
        input=difference.name,
        output=number,
    )


def _hint(given: tuple[Tensor, ...]) -> str:
    return RESOLVE if any(t.is_conj() for t in given) else HINT


def _raised(base: Verified, error: RaisedError, when: str, output: int, given: tuple[Tensor, ...]) -> Finding:
    return base.finding(
        "GV404",
        f"backward raises {error.type} {when}: {first_line(error.message)}",
        hint="Such a grad_output comes from ordinary code (.sum(), .mT, torch.cat). " + _hint(given),
        output=output,
        raised=error,
    )
