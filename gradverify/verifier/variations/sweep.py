"""The sweep of one verified case: what must leave its gradient unchanged.

Each variation costs about one more backward. To add one, write it in a module of its own and list it in
`VARIATIONS`; a code that explains what it would find goes into its `unless`.

GV404 to GV406: what changes nothing alone changes nothing together with another.

The other variations change one thing of a call. A backward may make grad_output contiguous only where a bias
needs its gradient, or take a path of its own where input and grad_output both are channels-last. Every pair
of such changes is met in some call; a call that shows something is narrowed to two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import torch
from torch import Tensor

from gradverify.model import Finding, Outcome, RaisedError, Severity, Swept
from gradverify.verifier.checks.result import CheckResult, outcome_of
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import listed_names, output_name
from gradverify.verifier.guard import Raised
from gradverify.verifier.memory import hand_back
from gradverify.verifier.numerics.calling import Gradients
from gradverify.verifier.variations.aliasing import same_tensor_twice, views_of_one_base
from gradverify.verifier.variations.call import backward, called, is_accident
from gradverify.verifier.variations.layouts import (
    OTHER_STRIDES,
    VIEW_REFUSED,
    Arrangement,
    arranged,
    grad_output_layouts,
    input_layouts,
)
from gradverify.verifier.variations.leaves import as_leaves, requires_grad_subsets, singles_and_all_but_one
from gradverify.verifier.variations.other_devices import late_ranks, other_devices, other_group
from gradverify.verifier.variations.repetition import (
    first_call,
    interleaved,
    kept_results,
    module_called_again,
    repeated_backward,
    repeated_runs,
)
from gradverify.verifier.variations.retention import growing_memory, saved_elsewhere, tensor_on_ctx
from gradverify.verifier.variations.uninitialized import read_unwritten, unwritten_memory
from gradverify.verifier.variations.verified import Variant, Variation, Varied, Verified, cotangents, verified
from gradverify.verifier.variations.writes import mutation

MOST_INPUTS = 4
"""So many inputs are frozen, or alone require grad, together with another change."""

MOST_UNDEFINED = 3
"""So many outputs are left undefined together with another change."""

LIKE_OUTPUT = Arrangement("with the strides of its output", lambda _: None)
"""Of a grad_output: what torch's own backwards mostly send."""

HINT = (
    "Each of these alone is right. Look for a branch of backward (ctx.needs_input_grad, strides, a "
    "grad_output of None) that leaves out what another one does: .contiguous(), a saved tensor, zeros."
)


@dataclass(frozen=True)
class Change:
    """One thing that is not as in the verified call."""

    code: str
    """Of what it finds alone: no two of one code are made together."""
    said: str
    """`grad_output is transposed`."""
    layout: Arrangement | None = None
    """Of the inputs, or of grad_output."""
    frozen: frozenset[int] = frozenset()
    undefined: int | None = None
    """Number of the output that has no grad_output."""


OF_GRAD_OUTPUT, OF_INPUTS, OF_SUBSET, UNDEFINED = "GV404", "GV405", "GV406", "GV407"

Pair = tuple[Change, ...]


def two_together(base: Verified) -> Varied:
    """A call for every two of: a layout of grad_output, one of the inputs, a frozen set, an undefined one."""
    if base.draws or not base.u.numel() or not base.sample.subject.is_first_of_options:
        return Varied()
    pending = list(_pairs(base))
    swept = Swept(calls=("two changes together",)) if pending else Swept()
    notes: list[Finding] = []
    while pending:
        asked = _joined(pending)
        whole = _judged(base, asked)
        if whole is None:
            pending = [pair for pair in pending if not set(pair) <= set(asked)]
            continue
        alone = {change for change in asked if _judged(base, (change,)) is not None}
        if alone:  # what it does alone is reported by another variation
            pending = [pair for pair in pending if not alone & set(pair)]
            continue
        wrong = [found for found in (_judged(base, pair) for pair in combinations(asked, 2)) if found]
        wrong = wrong or [whole]
        errors = [found for found in wrong if found.severity is Severity.ERROR]
        if errors:
            return Varied((errors[0],), swept)
        notes += wrong
        pending = [pair for pair in pending if not set(pair) <= set(asked)]
    return Varied(tuple(notes[:1]), swept)


def _pairs(base: Verified) -> Iterator[Pair]:
    changes = [list(made) for made in (_grad_outputs(base), _inputs(base), _subsets(base), _undefined(base))]
    for some, others in combinations(changes, 2):
        yield from ((one, other) for one in some for other in others)


def _joined(pending: Sequence[Pair]) -> Pair:
    """The first pair with further ones, as far as no two changes are of one kind."""
    joined = list(pending[0])
    for pair in pending[1:]:
        more = [change for change in pair if change not in joined]
        if not {change.code for change in more} & {change.code for change in joined}:
            joined += more
    return tuple(joined)


def _grad_outputs(base: Verified) -> Iterator[Change]:
    for layout in OTHER_STRIDES:
        if any(layout.arrange(t) is not None for t in base.grad_outputs()):
            yield Change(OF_GRAD_OUTPUT, f"grad_output is {layout.name}", layout)
    if any(t.dim() > 1 for t in base.grad_outputs()):
        yield Change(OF_GRAD_OUTPUT, f"grad_output is laid out {LIKE_OUTPUT.name}", LIKE_OUTPUT)


def _inputs(base: Verified) -> Iterator[Change]:
    values = [a.value for a in base.sample.arguments if isinstance(a.value, Tensor) and base.is_passed(a)]
    for layout in OTHER_STRIDES:
        if any(arranged(value, layout) is not None for value in values):
            yield Change(OF_INPUTS, f"the inputs are {layout.name}", layout)


def _subsets(base: Verified) -> Iterator[Change]:
    count = len(base.names)
    everything = frozenset(range(count))
    for chosen in singles_and_all_but_one(min(count, MOST_INPUTS), count):
        names = listed_names([base.names[i] for i in sorted(chosen)])
        said = f"only {names} require{'s' if len(chosen) == 1 else ''} grad"
        yield Change(OF_SUBSET, said, frozen=everything - chosen)


def _undefined(base: Verified) -> Iterator[Change]:
    positions = base.sample.problem.output_positions
    if len(positions) < 2 or not base.sample.subject.has_python_backward:
        return
    for number, position in enumerate(positions[:MOST_UNDEFINED]):
        named = output_name(position, base.sample.outputs_returned)
        yield Change(UNDEFINED, f"grad_output of {named} is undefined (None)", undefined=number)


def _judged(base: Verified, changes: Pair) -> Finding | None:
    """The finding on a call with some changes; a note where it raises what is no accident."""
    by_code = {change.code: change for change in changes}
    codes = sorted(by_code)
    variant = Variant(codes[0], "when " + " and ".join(by_code[c].said for c in codes), HINT)
    sample, frozen = base.sample, frozenset[int]()
    if OF_SUBSET in by_code:
        frozen = by_code[OF_SUBSET].frozen
    layout = by_code[OF_INPUTS].layout if OF_INPUTS in by_code else None

    def arrange(position: int, value: Tensor) -> Tensor:
        laid = arranged(value, layout) if layout and base.is_passed(sample.arguments[position]) else None
        return value if laid is None else laid

    call = called(sample, frozen=frozen, arrange=arrange)
    if isinstance(call, Raised):
        return _raised(base, variant, call.error, "forward")
    moved = variant.forward(base, call.value.outputs)
    if moved is not None:
        return moved
    undefined = by_code[UNDEFINED].undefined if UNDEFINED in by_code else None
    u, wanted = _wanted(base, undefined)
    if wanted is None:
        return None
    laid = by_code.get(OF_GRAD_OUTPUT)
    pairs = zip(base.grad_outputs(u), call.value.outputs, strict=True)
    given = [g if laid is None else _laid_out(g, y, laid) for g, y in pairs]
    grad_outputs: list[Tensor | None] = [None if k == undefined else g for k, g in enumerate(given)]
    result = backward(sample, call.value, grad_outputs)
    if isinstance(result, Raised):
        return _raised(base, variant, result.error, "backward")
    only = frozenset(range(len(base.names))) - frozen
    difference = base.difference(result.value, wanted, u=u, only=only)
    return None if difference is None else variant.differs(base, difference)


def _laid_out(grad_output: Tensor, output: Tensor, change: Change) -> Tensor:
    """A grad_output in the layout of a change; as it is where its shape has no such layout."""
    if change.layout is LIKE_OUTPUT:
        return torch.empty_like(output, requires_grad=False).copy_(grad_output)
    laid = None if change.layout is None else change.layout.arrange(grad_output)
    return grad_output if laid is None else laid


def _wanted(base: Verified, undefined: int | None) -> tuple[Tensor, Tensor | None]:
    """The grad_outputs (flat) with zeros for what is undefined, and the gradient for them."""
    if undefined is None:
        return base.u, base.gradient
    block = base.sample.problem.outputs.blocks[undefined]
    u = base.u.clone()
    u[block.start : block.stop] = 0.0
    return u, base.gradient_for(u)


def _raised(base: Verified, variant: Variant, error: RaisedError, what: str) -> Finding:
    found = variant.raised(base, error, what, serious=is_accident(error) or VIEW_REFUSED in error.message)
    is_loud = base.sample.problem.of_module and found.severity is Severity.ERROR
    return replace(found, severity=Severity.WARNING) if is_loud else found


SWEPT_CODES = frozenset(
    {f"GV4{number:02}" for number in (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 13, 14)} | {"GV701", "GV724"}
)
"""Codes that only a variation can give."""

UNREPEATABLE = frozenset({"GV109", "GV408", "GV410"})
"""Where these are found no gradient can be held against the verified one."""

WRITES = frozenset({"GV401", "GV402", "GV403"})
"""What is written to is not the same in the next call."""

ALONE = frozenset({"GV404", "GV405", "GV406", "GV407"})
"""What is wrong alone is wrong together with another."""

VARIATIONS = (
    Variation(unwritten_memory, on_ranks=False, brief=True),
    Variation(repeated_runs, unless=frozenset({"GV410"}), brief=True),
    Variation(mutation, brief=True),
    Variation(late_ranks, unless=UNREPEATABLE),
    Variation(other_group, unless=UNREPEATABLE),
    Variation(grad_output_layouts, unless=UNREPEATABLE, unless_noted=frozenset({"GV401"}), brief=True),
    Variation(input_layouts, unless=UNREPEATABLE | {"GV402"}, brief=True),
    Variation(requires_grad_subsets, unless=UNREPEATABLE, brief=True),
    Variation(two_together, unless=UNREPEATABLE | WRITES | ALONE),
    Variation(repeated_backward, unless=UNREPEATABLE | WRITES, brief=True),
    Variation(interleaved, unless=UNREPEATABLE | WRITES, brief=True),
    Variation(module_called_again, unless=UNREPEATABLE | WRITES),
    Variation(kept_results, unless=UNREPEATABLE | WRITES, brief=True),
    Variation(saved_elsewhere, unless=UNREPEATABLE | WRITES, on_ranks=False),
    Variation(same_tensor_twice, unless=UNREPEATABLE | WRITES, on_ranks=False),
    Variation(views_of_one_base, unless=UNREPEATABLE | WRITES | ALONE, on_ranks=False),
    Variation(as_leaves, unless=UNREPEATABLE | WRITES, on_ranks=False),
    Variation(other_devices, unless=UNREPEATABLE | WRITES, brief=True),
    Variation(tensor_on_ctx, on_ranks=False),
    Variation(growing_memory, on_ranks=False),
)
"""In the order in which they run; the first call of all is held against the later ones after two of them."""


def early_gradient(sample: Sample) -> Gradients | None:
    """The gradient of the first backward at a point, to hold against later ones; None where it raises."""
    if not sample.inputs.size or not sample.problem.outputs.size:
        return None
    call = called(sample)
    if isinstance(call, Raised):
        return None
    result = backward(sample, call.value, sample.problem.outputs.unflatten(cotangents(sample)))
    return None if isinstance(result, Raised) else tuple(g if g is None else g.clone() for g in result.value)


def unrepeatable(sample: Sample) -> tuple[Finding, ...]:
    """Why a gradient that is wrong cannot be judged at all: another one comes each time (GV408, GV410)."""
    if not sample.inputs.size or not sample.problem.outputs.size:
        return ()
    unwritten = read_unwritten(sample)
    base = verified(sample) if not unwritten else None
    if base is None:
        return unwritten
    return tuple(f for f in repeated_runs(base).findings if f.severity is Severity.ERROR)


def written(sample: Sample) -> tuple[Finding, ...]:
    """What is written into by a backward whose gradient is wrong: that may be why (GV401 to GV403)."""
    base = verified(sample)
    findings = () if base is None else mutation(base).findings
    return tuple(f for f in findings if f.severity is Severity.ERROR)


def on_other_devices(sample: Sample) -> CheckResult:
    """What other devices make of a verified sample, at a point where nothing else is varied."""
    return _swept(sample, (Variation(other_devices),))


def sweep(sample: Sample, early: Gradients | None = None) -> CheckResult:
    """Run every variation on a verified sample; `early` is what `early_gradient` gave.

    Nothing to differentiate, or a gradient that is not finite, leaves nothing to hold them against: the
    outcome is then `not-run`.
    """
    first, again, *others = VARIATIONS
    if early is not None:  # what was in memory is another thing at the first call
        others.insert(0, Variation(partial(first_call, early=early), unless=UNREPEATABLE, brief=True))
    return _swept(sample, (first, again, *others))


def _swept(sample: Sample, variations: tuple[Variation, ...]) -> CheckResult:
    base = verified(sample)
    if base is None:
        return CheckResult(outcome=Outcome.NOT_RUN)
    result = CheckResult()
    for variation in variations:
        on_ranks = sample.subject.across is not None
        if (sample.subject.brief and not variation.brief) or (on_ranks and not variation.on_ranks):
            continue
        found = {f.code for f in result.findings if f.severity is not Severity.NOTE}
        noted = {f.code for f in result.findings}
        if not found & variation.unless and not noted & variation.unless_noted:
            hand_back(sample.inputs.size)
            varied = variation.run(base)
            outcome = outcome_of(varied.findings)
            result = result.beside(CheckResult(varied.findings, outcome, swept=varied.swept))
    return result
