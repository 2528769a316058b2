"""The sweep of one verified case: what must leave its gradient unchanged.

Each variation costs about one more backward. To add one, write it in a module of its own and list it in
`VARIATIONS`; a code that explains what it would find goes into its `unless`.
"""

from __future__ import annotations

from functools import partial

from gradverify.model import Finding, Outcome, Severity
from gradverify.verifier.checks.result import CheckResult, outcome_of
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.memory import hand_back
from gradverify.verifier.numerics.calling import Gradients
from gradverify.verifier.variations.aliasing import same_tensor_twice, views_of_one_base
from gradverify.verifier.variations.call import backward, called
from gradverify.verifier.variations.grad_output_layouts import grad_output_layouts
from gradverify.verifier.variations.input_layouts import input_layouts
from gradverify.verifier.variations.leaves import as_leaves, requires_grad_subsets
from gradverify.verifier.variations.other_devices import late_ranks, other_devices, other_group
from gradverify.verifier.variations.repetition import (
    first_call,
    interleaved,
    kept_results,
    repeated_backward,
    repeated_runs,
)
from gradverify.verifier.variations.retention import growing_memory, saved_elsewhere, tensor_on_ctx
from gradverify.verifier.variations.together import two_together
from gradverify.verifier.variations.uninitialized import read_unwritten, unwritten_memory
from gradverify.verifier.variations.verified import Variation, cotangents, verified
from gradverify.verifier.variations.writes import mutation

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
