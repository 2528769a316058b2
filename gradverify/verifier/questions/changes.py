"""GV404 to GV407: a call with other layouts, another requires_grad set or an undefined grad_output.

A layout is the same values elsewhere in memory, or one slice repeated. Every call carries one change of each
kind, and every two of the commonest are met together: a backward may make grad_output contiguous only where a
bias needs its gradient. A call that shows something is narrowed to one change, else to two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.cases.pairwise import cover
from gradverify.model import Finding, RaisedError, Severity, Swept
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.questions.findings import CheckResult, listed_names
from gradverify.verifier.questions.verified import Variant, Verified, called, is_accident, is_refusal

PADDING = 2
"""Entries by which the last dimension of the larger tensor exceeds the one narrowed out of it."""

JUNK = 0.75
"""What is added to a tensor's values to fill the memory around it: finite, near them, never the same."""

Strides = Callable[[Sequence[int]], Sequence[int] | None]
"""The strides of a shape, 0 where one slice stands for all; None where it has no such layout."""


@dataclass(frozen=True)
class Arrangement:
    """A layout: the words for it, and how a tensor is put into it."""

    name: str
    strides: Strides | None
    """None: those of a contiguous tensor, whose values are lazily conjugated."""
    offset: int = 0
    """Elements that lie before it."""

    def arrange(self, x: Tensor) -> Tensor | None:
        """A fresh tensor, no view of another; None where this shape has no such layout.

        The gaps and the surroundings hold junk, so that code which reads them as if they were the tensor's
        gets a wrong value and no crash.
        """
        if not x.numel() or x.layout is not torch.strided:
            return None
        if self.strides is None:  # in memory lies the conjugate of every value
            return x.detach().conj().resolve_conj().conj() if x.is_complex() else None
        strides = self.strides(x.shape)
        if strides is None:
            return None
        reach = sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True)) + 1
        count = self.offset + max(reach, x.numel()) + PADDING
        junk = x.detach().flatten()[torch.arange(count, device=x.device) % x.numel()].flip(0)
        if junk.is_floating_point() or junk.is_complex():
            junk = junk + JUNK
        made = torch.empty(0, dtype=x.dtype, device=x.device)
        made.set_(junk.contiguous().untyped_storage(), self.offset, tuple(x.shape), tuple(strides))
        kept = tuple(slice(None if s else 1) for s in strides)
        made[kept].copy_(x.detach()[kept])
        return made


def _contiguous(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]


def _transposed(shape: Sequence[int]) -> list[int] | None:
    return [math.prod(shape[:k]) for k in range(len(shape))] if sum(n > 1 for n in shape) > 1 else None


def _sliced(shape: Sequence[int]) -> list[int]:
    return [2] if len(shape) == 1 else _contiguous((*shape[:-1], *(n + PADDING for n in shape[-1:])))


def _channels_last(shape: Sequence[int]) -> list[int] | None:
    if len(shape) not in {4, 5} or shape[1] < 2 or math.prod(shape[2:]) < 2:
        return None
    return [math.prod(shape[1:]), 1, *(shape[1] * stride for stride in _contiguous(shape[2:]))]


def _repeated(dims: slice, shape: Sequence[int]) -> list[int] | None:
    """One slice along some dimensions in place of all."""
    repeated = range(len(shape))[dims]
    if all(shape[d] < 2 for d in repeated) or (len(shape) < 2 and dims != slice(None)):
        return None
    return [0 if d in repeated else stride for d, stride in enumerate(_contiguous(shape))]


TRANSPOSED = Arrangement("transposed", _transposed)
SLICED = Arrangement("sliced out of a larger tensor", _sliced, offset=1)
"""Of a vector every second entry."""
CHANNELS_LAST = Arrangement("channels-last", _channels_last)
CONJUGATED = Arrangement("lazily conjugated", None)
"""Of a complex grad_output alone: there is no such tensor but as a view."""

FROM_SUMS = (
    Arrangement("expanded from one value, as .sum().backward() sends it", partial(_repeated, slice(None))),
    Arrangement("expanded from one row, as .sum(0) sends it", partial(_repeated, slice(1))),
    Arrangement("expanded from one column, as .sum(-1) sends it", partial(_repeated, slice(-1, None))),
)
"""Of a grad_output: other values."""


def arranged(x: Tensor, arrangement: Arrangement) -> Tensor:
    """An argument in another layout that its shape has, joined to its graph."""
    result: Tensor = _Arranged.apply(x, arrangement)  # type: ignore[no-untyped-call]
    return result


class _Arranged(Function):
    """Identity that lays its result out otherwise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, arrangement: Arrangement) -> Any:  # noqa: ANN401, ARG004
        return arrangement.arrange(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ANN401, ARG004
        return grads[0], None


MOST_ALONE = 4
"""So many tensors are laid out, or left undefined, alone."""

ALL_SUBSETS = 3
"""Up to so many differentiable inputs every subset is asked; beyond, singles and all but one."""

VIEW_REFUSED = "view size is not compatible"
"""What torch says of `view` on a tensor that is not contiguous: nobody writes that to refuse a layout."""

OF_GRAD_OUTPUT, OF_INPUTS, OF_SUBSET, UNDEFINED = "GV404", "GV405", "GV406", "GV407"

HINTS = {
    OF_GRAD_OUTPUT: "Such a grad_output comes from ordinary code (.sum(), .mT, torch.cat, z.conj()). Call "
    "grad_output = grad_output.contiguous(), or .resolve_conj(), before its memory is read (data_ptr, a "
    "kernel, as_strided, view) or pass its strides on.",
    OF_INPUTS: "Call x = x.contiguous() before its memory is read (data_ptr, a kernel, as_strided), use "
    "reshape instead of view, and save the contiguous one; or pass the strides on.",
    OF_SUBSET: "Test ctx.needs_input_grad for each gradient separately, save what every one of them needs, "
    "and return them at the places of their own inputs.",
    UNDEFINED: "Treat None as zeros, or leave ctx.set_materialize_grads at its default.",
}

TOGETHER = (
    "Each of these alone is right. Look for a branch of backward (ctx.needs_input_grad, strides, a "
    "grad_output of None) that leaves out what another one does: .contiguous(), a saved tensor, zeros."
)

THAN = {
    OF_GRAD_OUTPUT: ", which a contiguous one gives",
    OF_INPUTS: ", which contiguous ones give",
    UNDEFINED: ", which zeros in its place give",
}

STRONG = (TRANSPOSED, CHANNELS_LAST)
"""Layouts that are met with every other change."""

ONCE = {OF_GRAD_OUTPUT: (SLICED, *FROM_SUMS, CONJUGATED), OF_INPUTS: (SLICED,)}
"""Those that are met once."""


@dataclass(frozen=True)
class Change:
    """One thing that is not as in the verified call."""

    code: str
    """Of what it finds alone: a call has one of each."""
    places: frozenset[int]
    """The arguments or grad_outputs that are laid out, the inputs that are frozen, the outputs undefined."""
    said: str = ""
    """What is not as before; of a layout its places say it."""
    layout: Arrangement | None = None

    @property
    def each(self) -> tuple[Change, ...]:
        """The same of one tensor at a time; none where it is one already, or has no layout."""
        several = self.layout is not None and len(self.places) > 1
        places = sorted(self.places)[:MOST_ALONE] if several else ()
        return tuple(replace(self, places=frozenset({place})) for place in places)


Row = Sequence[Change]


def changes(base: Verified) -> CheckResult:
    """Every pair of changes at the first case, each once at other options, a few together at other sizes."""
    subject = base.subject
    kinds, nothing = list(_kinds(base)), _undefined(base)[-1:]
    if not subject.is_base or subject.brief:
        kinds = [([], [*strong, *once]) for strong, once in kinds]
    rows = _in_pairs(kinds)
    if subject.brief or not subject.is_first_of_options:
        rows = rows[:1]
    return _asked(base, [*rows, *zip(nothing)] if subject.is_first_of_options else rows)


def requires_grad_subsets(base: Verified) -> CheckResult:
    """The requires_grad sets alone."""
    return _asked(base, list(zip(_subsets(base))))


def _kinds(base: Verified) -> Iterator[tuple[list[Change], list[Change]]]:
    """Of each kind what is met with every other one, and what is met once."""
    if not base.backward_draws and "GV401" not in base.found:
        yield _layouts(base, OF_GRAD_OUTPUT, STRONG), _layouts(base, OF_GRAD_OUTPUT, ONCE[OF_GRAD_OUTPUT])
    if not base.draws and "GV402" not in base.found:
        strong = _layouts(base, OF_INPUTS, STRONG)
        alone = [one for change in strong[:1] for one in change.each]
        yield strong, [*_layouts(base, OF_INPUTS, ONCE[OF_INPUTS]), *alone]
    yield _subsets(base), []
    yield [] if base.draws else _undefined(base)[:-1], []


def _tensors(base: Verified, code: str) -> dict[int, tuple[str, Tensor]]:
    """Name and tensor of everything that is laid out, grad_outputs or arguments, by its position."""
    if code == OF_INPUTS:
        passed = [(i, a) for i, a in enumerate(base.sample.arguments) if isinstance(a.value, Tensor)]
        return {i: (f"`{a.name}`", a.moved(a.value.detach())) for i, a in passed if base.is_passed(a)}
    several, positions = base.sample.outputs_returned > 1, base.sample.problem.output_positions
    of = [f" of output {p}" * several for p in positions]
    return {k: (f"grad_output{of[k]}", g) for k, g in enumerate(base.grad_outputs())}


def _layouts(base: Verified, code: str, layouts: Sequence[Arrangement]) -> list[Change]:
    """All tensors that have a layout in it, for each of several."""
    tensors, found = _tensors(base, code), []
    for layout in layouts:
        places = frozenset(k for k, (_, one) in tensors.items() if layout.arrange(one) is not None)
        found += [Change(code, places, layout=layout)] if places else []
    return found


def _subsets(base: Verified) -> list[Change]:
    """Proper subsets, the smallest first: a finding should name the fewest inputs."""
    count = len(base.names)
    sizes = range(1, count) if count <= ALL_SUBSETS else (1, count - 1)
    found = []
    for size in sizes[: 1 if base.subject.brief else None]:
        for chosen in combinations(range(count), size):
            names = listed_names([base.names[k] for k in chosen])
            said = f"only {names} require{'s' * (size == 1)} grad"
            found.append(Change(OF_SUBSET, frozenset(range(count)) - {*chosen}, said))
    return found


def _undefined(base: Verified) -> list[Change]:
    """One output at a time where there are several, and all of them last."""
    names = [name for name, _ in _tensors(base, OF_GRAD_OUTPUT).values()]
    sets = {name: {k} for k, name in enumerate(names[:MOST_ALONE])} if len(names) > 1 else {}
    sets["grad_output of every output" if sets else "grad_output"] = {*range(len(names))}
    if not base.subject.has_python_backward:
        return []
    return [Change(UNDEFINED, frozenset(k), f"{said} is undefined (None)") for said, k in sets.items()]


def _in_pairs(kinds: Sequence[tuple[list[Change], list[Change]]]) -> list[Row]:
    """Every two of what is strong, or left as it is, in one call; what is met once takes that place.

    But where an output, the last kind, is undefined: what is undefined has no layout.
    """
    levels = [[*strong, None] for strong, _ in kinds]
    left = [iter(once) for _, once in kinds]
    rows: list[Sequence[Change | None]] = []
    for numbers in cover([range(len(level)) for level in levels], (), ()).rows:
        row = [level[n] for n, level in zip(numbers, levels, strict=True)]
        if row[-1] is None:
            row = [change or next(once, None) for change, once in zip(row, left, strict=True)]
        rows.append(row)
    changed = (tuple(filter(None, row)) for row in (*rows, *zip_longest(*left)))
    return list(dict.fromkeys(filter(None, changed)))


def _finding(base: Verified, row: Row) -> Finding | None:
    """What is wrong with a call; a note where it raises what is no accident."""
    first, frozen, undefined = row[0], _of(row, OF_SUBSET), _of(row, UNDEFINED)
    call = called(base.sample, frozen=frozen, arrange=partial(_laid, row, OF_INPUTS))
    alone = len(row) == 1
    variant = Variant(
        first.code,
        "when " + " and ".join(_said(base, change) for change in row),
        HINTS[first.code] if alone else TOGETHER,
        THAN.get(first.code, "") if alone else "",
    )
    if isinstance(call, Raised):
        return variant.raised(base, call.error, "forward")
    given = _laid(row, OF_GRAD_OUTPUT, base.grad_outputs())
    counted = [None if k in undefined else g.contiguous() for k, g in enumerate(given)]
    there = base.of(base.sample.problem.outputs.flatten(counted))
    if there is None:
        return None
    hide: Any = torch._C._functions.UndefinedGrad()  # noqa: SLF001 - as gradcheck does
    outputs = (hide(o) if k in undefined else o for k, o in enumerate(call.value.outputs))
    hidden = Returned(replace(call.value, outputs=tuple(outputs)))
    raising = replace(variant, is_mistake=partial(_is_mistake, {change.code for change in row}))
    return raising.judged(there, hidden, given, frozen)


def _said(base: Verified, change: Change) -> str:
    """`grad_output is transposed`, `every input is transposed`."""
    if change.layout is None:
        return change.said
    every = "every grad_output" if change.code == OF_GRAD_OUTPUT else "every input"
    place, *others = change.places
    return f"{every if others else _tensors(base, change.code)[place][0]} is {change.layout.name}"


def _narrowed(base: Verified, row: Row, shown: Finding) -> tuple[Row, Finding]:
    """The fewest changes of a call that show something, and what: one tensor's, one, two, or all."""
    each = [(one,) for c in row for one in (*c.each, c)]
    parts = [*each, *combinations(row, 2)] if len(row) > 1 else each[:-1]
    found = [(part, f) for part in parts if (f := _finding(base, part))]
    return max([*found, (row, shown)], key=lambda pair: _is_error(pair[1]))


def _of(row: Row, code: str) -> frozenset[int]:
    return frozenset(place for change in row if change.code == code for place in change.places)


def _laid(row: Row, code: str, tensors: Sequence[Any]) -> list[Any]:
    """Tensors in the layouts that a call has for them."""
    layouts = {place: c.layout for c in row if c.layout and c.code == code for place in c.places}
    return [arranged(t, layouts[k]) if k in layouts else t for k, t in enumerate(tensors)]


def _is_mistake(codes: set[str], error: RaisedError) -> bool:
    """Whether backward must not raise that: ordinary code sends every layout of grad_output."""
    is_read = codes == {OF_GRAD_OUTPUT} or (codes == {UNDEFINED} and not is_refusal(error))
    return is_read or is_accident(error) or VIEW_REFUSED in error.message


def _is_error(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR


def _asked(base: Verified, rows: Sequence[Row]) -> CheckResult:
    """What is wrong with some calls, each narrowed to as few changes as show it."""
    findings, left_out = dict[str, Finding](), set[Change | str]()
    for whole in rows:
        row = [c for c in whole if not {c, c.code} & left_out]
        while row and (shown := _finding(base, row)) is not None:
            part, found = _narrowed(base, row, shown)
            codes = {c.code for c in part}
            if found.code not in findings or _is_error(found):
                findings[found.code] = found
            left_out |= codes if _is_error(found) else {c for c in row if c.code in codes}
            row = [c for c in row if c.code not in codes]
    met = dict.fromkeys(c for row in rows for c in row if not {c, c.code} & left_out)
    laid = {f"{'inputs' if c.code == OF_INPUTS else 'grad_output'} {c.layout.name}" for c in met if c.layout}
    kept = [frozenset(), *(change.places for change in met if change.code == OF_SUBSET)]
    subsets = [",".join(n for k, n in enumerate(base.names) if k not in frozen) for frozen in kept]
    together = ("two changes together",) if any(len(row) > 1 for row in rows) else ()
    swept = Swept(tuple(sorted(laid)), tuple(subsets), together)
    return CheckResult.of(*findings.values()).beside(CheckResult(swept=swept))
