"""GV405: forward and backward must give the same whatever way the inputs lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Finding, Severity, Swept, TensorInput
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.variations.call import called, is_accident
from gradverify.verifier.variations.layouts import (
    ARRANGEMENTS,
    Arrangement,
    arranged,
    arrangements,
    described,
    expanded_along_first,
)
from gradverify.verifier.variations.verified import Variant, Varied, Verified

HINT = (
    "Call x = x.contiguous() before its memory is read (data_ptr, a kernel, as_strided), use reshape "
    "instead of view, and save the contiguous one; or pass the strides on."
)

VIEW_REFUSED = "view size is not compatible"
"""What torch says of `view` on a tensor that is not contiguous: nobody writes that to refuse a layout."""

EACH_ALONE = ARRANGEMENTS[:2]
"""Layouts with other strides: a kernel may take one tensor's for another's, so each is tried alone."""

MOST_ALONE = 4
"""So many tensors are laid out alone."""

EXPANDED = Arrangement("expanded along its first dimension", expanded_along_first)

NEAR = 1e-7
"""Relative distance at which the gradient is looked at again, to see whether it jumps there."""

SMOOTH = 1e-4
"""A gradient that changes by no more than this share over that distance does not jump."""


def input_layouts(base: Verified) -> Varied:
    """Every layout, of all tensors at once and of each alone; then inputs expanded from one slice."""
    if base.draws:
        return Varied()
    swept: list[str] = []
    notes: list[Finding] = []
    arguments = enumerate(base.sample.arguments)
    tensors = [i for i, a in arguments if isinstance(a.value, Tensor) and base.is_passed(a)]
    brief = base.sample.subject.brief
    for arrangement in arrangements(brief=brief):
        found = _with_arrangement(base, arrangement, tensors, swept)
        if found is not None and found.severity is Severity.ERROR:
            return Varied((found,), Swept(layouts=tuple(swept)))
        notes += [] if found is None else [found]
    expanded = None if brief else _expanded(base, swept)
    findings = [expanded] if expanded is not None else notes[:1]
    return Varied(tuple(findings), Swept(layouts=tuple(swept)))


def _with_arrangement(
    base: Verified, arrangement: Arrangement, tensors: Sequence[int], swept: list[str]
) -> Finding | None:
    fitting = [i for i in tensors if arranged(base.sample.arguments[i].value, arrangement) is not None]
    if not fitting:
        return None
    together = _judged(base, arrangement, tuple(fitting))
    alone: list[Finding | None] = []
    each = arrangement in EACH_ALONE and not base.sample.subject.brief
    if len(fitting) > 1 and (together is not None or each):
        alone = [_judged(base, arrangement, (i,)) for i in fitting[:MOST_ALONE]]
    found = [f for f in (*alone, together) if f is not None]
    errors = [f for f in found if f.severity is Severity.ERROR]
    if errors or len(found) < len(alone) + 1:
        swept.append(f"inputs {arrangement.name}")
    return (*errors, *found, None)[0]


def _judged(base: Verified, arrangement: Arrangement, chosen: tuple[int, ...]) -> Finding | None:
    sample = base.sample

    def arrange(position: int, value: Tensor) -> Tensor:
        laid = arranged(value, arrangement) if position in chosen else None
        return value if laid is None else laid

    alone = sample.arguments[chosen[0]] if len(chosen) == 1 else None
    when = f"when {f'`{alone.name}` is' if alone else 'the inputs are'} {arrangement.name}"
    laid = None if alone is None else arrangement.arrange(alone.value.detach())
    when += "" if laid is None else f" ({described(laid)})"
    variant = Variant("GV405", when, HINT, ", which contiguous ones give")
    call = called(sample, arrange=arrange)
    if isinstance(call, Raised):
        return variant.raised(base, call.error, "forward")
    moved = variant.forward(base, call.value.outputs)
    if moved is not None:
        return replace(moved, input=None if alone is None else alone.name)
    found = variant.gradient(base, call.value)
    if found is None or isinstance(found, Finding):
        return found
    return variant.raised(base, found, serious=is_accident(found) or VIEW_REFUSED in found.message)


def _expanded(base: Verified, swept: list[str]) -> Finding | None:
    """One input at a time, its first slice in place of all: compared with the same values, contiguous."""
    for position, argument in enumerate(base.sample.arguments):
        slices = _slices_alike(base, argument)
        same = None if slices is None else _at(base, position, slices)
        if same is None:
            continue
        swept.append("inputs expanded")
        found = _judged(same, EXPANDED, (position,))
        if found is not None and found.severity is Severity.ERROR:
            return found
    return None


def _slices_alike(base: Verified, argument: Argument) -> Tensor | None:
    """The argument with its first slice in place of all; None where such values may not be valid."""
    free = argument.differentiable and argument.step is None and argument.held is None
    if not free or not base.is_passed(argument):
        return None
    described_as = next((i for i in base.sample.case.inputs if i.name == argument.name), None)
    if not isinstance(described_as, TensorInput) or described_as.distinct or described_as.structure:
        return None
    laid = expanded_along_first(argument.value.detach())
    return None if laid is None else laid.contiguous()


def _at(base: Verified, position: int, value: Tensor) -> Verified | None:
    """The sample with another value of one argument; None where its gradient is not known or jumps there."""
    arguments = tuple(
        replace(a, value=value) if k == position else a for k, a in enumerate(base.sample.arguments)
    )
    problem = replace(base.sample.problem, arguments=arguments)
    gradient = problem.pull_back(problem.primals, base.grad_outputs())
    values = problem.evaluate(problem.primals)
    if isinstance(gradient, Raised) or isinstance(values, Raised):
        return None
    same = replace(
        base,
        sample=replace(base.sample, arguments=arguments, problem=problem),
        gradient=base.inputs.flatten(gradient.value),
        values=problem.outputs.flatten(values.value),
    )
    return same if _is_smooth(same) else None


def _is_smooth(base: Verified) -> bool:
    """Whether the gradient does not jump near these values, as it does where ties are broken."""
    if not base.gradient.isfinite().all():
        return False
    generator = torch.Generator().manual_seed(20_264)
    x = base.inputs.flatten(base.sample.problem.primals)
    away = torch.rand(x.shape, generator=generator, dtype=torch.float64) - 0.5
    moved = base.inputs.unflatten(x * (1 + NEAR * away))
    result = base.sample.problem.pull_back(moved, base.grad_outputs())
    if isinstance(result, Raised):
        return False
    change = (base.inputs.flatten(result.value) - base.gradient).abs()
    return bool((change <= SMOOTH * base.gradient.abs().max()).all())
