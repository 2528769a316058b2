"""The same values in another layout of memory.

GV405: forward and backward must give the same whatever way the inputs lie in memory.

GV404: backward must give the same whatever way grad_output lies in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.model import Finding, Severity, Swept, TensorInput
from gradverify.verifier.checks.wording import output_name
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import Snapshot
from gradverify.verifier.variations.call import called, is_accident
from gradverify.verifier.variations.verified import Variant, Varied, Verified

OFFSET = 3
"""Elements that lie before a tensor with a storage offset."""

PADDING = 2
"""Entries by which the last dimension of the larger tensor exceeds the one narrowed out of it."""

JUNK = 0.75
"""What is added to a tensor's values to fill the memory around it: finite, near them, never the same."""


@dataclass(frozen=True)
class Arrangement:
    """A layout: the words for it, and how a tensor is put into it."""

    name: str
    arrange: Callable[[Tensor], Tensor | None]
    """A fresh tensor of the same values, no view of another; None where this shape has no such layout."""


def _contiguous_strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]


def _transposed(x: Tensor) -> Tensor | None:
    if sum(n > 1 for n in x.shape) < 2:
        return None
    return _placed(x, [math.prod(x.shape[:k]) for k in range(x.dim())])


def _every_second(x: Tensor) -> Tensor | None:
    return _placed(x, [2]) if x.dim() == 1 and x.numel() > 1 else None


def _narrowed(x: Tensor) -> Tensor | None:
    if x.dim() < 2 or not x.numel() or all(n == 1 for n in x.shape[:-1]):
        return None
    return _placed(x, _contiguous_strides((*x.shape[:-1], x.shape[-1] + PADDING)), offset=1)


def _offset(x: Tensor) -> Tensor | None:
    return _placed(x, _contiguous_strides(x.shape), offset=OFFSET) if x.numel() else None


def _channels_last(x: Tensor) -> Tensor | None:
    if x.dim() not in {4, 5} or x.shape[1] < 2 or math.prod(x.shape[2:]) < 2:
        return None
    channels = x.shape[1]
    inner = [channels * stride for stride in _contiguous_strides(x.shape)[2:]]
    return _placed(x, [math.prod(x.shape[1:]), 1, *inner])


def _conjugated(x: Tensor) -> Tensor | None:
    """A lazy conjugate, as the gradient of z.conj() is: in memory lies the conjugate of every value."""
    return x.detach().conj().resolve_conj().conj() if x.is_complex() and x.numel() else None


ARRANGEMENTS = (
    Arrangement("transposed", _transposed),
    Arrangement("every second entry of a larger tensor", _every_second),
    Arrangement("narrowed out of a larger tensor", _narrowed),
    Arrangement("at an offset into its storage", _offset),
    Arrangement("channels-last", _channels_last),
)
"""The layouts that keep every value."""


OTHER_STRIDES = tuple(a for a in ARRANGEMENTS if a.arrange is not _offset)
"""Those that code may mistake for contiguous."""


def arrangements(*, brief: bool) -> tuple[Arrangement, ...]:
    """The layouts to try; `brief`: those of other strides, which kernels mistake most often."""
    return ARRANGEMENTS[:2] if brief else ARRANGEMENTS


CONJUGATED = Arrangement("lazily conjugated", _conjugated)
"""Of a complex grad_output alone: there is no such tensor but as a view."""


def expanded(x: Tensor, like: Tensor) -> Tensor:
    """One value for a whole shape, of stride 0 in every dimension."""
    return _placed(x.reshape(()).expand(like.shape), [0] * like.dim(), room=like.numel())


def expanded_along_first(x: Tensor) -> Tensor | None:
    """The first slice of a tensor in place of all of them, of stride 0 along the first dimension."""
    if x.dim() < 1 or x.shape[0] < 2 or not x.numel():
        return None
    strides = [0, *_contiguous_strides(x.shape)[1:]]
    return _placed(x[:1].expand(x.shape), strides, room=x.numel())


def described(x: Tensor) -> str:
    """`strides (1, 3)`, with the storage offset where there is one."""
    strides = f"strides {tuple(x.stride())}"
    return f"{strides}, storage offset {x.storage_offset()}" if x.storage_offset() else strides


def arranged(x: Tensor, arrangement: Arrangement) -> Tensor | None:
    """An argument in another layout, joined to its graph; None where its shape has no such layout."""
    if x.layout is not torch.strided or arrangement.arrange(x.detach()) is None:
        return None
    if not x.requires_grad:
        return arrangement.arrange(x)
    result: Tensor = _Arranged.apply(x, arrangement)  # type: ignore[no-untyped-call]
    return result


def _placed(x: Tensor, strides: list[int], offset: int = 0, room: int = 0) -> Tensor:
    """Copy values into memory laid out by these strides; the gaps and the surroundings hold junk.

    Junk, so that code which reads them as if they were the tensor's gets a wrong value and no crash.
    """
    reach = sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True)) + 1
    count = offset + max(reach, room) + PADDING
    junk = x.detach().flatten()
    junk = junk[torch.arange(count, device=x.device) % junk.numel()].flip(0)
    if junk.is_floating_point() or junk.is_complex():
        junk = junk + JUNK
    with torch.no_grad():
        made = torch.empty(0, dtype=x.dtype, device=x.device)
        made.set_(junk.contiguous().untyped_storage(), offset, tuple(x.shape), tuple(strides))
        kept = tuple(
            slice(None) if s or n == 1 else slice(0, 1) for n, s in zip(x.shape, strides, strict=True)
        )
        made[kept].copy_(x.detach()[kept])
    return made


class _Arranged(Function):
    """Identity that lays its result out otherwise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, arrangement: Arrangement) -> Any:  # noqa: ANN401, ARG004
        return arrangement.arrange(x.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ANN401, ARG004
        return grads[0], None


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
        found = _judged(same, EXPANDED, (position,))
        if found is not None and _is_written(same, position):
            continue
        swept.append("inputs expanded")
        if found is not None and found.severity is Severity.ERROR:
            return found
    return None


def _is_written(base: Verified, position: int) -> bool:
    """Whether forward writes into an argument: torch refuses that of one whose entries share their memory."""
    before: list[Snapshot] = []

    def noted(place: int, value: Tensor) -> Tensor:
        before.extend([Snapshot.of(value)] if place == position else [])
        return value

    return not isinstance(called(base.sample, arrange=noted), Raised) and any(s.changed for s in before)


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


HINT_OF_GRAD_OUTPUT = (
    "Call grad_output = grad_output.contiguous() before its memory is read (data_ptr, a kernel, as_strided, "
    "view), or pass its strides on."
)

RESOLVE = (
    "Call grad_output = grad_output.resolve_conj() before its memory is read (data_ptr, a kernel, numpy): "
    "what comes back through z.conj() is such a view."
)

ORDINARY = "Such a grad_output comes from ordinary code (.sum(), .mT, torch.cat). "

SUMS_GRAD = 0.875
"""The one value of an expanded grad_output: no power of two, and not the 1 that hides a missing factor."""

EXPANDED_GRAD_OUTPUT = "grad_output expanded"
"""The name of this layout, of whatever it is expanded from."""

_Given = tuple[Tensor, ...]


def grad_output_layouts(base: Verified) -> Varied:
    """Every layout that the shape has, then what is expanded to the whole shape, as sums send it."""
    if base.backward_draws or not base.u.numel():
        return Varied()
    swept: list[str] = []
    for arrangement in (*arrangements(brief=base.sample.subject.brief), CONJUGATED):
        arranged = [arrangement.arrange(t) for t in base.grad_outputs()]
        if all(t is None for t in arranged):
            continue
        swept.append(f"grad_output {arrangement.name}")
        pairs = zip(arranged, base.grad_outputs(), strict=True)
        given = tuple(plain if laid is None else laid for laid, plain in pairs)
        finding = _judged_grad_output(base, given, base.u, base.gradient, arrangement.name)
        if finding is not None:
            return Varied((finding,), Swept(layouts=tuple(swept)))
    finding = _expanded_grad_output(base, swept)
    return Varied(() if finding is None else (finding,), Swept(layouts=tuple(swept)))


def _expanded_grad_output(base: Verified, swept: list[str]) -> Finding | None:
    """One value, one row and one column repeated by a stride of 0, as sums send them."""
    if not any(t.dim() and t.numel() > 1 for t in base.grad_outputs()):
        return None
    one = base.grad_outputs(torch.full_like(base.u, SUMS_GRAD))
    several = base.grad_outputs()
    ways = (
        ("expanded from one value, as .sum().backward() sends it", tuple(map(_one_value, one))),
        ("one row expanded, as .sum(0) sends it", tuple(map(_one_row, several))),
        ("one column expanded, as .sum(-1) sends it", tuple(map(_one_column, several))),
    )
    for words, given in ways:
        if not any(0 in t.stride() for t in given):
            continue
        u = base.sample.problem.outputs.flatten([t.contiguous() for t in given])
        wanted = base.gradient_for(u)
        if wanted is None or not wanted.isfinite().all():
            continue
        if EXPANDED_GRAD_OUTPUT not in swept:
            swept.append(EXPANDED_GRAD_OUTPUT)
        finding = _judged_grad_output(base, given, u, wanted, words)
        if finding is not None:
            return finding
    return None


def _one_value(t: Tensor) -> Tensor:
    return expanded(t.flatten()[:1], t) if t.dim() and t.numel() else t


def _one_row(t: Tensor) -> Tensor:
    return t[:1].clone().expand_as(t) if t.dim() > 1 and t.numel() and t.shape[0] > 1 else t


def _one_column(t: Tensor) -> Tensor:
    return t[..., :1].clone().expand_as(t) if t.dim() > 1 and t.numel() and t.shape[-1] > 1 else t


def _judged_grad_output(
    base: Verified, given: _Given, u: Tensor, wanted: Tensor, layout: str
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
    base: Verified, given: _Given, u: Tensor, wanted: Tensor, layout: str, position: int | None
) -> Finding | None:
    call = called(base.sample)
    if isinstance(call, Raised):
        return None
    number = base.sample.problem.output_positions[position or 0]
    several = len(given) > 1
    which = (
        f"grad_output of {output_name(number, base.sample.outputs_returned)}" if several else "grad_output"
    )
    hint = RESOLVE if any(t.is_conj() for t in given) else HINT_OF_GRAD_OUTPUT
    when = f"when {which} is {layout} ({described(given[position or 0])})"
    variant = Variant("GV404", when, hint, ", which a contiguous one gives", output=number)
    found = variant.gradient(base, call.value, given, wanted=wanted, u=u)
    if found is None or isinstance(found, Finding):
        return found
    return replace(variant, hint=ORDINARY + hint).raised(base, found, serious=True)
