"""GV404: backward must give the same whatever way grad_output lies in memory."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Finding, Swept
from gradverify.verifier.checks.wording import output_name
from gradverify.verifier.guard import Raised
from gradverify.verifier.variations.call import called
from gradverify.verifier.variations.layouts import CONJUGATED, arrangements, described, expanded
from gradverify.verifier.variations.verified import Variant, Varied, Verified

HINT = (
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

EXPANDED = "grad_output expanded"
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
        finding = _judged(base, given, base.u, base.gradient, arrangement.name)
        if finding is not None:
            return Varied((finding,), Swept(layouts=tuple(swept)))
    finding = _expanded(base, swept)
    return Varied(() if finding is None else (finding,), Swept(layouts=tuple(swept)))


def _expanded(base: Verified, swept: list[str]) -> Finding | None:
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
        if EXPANDED not in swept:
            swept.append(EXPANDED)
        finding = _judged(base, given, u, wanted, words)
        if finding is not None:
            return finding
    return None


def _one_value(t: Tensor) -> Tensor:
    return expanded(t.flatten()[:1], t) if t.dim() and t.numel() else t


def _one_row(t: Tensor) -> Tensor:
    return t[:1].clone().expand_as(t) if t.dim() > 1 and t.numel() and t.shape[0] > 1 else t


def _one_column(t: Tensor) -> Tensor:
    return t[..., :1].clone().expand_as(t) if t.dim() > 1 and t.numel() and t.shape[-1] > 1 else t


def _judged(base: Verified, given: _Given, u: Tensor, wanted: Tensor, layout: str) -> Finding | None:
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
    hint = RESOLVE if any(t.is_conj() for t in given) else HINT
    when = f"when {which} is {layout} ({described(given[position or 0])})"
    variant = Variant("GV404", when, hint, ", which a contiguous one gives", output=number)
    found = variant.gradient(base, call.value, given, wanted=wanted, u=u)
    if found is None or isinstance(found, Finding):
        return found
    return replace(variant, hint=ORDINARY + hint).raised(base, found, serious=True)
