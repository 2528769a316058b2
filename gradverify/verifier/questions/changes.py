"""GV404 to GV407: a call with other layouts, another requires_grad set or an undefined grad_output.

Every call carries one change of each kind, and every two of the commonest are met together: a backward may
make grad_output contiguous only where a bias needs its gradient. A call that shows something is narrowed to
one change, else to two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, cycle, islice, zip_longest
from typing import Any

import torch
from torch import Tensor

from gradverify.cases.pairwise import cover
from gradverify.model import Finding, RaisedError, Severity, Swept
from gradverify.verifier.guard import Raised
from gradverify.verifier.questions.call import called, is_accident, is_refusal
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
from gradverify.verifier.questions.wording import listed_names, output_name

MOST_ALONE = 4
"""So many tensors are laid out, or left undefined, alone."""

ALL_SUBSETS = 3
"""Up to so many differentiable inputs every subset is asked; beyond, singles and all but one."""

VIEW_REFUSED = "view size is not compatible"
"""What torch says of `view` on a tensor that is not contiguous: nobody writes that to refuse a layout."""

OF_GRAD_OUTPUT, OF_INPUTS, OF_SUBSET, UNDEFINED = "GV404", "GV405", "GV406", "GV407"

HINTS = {
    OF_GRAD_OUTPUT: "Such a grad_output comes from ordinary code (.sum(), .mT, torch.cat). Call "
    "grad_output = grad_output.contiguous() before its memory is read (data_ptr, a kernel, as_strided, view) "
    "or pass its strides on.",
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

RESOLVE = (
    "Call grad_output = grad_output.resolve_conj() before its memory is read (data_ptr, a kernel, numpy): "
    "what comes back through z.conj() is such a view."
)

THAN = {OF_GRAD_OUTPUT: ", which a contiguous one gives", OF_INPUTS: ", which contiguous ones give"}

STRONG = ((TRANSPOSED, EVERY_SECOND), (CHANNELS_LAST,))
"""What is met with every other change; of a pair each tensor gets the first that its shape has."""


@dataclass(frozen=True)
class Change:
    """One thing that is not as in the verified call."""

    code: str
    """Of what it finds alone: a call has one of each."""
    said: str
    """`grad_output is transposed`."""
    layouts: tuple[tuple[int, Arrangement], ...] = ()
    """Which grad_outputs, or arguments, are laid out how."""
    frozen: frozenset[int] = frozenset()
    undefined: int | None = None
    """Number of the output that has no grad_output."""


Row = tuple[Change, ...]


def changes(base: Verified) -> Varied:
    """Every pair of changes at the first case, each once at other options, a few together at other sizes."""
    kinds, subject = list(_kinds(base)), base.sample.subject
    if subject.is_base and not subject.brief:
        return _asked(base, _in_pairs(kinds))
    rows = _each_once([[*strong, *weak] for strong, weak in kinds])
    few = subject.brief or not subject.is_first_of_options
    return _asked(base, rows[:1] if few else rows)


def requires_grad_subsets(base: Verified) -> Varied:
    """The requires_grad sets alone."""
    return _asked(base, [(change,) for change in _subsets(base)])


def _kinds(base: Verified) -> Iterator[tuple[list[Change], list[Change | None]]]:
    """Of each kind what is met with every other one, and what is met once."""
    if not base.backward_draws and "GV401" not in base.found:
        of = partial(_layouts, base, OF_GRAD_OUTPUT)
        weak = of(*((layout,) for layout in (*FROM_SUMS, NARROWED, AT_AN_OFFSET, CONJUGATED)))
        yield list(of(*STRONG)), [None, *weak]
    if not base.draws and "GV402" not in base.found:
        strong = list(_layouts(base, OF_INPUTS, *STRONG))
        weak = _layouts(base, OF_INPUTS, (AT_AN_OFFSET,), (NARROWED,))
        yield strong, [None, *weak, *(_alone(base, strong[0]) if strong else ())]
    yield list(_subsets(base)), [None]
    if not base.draws:
        yield list(_undefined(base)), [None]


def _tensors(code: str, base: Verified) -> dict[int, tuple[str, Tensor]]:
    """Name and tensor of everything that is laid out, grad_outputs or arguments, by its position."""
    if code == OF_INPUTS:
        passed = [(i, a) for i, a in enumerate(base.sample.arguments) if isinstance(a.value, Tensor)]
        return {i: (f"`{a.name}`", a.value.detach()) for i, a in passed if base.is_passed(a)}
    several = base.sample.outputs_returned > 1
    names = [
        f"grad_output of {output_name(p, 2)}" if several else "grad_output"
        for p in base.sample.problem.output_positions
    ]
    return dict(enumerate(zip(names, base.grad_outputs(), strict=True)))


def _layouts(base: Verified, code: str, *several: Sequence[Arrangement]) -> Iterator[Change]:
    """All tensors that have one of some layouts in it, for each of several such choices."""
    tensors = _tensors(code, base)
    who = "grad_output is" if code == OF_GRAD_OUTPUT else "the inputs are"
    for layouts in several:
        laid = tuple(
            (place, fitting[0])
            for place, (_, tensor) in tensors.items()
            if (fitting := [layout for layout in layouts if layout.arrange(tensor) is not None])
        )
        if laid:
            whole = Change(code, f"{who} {laid[0][1].name}", laid)
            yield next(_alone(base, whole)) if len(laid) == 1 else whole


def _alone(base: Verified, change: Change) -> Iterator[Change]:
    """The same of one tensor at a time."""
    for place, layout in change.layouts[:MOST_ALONE]:
        name, tensor = _tensors(change.code, base)[place]
        said = f"{name} is {layout.name} ({described(arranged(tensor, layout))})"
        yield replace(change, said=said, layouts=((place, layout),))


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
        for place, (name, _) in islice(outputs.items(), MOST_ALONE):
            yield Change(UNDEFINED, f"{name} is undefined (None)", undefined=place)


def _in_pairs(kinds: Sequence[tuple[list[Change], list[Change | None]]]) -> list[Row]:
    """Every two of what is strong, or left as it is, in one call; what is weak takes that place."""
    kinds = [kind for kind in kinds if len(kind[0]) + len(kind[1]) > 1]
    levels = [range(len(strong) + 1) for strong, _ in kinds]
    left = [iter(weak) for _, weak in kinds]
    rows = [
        [
            strong[n] if n < len(strong) else next(rest, None)
            for n, (strong, _), rest in zip(numbers, kinds, left, strict=True)
        ]
        for numbers in (cover(levels, (), ()).rows if kinds else ())
    ]
    met_often = {change for strong, _ in kinds for change in strong}
    return _without_gaps(part for row in (*rows, *zip_longest(*left)) for part in _apart(row, met_often))


def _apart(row: Sequence[Change | None], met_often: Collection[Change]) -> Iterator[list[Change | None]]:
    """The calls of a row: what is undefined has no layout, so that one which is met once goes apart."""
    once = [c for c in row if c is not None and c.code == OF_GRAD_OUTPUT and c not in met_often]
    undefined = [c for c in row if c is not None and c.undefined is not None]
    for left_out in (undefined, once) if once and undefined else ([],):
        yield [change for change in row if change not in left_out]


def _each_once(kinds: Sequence[Sequence[Change | None]]) -> list[Row]:
    """As many calls as the kind with most changes has."""
    most = max(map(len, kinds), default=0)
    return _without_gaps(list(zip(*(islice(cycle(kind), most) for kind in kinds), strict=True)))


def _without_gaps(rows: Iterable[Sequence[Change | None]]) -> list[Row]:
    """Different rows of changes, where something is changed."""
    return list(dict.fromkeys(filter(None, (tuple(c for c in row if c is not None) for row in rows))))


@dataclass(frozen=True)
class _Calls:
    """Calls with changes, held against the gradient for what backward is given."""

    base: Verified
    known: dict[tuple[float, ...], Verified | None] = field(default_factory=dict)
    """The verified call with other grad_outputs, by these."""

    def finding(self, *row: Change) -> Finding | None:
        """What is wrong with a call; a note where it raises what is no accident."""
        base, problem = self.base, self.base.sample.problem
        frozen = frozenset(k for change in row for k in change.frozen)
        call = called(base.sample, frozen=frozen, arrange=partial(_laid, row, OF_INPUTS))
        variant = _variant(base, row)
        if isinstance(call, Raised):
            return variant.raised(base, call.error, "forward")
        undefined = {change.undefined for change in row}
        laid = enumerate(_laid(row, OF_GRAD_OUTPUT, base.grad_outputs()))
        given = [None if place in undefined else g for place, g in laid]
        there = self.of(problem.outputs.flatten([g if g is None else g.contiguous() for g in given]))
        if there is None:
            return None
        raising = replace(variant, is_mistake=partial(_is_mistake, {change.code for change in row}))
        only = frozenset(range(len(base.names))) - frozen
        found = raising.judged(there, call, given, only)
        held = {name for a in base.sample.arguments for name, _ in a.holds}
        is_loud = problem.of_module or any(base.names[k] in held for k in frozen)
        if found and found.raised and frozen and is_loud and found.severity is Severity.ERROR:
            return replace(found, severity=Severity.WARNING)  # who freezes parameters of a module reads it
        return found

    def of(self, u: Tensor) -> Verified | None:
        """The verified call with other grad_outputs."""
        if torch.equal(u, self.base.u):
            return self.base
        key = tuple(u.tolist())
        if key not in self.known:
            self.known[key] = self.base.of(u)
        return self.known[key]


def _laid(row: Row, code: str, tensors: Sequence[Any]) -> list[Any]:
    """Tensors in the layouts that a call has for them."""
    layouts = {place: layout for c in row if c.code == code for place, layout in c.layouts}
    return [arranged(t, layouts[place]) if place in layouts else t for place, t in enumerate(tensors)]


def _variant(base: Verified, row: Row) -> Variant:
    first, *others = sorted(row, key=lambda change: change.code)
    when = "when " + " and ".join(change.said for change in (first, *others))
    if others:
        return Variant(first.code, when, TOGETHER)
    place = first.layouts[0][0] if len(first.layouts) == 1 else None
    of_inputs, of_grad_output = first.code == OF_INPUTS, first.code == OF_GRAD_OUTPUT
    is_conjugated = any(layout is CONJUGATED for _, layout in first.layouts)
    return Variant(
        first.code,
        when,
        RESOLVE if is_conjugated else HINTS[first.code],
        THAN.get(first.code, ""),
        output=base.sample.problem.output_positions[place or 0] if of_grad_output else None,
        input=base.sample.arguments[place].name if of_inputs and place is not None else None,
    )


def _is_mistake(codes: set[str], error: RaisedError) -> bool:
    """Whether backward must not raise that: ordinary code sends every layout of grad_output."""
    is_refused = codes == {OF_SUBSET} and not is_refusal(error)
    return codes == {OF_GRAD_OUTPUT} or is_refused or is_accident(error) or VIEW_REFUSED in error.message


def _is_error(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR


def _asked(base: Verified, rows: Sequence[Row]) -> Varied:
    """What is wrong with some calls, each narrowed to as few changes as show it."""
    calls, findings = _Calls(base), list[Finding]()
    left_out, met = set[Change | str](), dict[Change, None]()
    for whole in rows:
        row = tuple(c for c in whole if not {c, c.code} & left_out)
        met.update(dict.fromkeys(row))
        shown = calls.finding(*row) if row else None
        if shown is None:
            continue
        alone = {c: f for c in row if (f := shown if len(row) == 1 else calls.finding(c))}
        for change, found in alone.items():
            left_out.add(change.code if _is_error(found) else change)
            if not _is_error(found):
                del met[change]
            each = _alone(base, change) if len(change.layouts) > 1 else ()
            of_one = [f for one in each if (f := calls.finding(one)) and f.severity is found.severity]
            findings.append([*of_one, found][0])
        if not alone:
            pairs = [f for pair in combinations(row, 2) if (f := calls.finding(*pair))]
            findings.append(max(pairs or [shown], key=_is_error))
            if _is_error(findings[-1]):
                break
    first: dict[str, Finding] = {}
    for found in sorted(findings, key=_is_error, reverse=True):
        first.setdefault(found.code, found)
    return Varied(tuple(first.values()), _swept(base, met, rows))


def _swept(base: Verified, met: Sequence[Change] | dict[Change, None], rows: Sequence[Row]) -> Swept:
    layouts = [
        f"{'grad_output' if change.code == OF_GRAD_OUTPUT else 'inputs'} {layout.name.partition(' from')[0]}"
        for change in met
        for _, layout in change.layouts
    ]
    kept = [frozenset(), *(change.frozen for change in met if change.code == OF_SUBSET)]
    subsets = [",".join(n for k, n in enumerate(base.names) if k not in frozen) for frozen in kept]
    together = ("two changes together",) if any(len(row) > 1 for row in rows) else ()
    return Swept(tuple(dict.fromkeys(layouts)), tuple(dict.fromkeys(subsets)), together)
