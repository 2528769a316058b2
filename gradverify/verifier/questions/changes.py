"""GV404 to GV407: a call with other layouts, another requires_grad set or an undefined grad_output.

Every call carries one change of each kind, and every two of the commonest are met together: a backward may
make grad_output contiguous only where a bias needs its gradient. A call that shows something is narrowed to
one change, else to two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, cycle, islice, zip_longest
from typing import Any

from torch import Tensor

from gradverify.cases.pairwise import cover
from gradverify.model import Finding, RaisedError, Severity, Swept
from gradverify.verifier.checks.wording import listed_names, output_name
from gradverify.verifier.guard import Raised
from gradverify.verifier.questions.call import backward, called, is_accident, is_refusal
from gradverify.verifier.questions.layouts import (
    AT_AN_OFFSET,
    CHANNELS_LAST,
    CONJUGATED,
    EVERY_SECOND,
    FROM_SUMS,
    NARROWED,
    TRANSPOSED,
    Arrangement,
    arranged,
    described,
)
from gradverify.verifier.questions.verified import Variant, Varied, Verified

MOST_ALONE = 4
"""So many tensors are laid out, or left undefined, alone."""

ALL_SUBSETS = 3
"""Up to so many differentiable inputs every subset is asked; beyond, singles and all but one."""

AGAIN = 2
"""Calls at further sizes of the same options."""

VIEW_REFUSED = "view size is not compatible"
"""What torch says of `view` on a tensor that is not contiguous: nobody writes that to refuse a layout."""

OF_GRAD_OUTPUT, OF_INPUTS, OF_SUBSET, UNDEFINED = "GV404", "GV405", "GV406", "GV407"

HINTS = {
    OF_GRAD_OUTPUT: "Call grad_output = grad_output.contiguous() before its memory is read (data_ptr, a "
    "kernel, as_strided, view), or pass its strides on.",
    OF_INPUTS: "Call x = x.contiguous() before its memory is read (data_ptr, a kernel, as_strided), use "
    "reshape instead of view, and save the contiguous one; or pass the strides on.",
    OF_SUBSET: "Test ctx.needs_input_grad for each gradient separately, save what every one of them needs, "
    "and return them at the places of their own inputs.",
    UNDEFINED: "Treat None as zeros, or leave ctx.set_materialize_grads at its default.",
}

ORDINARY = "Such a grad_output comes from ordinary code (.sum(), .mT, torch.cat). "
"""Before the hint where backward refuses one."""

TOGETHER = (
    "Each of these alone is right. Look for a branch of backward (ctx.needs_input_grad, strides, a "
    "grad_output of None) that leaves out what another one does: .contiguous(), a saved tensor, zeros."
)

RESOLVE = (
    "Call grad_output = grad_output.resolve_conj() before its memory is read (data_ptr, a kernel, numpy): "
    "what comes back through z.conj() is such a view."
)

THAN = {OF_GRAD_OUTPUT: ", which a contiguous one gives", OF_INPUTS: ", which contiguous ones give"}

STRIDED = (TRANSPOSED, EVERY_SECOND)
"""What code may take for contiguous, by the number of dimensions."""


@dataclass(frozen=True)
class Change:
    """One thing that is not as in the verified call."""

    code: str
    """Of what it finds alone: a call has one of each."""
    said: str
    """`grad_output is transposed`."""
    layouts: tuple[Arrangement, ...] = ()
    """Of each tensor the first that its shape has."""
    only: int | None = None
    """The one output, or argument, that is laid out."""
    frozen: frozenset[int] = frozenset()
    undefined: int | None = None
    """Number of the output that has no grad_output."""

    def laid(self, position: int, x: Tensor) -> Tensor | None:
        """A tensor in the layout; None where it stays as it is."""
        if self.only not in {None, position}:
            return None
        made = (arranged(x, layout) for layout in self.layouts)
        return next((m for m in made if m is not None), None)


Row = tuple[Change, ...]


def changes(base: Verified, found: frozenset[str]) -> Varied:
    """Ask the calls of one case; `found` are the codes of what was found before."""
    kinds, subject = list(_kinds(base, found)), base.sample.subject
    if subject.is_base and not subject.brief:
        return _asked(base, _in_pairs(kinds))
    rows = _each_once([[*strong, *weak] for strong, weak in kinds])
    few = subject.brief or not subject.is_first_of_options
    return _asked(base, rows[:AGAIN] if few else rows)


def requires_grad_subsets(base: Verified) -> Varied:
    """The requires_grad sets alone."""
    return _asked(base, [(change,) for change in _subsets(base)])


def _kinds(base: Verified, found: frozenset[str]) -> Iterator[tuple[list[Change], list[Change | None]]]:
    """Of each kind what is met with every other one, and what is met once."""
    if not base.backward_draws and "GV401" not in found:
        strong = list(_layouts(OF_GRAD_OUTPUT, base, (STRIDED, (CHANNELS_LAST,))))
        further = (*((f,) for f in FROM_SUMS), (NARROWED,), (AT_AN_OFFSET,), (CONJUGATED,))
        yield strong, [None, *_layouts(OF_GRAD_OUTPUT, base, further)]
    if not base.draws and "GV402" not in found:
        strong = list(_layouts(OF_INPUTS, base, (STRIDED, (CHANNELS_LAST,))))
        weak = list(_layouts(OF_INPUTS, base, ((AT_AN_OFFSET,), (NARROWED,))))
        yield strong, [None, *weak, *(_alone(base, strong[0]) if strong else ())]
    yield list(_subsets(base)), [None]
    if not base.draws:
        yield list(_undefined(base)), [None]


def _tensors(code: str, base: Verified) -> list[tuple[int, str, Tensor]]:
    """(position, name, tensor) of everything that is laid out: grad_outputs, or arguments."""
    if code == OF_INPUTS:
        passed = [(i, a) for i, a in enumerate(base.sample.arguments) if isinstance(a.value, Tensor)]
        return [(i, f"`{a.name}`", a.value.detach()) for i, a in passed if base.is_passed(a)]
    several = base.sample.outputs_returned > 1
    names = [
        f"grad_output of {output_name(p, 2)}" if several else "grad_output"
        for p in base.sample.problem.output_positions
    ]
    return [(k, name, g) for k, (name, g) in enumerate(zip(names, base.grad_outputs(), strict=True))]


def _layouts(code: str, base: Verified, several: Sequence[tuple[Arrangement, ...]]) -> Iterator[Change]:
    tensors = _tensors(code, base)
    who = "grad_output is" if code == OF_GRAD_OUTPUT else "the inputs are"
    for layouts in several:
        fitting = [a.name for a in layouts if any(arranged(t, a) is not None for _, _, t in tensors)]
        if fitting:
            whole = Change(code, f"{who} {fitting[0]}", layouts)
            yield next(_alone(base, whole)) if len(tensors) == 1 else whole


def _alone(base: Verified, change: Change) -> Iterator[Change]:
    """The same of one tensor at a time."""
    for position, name, tensor in _tensors(change.code, base)[:MOST_ALONE]:
        for layout in change.layouts:
            laid = arranged(tensor, layout)
            if laid is not None:
                said = f"{name} is {layout.name} ({described(laid)})"
                yield replace(change, said=said, layouts=(layout,), only=position)
                break


def _subsets(base: Verified) -> Iterator[Change]:
    """Proper subsets, the smallest first: a finding should name the fewest inputs."""
    count = len(base.names)
    sizes = range(1, count) if count <= ALL_SUBSETS else (1, count - 1)
    for size in [1][: count - 1] if base.sample.subject.brief else sizes:
        for chosen in combinations(range(count), size):
            names = listed_names([base.names[i] for i in chosen])
            said = f"only {names} require{'s' if size == 1 else ''} grad"
            yield Change(OF_SUBSET, said, frozen=frozenset(range(count)) - {*chosen})


def _undefined(base: Verified) -> Iterator[Change]:
    outputs = _tensors(OF_GRAD_OUTPUT, base)
    if len(outputs) > 1 and base.sample.subject.has_python_backward:
        for position, name, _ in outputs[:MOST_ALONE]:
            yield Change(UNDEFINED, f"{name} is undefined (None)", undefined=position)


def _in_pairs(kinds: Sequence[tuple[list[Change], list[Change | None]]]) -> list[Row]:
    """Every two of what is strong, or left as it is, in one call; what is weak takes that place."""
    kinds = [kind for kind in kinds if len(kind[0]) + len(kind[1]) > 1]
    levels = [range(len(strong) + 1) for strong, _ in kinds]
    left = [iter(weak) for _, weak in kinds]
    rows: list[Row] = []
    for numbers in cover(levels, (), ()).rows if kinds else ():
        chosen = [
            strong[n] if n < len(strong) else next(rest, None)
            for n, (strong, _), rest in zip(numbers, kinds, left, strict=True)
        ]
        rows.append(tuple(c for c in chosen if c is not None))
    rows += (tuple(c for c in chosen if c is not None) for chosen in zip_longest(*left))
    return list(dict.fromkeys(filter(None, rows)))


def _each_once(kinds: Sequence[Sequence[Change | None]]) -> list[Row]:
    """As many calls as the kind with most changes has."""
    most = max(map(len, kinds), default=0)
    whole = zip(*(islice(cycle(kind), most) for kind in kinds), strict=True)
    return list(dict.fromkeys(filter(None, (tuple(c for c in row if c is not None) for row in whole))))


def _asked(base: Verified, rows: Sequence[Row]) -> Varied:
    """What is wrong with some calls, each narrowed to as few changes as show it."""
    findings: dict[tuple[str, bool], Finding] = {}
    left_out: set[Change | str] = set()
    wanted: dict[object, Tensor | None] = {}
    met: dict[Change, None] = {}
    for whole in rows:
        row = tuple(c for c in whole if not {c, c.code} & left_out)
        met.update(dict.fromkeys(row))
        shown = _judged(base, row, wanted) if row else None
        if shown is None:
            continue
        alone = {c: f for c in row if (f := shown if len(row) == 1 else _judged(base, (c,), wanted))}
        for change, found in alone.items():
            is_error = found.severity is Severity.ERROR
            left_out.add(change.code if is_error else change)
            if not is_error:
                del met[change]
            findings.setdefault((change.code, is_error), _narrowed(base, change, found, wanted))
        if not alone:
            pairs = [f for pair in combinations(row, 2) if (f := _judged(base, pair, wanted))]
            worst = min(pairs or [shown], key=lambda f: f.severity is not Severity.ERROR)
            findings.setdefault((worst.code, worst.severity is Severity.ERROR), worst)
            if worst.severity is Severity.ERROR:
                break
    errors = {code for code, is_error in findings if is_error}
    kept = [f for (code, is_error), f in findings.items() if is_error or code not in errors]
    return Varied(tuple(kept), _swept(base, met, rows))


def _narrowed(base: Verified, change: Change, found: Finding, wanted: dict[object, Tensor | None]) -> Finding:
    """The finding on one of several tensors, if one alone shows it."""
    several = _alone(base, change) if change.layouts and change.only is None else ()
    shown = [f for one in several if (f := _judged(base, (one,), wanted))]
    return next((f for f in shown if f.severity is found.severity), found)


def _judged(base: Verified, row: Row, wanted: dict[object, Tensor | None]) -> Finding | None:
    """The finding on a call with some changes; a note where it raises what is no accident."""
    by_code = {change.code: change for change in row}
    variant = _variant(base, by_code)
    inputs, subset = by_code.get(OF_INPUTS), by_code.get(OF_SUBSET)

    def arrange(passed: list[Any]) -> list[Any]:
        for position, _, _ in _tensors(OF_INPUTS, base) if inputs else ():
            laid = inputs.laid(position, passed[position]) if inputs else None
            passed[position] = passed[position] if laid is None else laid
        return passed

    frozen = subset.frozen if subset else frozenset[int]()
    call = called(base.sample, frozen=frozen, arrange=arrange)
    if isinstance(call, Raised):
        return variant.raised(base, call.error, "forward")
    moved = variant.forward(base, call.value.outputs)
    if moved is not None:
        return replace(moved, input=_one_input(base, inputs))
    given, u = _grad_outputs(base, by_code)
    key = tuple(u.tolist()) if u is not base.u else None
    if key not in wanted:
        wanted[key] = base.gradient if key is None else base.gradient_for(u)
    right = wanted[key]
    if right is None or not right.isfinite().all():
        return None
    result = backward(base.sample, call.value, given)
    if isinstance(result, Raised):
        return _raised(base, variant, result.error, by_code)
    only = frozenset(range(len(base.names))) - frozen
    difference = base.difference(result.value, right, u=u, only=only)
    return None if difference is None else variant.differs(base, difference)


def _variant(base: Verified, by_code: Mapping[str, Change]) -> Variant:
    codes = sorted(by_code)
    when = "when " + " and ".join(by_code[code].said for code in codes)
    if len(codes) > 1:
        return Variant(codes[0], when, TOGETHER)
    (change,) = by_code.values()
    positions, output = base.sample.problem.output_positions, None
    if change.code == OF_GRAD_OUTPUT:
        output = positions[change.only or 0]
    hint = RESOLVE if CONJUGATED in change.layouts else HINTS[change.code]
    return Variant(change.code, when, hint, THAN.get(change.code, ""), output)


def _one_input(base: Verified, change: Change | None) -> str | None:
    alone = change is not None and change.only is not None
    return base.sample.arguments[change.only].name if alone else None  # type: ignore[index, union-attr]


def _grad_outputs(base: Verified, by_code: Mapping[str, Change]) -> tuple[list[Tensor | None], Tensor]:
    """What backward is given, and its values, flat."""
    layout = by_code.get(OF_GRAD_OUTPUT)
    undefined = by_code[UNDEFINED].undefined if UNDEFINED in by_code else None
    given: list[Tensor | None] = []
    for number, plain in enumerate(base.grad_outputs()):
        laid = None if layout is None else layout.laid(number, plain)
        given.append(None if number == undefined else plain if laid is None else laid)
    repeats = layout is not None and any(a.repeats for a in layout.layouts)
    if not repeats and undefined is None:
        return given, base.u
    return given, base.sample.problem.outputs.flatten([g if g is None else g.contiguous() for g in given])


def _raised(base: Verified, variant: Variant, error: RaisedError, by_code: Mapping[str, Change]) -> Finding:
    """What backward raises; a warning where parameters of a module are frozen, who does that reads it."""
    serious = is_accident(error) or VIEW_REFUSED in error.message
    if by_code.keys() == {OF_GRAD_OUTPUT}:
        serious, variant = True, replace(variant, hint=ORDINARY + variant.hint)
    if by_code.keys() == {OF_SUBSET}:
        serious = serious or not is_refusal(error)
    found = variant.raised(base, error, serious=serious)
    held = {name for a in base.sample.arguments for name, _ in a.holds}
    frozen = by_code[OF_SUBSET].frozen if OF_SUBSET in by_code else ()
    is_loud = base.sample.problem.of_module or any(base.names[k] in held for k in frozen)
    if is_loud and frozen and found.severity is Severity.ERROR:
        return replace(found, severity=Severity.WARNING)
    return found


def _swept(base: Verified, met: Mapping[Change, None], rows: Sequence[Row]) -> Swept:
    layouts, subsets = [], [",".join(base.names)]
    for change in met:
        who = "grad_output" if change.code == OF_GRAD_OUTPUT else "inputs"
        layouts += [
            f"{who} {'expanded' if a.repeats else a.name}"
            for a in change.layouts
            if any(arranged(t, a) is not None for _, _, t in _tensors(change.code, base))
        ]
        if change.code == OF_SUBSET:
            subsets.append(",".join(n for k, n in enumerate(base.names) if k not in change.frozen))
    together = ("two changes together",) if any(len(row) > 1 for row in rows) else ()
    return Swept(tuple(dict.fromkeys(layouts)), tuple(dict.fromkeys(subsets)), together)
