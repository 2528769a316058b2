"""GV408 to GV410: the same call twice, two calls interleaved, backward twice, and whether runs repeat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from gradverify.model import Finding, Severity, Swept
from gradverify.verifier import guard
from gradverify.verifier.checks.subject import another_draw, first_line
from gradverify.verifier.checks.variations.mutation import Snapshot
from gradverify.verifier.checks.variations.running import (
    Call,
    backward,
    called,
    is_accident,
    perform,
    prepared,
)
from gradverify.verifier.checks.variations.variation import Varied
from gradverify.verifier.checks.variations.verified import Verified
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import Gradients

RUNS = 2
"""Runs after the verified one that must repeat it."""

MORE_RUNS = 4
"""Further runs where they do not, to see in which way."""

SAME_STEP = 1e-6
"""Relative deviation of one call's change from the next's where a result drifts from call to call."""

STATE_HINT = (
    "Keep what backward needs on ctx (save_for_backward), not on the class, the module or a global: calls "
    "overlap whenever a Function is used twice in one model."
)
NONDETERMINISTIC_HINT = (
    "Look for a race, memory that is read before it is written (torch.empty), or random numbers from a "
    "source of its own."
)


def repeated_runs(base: Verified) -> Varied:
    """GV408 and GV410: the same call again gives the same result and the same gradient."""
    runs = _runs(base, RUNS)
    if runs is None:
        return Varied()
    swept = Swept(calls=("again",))
    if all(torch.equal(g, base.gradient) and torch.equal(y, base.values) for y, g in runs):
        return Varied(swept=swept)
    outputs = base.sample.problem.outputs
    for y, _ in runs:
        moved = base.forward_unrepeated(outputs.unflatten(y))
        if moved is not None:
            return Varied((_stochastic(base, moved.values),), swept)
    spread = torch.stack([(g - base.gradient).abs() for _, g in runs]).amax(dim=0)
    off = [base.unrepeated(g) for _, g in runs]
    worst = next((d for d in off if d is not None), None)
    if worst is None:
        finding = _within_rounding(base, spread.max().item()) if spread.any() else None
        return Varied(() if finding is None else (finding,), swept)
    more = _runs(base, MORE_RUNS) or []
    if _depends_on_calls([base.gradient, *(g for _, g in runs)], [g for _, g in more]):
        return Varied(
            (
                base.finding(
                    "GV408",
                    f"the gradient of `{worst.name}` depends on how often the Function was called: "
                    f"{worst.place} is {worst.values} the time before, for the same inputs",
                    hint=STATE_HINT,
                    input=worst.name,
                ),
            ),
            swept,
        )
    return Varied(
        (
            base.finding(
                "GV410",
                f"backward is not deterministic: the same call gave {worst.place} as {worst.values}, "
                "far beyond rounding, with every random state replayed",
                hint=NONDETERMINISTIC_HINT,
                input=worst.name,
            ),
        ),
        swept,
    )


def first_call(base: Verified, early: Gradients) -> Varied:
    """GV408: the first backward at these sizes, made before anything else, gives what later ones give."""
    difference = base.difference(early)
    if difference is None:
        return Varied()
    finding = base.finding(
        "GV408",
        f"the first call at these sizes gives another gradient than later ones: {difference.place} is "
        f"{difference.values}",
        hint="What is set up once (tuning trials, a buffer, a cache) must leave nothing behind in the result "
        "of the call that sets it up.",
        input=difference.name,
    )
    return Varied((finding,))


def interleaved(base: Verified) -> Varied:
    """GV408: a second call between forward and backward of the first, in both orders of backward."""
    sample = base.sample
    other = another_draw(sample)
    if other is None or len(other) != len(sample.arguments):
        return Varied()
    for first_again in (True, False):
        first = called(sample)
        second = perform(sample, prepared(sample, other), other)
        if isinstance(first, Raised) or isinstance(second, Raised):
            return Varied()
        ones = [torch.ones_like(o) for o in second.value.outputs]
        if not first_again:
            backward(sample, second.value, ones)
        result = backward(sample, first.value, base.grad_outputs())
        finding = _interleaved_finding(base, result)
        if finding is not None:
            return Varied((_with_cause(base, finding, result, other),), Swept(calls=("interleaved",)))
        if first_again:  # so that what is kept in pairs is even again
            backward(sample, second.value, ones)
    return Varied(swept=Swept(calls=("interleaved",)))


def _with_cause(
    base: Verified, finding: Finding, result: Returned[Gradients] | Raised, other: Sequence[Argument]
) -> Finding:
    """`stale`, where the gradient of the first call is wholly or in part that of the inputs of the second."""
    fresh = perform(base.sample, prepared(base.sample, other), other)
    if isinstance(result, Raised) or isinstance(fresh, Raised):
        return finding
    second = backward(base.sample, fresh.value, base.grad_outputs())
    if isinstance(second, Raised):
        return finding
    if base.difference(result.value, base.inputs.flatten(second.value)) is None:
        what = "It is the gradient at the inputs of the later call."
    elif _is_right_with_the_same_inputs(base):
        what = "A part of what backward uses is of the later call: with the same inputs there, it is right."
    else:
        return finding
    return replace(finding, cause="stale", hint=f"{what} {STATE_HINT}")


def _is_right_with_the_same_inputs(base: Verified) -> bool:
    """Whether only the other inputs of a second call are what spoils the first one's gradient."""
    first, second = called(base.sample), called(base.sample)
    if isinstance(first, Raised) or isinstance(second, Raised):
        return False
    result = backward(base.sample, first.value, base.grad_outputs())
    return not isinstance(result, Raised) and base.difference(result.value) is None


def _interleaved_finding(base: Verified, result: Returned[Gradients] | Raised) -> Finding | None:
    if isinstance(result, Raised):
        if not is_accident(result.error):
            return None
        return base.finding(
            "GV408",
            f"backward raises {result.error.type} after a second forward on other inputs: "
            f"{first_line(result.error.message)}",
            hint=STATE_HINT,
            raised=result.error,
        )
    difference = base.difference(result.value)
    if difference is None:
        return None
    return base.finding(
        "GV408",
        f"the gradient of `{difference.name}` is wrong after a second forward on other inputs: "
        f"{difference.place} is {difference.values}; the calls share something",
        hint=STATE_HINT,
        input=difference.name,
    )


def repeated_backward(base: Verified) -> Varied:
    """GV409: a second backward through the same graph (`retain_graph=True`) gives the same gradient."""
    call = called(base.sample)
    if isinstance(call, Raised):
        return Varied()
    swept = Swept(calls=("backward twice",))
    first = backward(base.sample, call.value, base.grad_outputs())
    if isinstance(first, Raised):
        return Varied()
    second = backward(base.sample, call.value, base.grad_outputs())
    hint = (
        "Backward must leave what it uses as it found it: clone a buffer before accumulating into it, and do "
        "not delete attributes of ctx."
    )
    if isinstance(second, Raised):
        error = second.error
        finding = base.finding(
            "GV409",
            f"a second backward through the same graph (retain_graph=True) raises {error.type}: "
            f"{first_line(error.message)}",
            hint=hint,
            raised=error,
            **({} if is_accident(error) else {"severity": Severity.NOTE}),
        )
        return Varied((finding,), swept)
    difference = base.difference(second.value)
    if difference is None:
        return Varied(swept=swept)
    finding = base.finding(
        "GV409",
        f"a second backward through the same graph (retain_graph=True) gives another gradient of "
        f"`{difference.name}`: {difference.place} is {difference.values} the first time",
        hint=hint,
        input=difference.name,
    )
    return Varied((finding,), swept)


def kept_gradient(base: Verified) -> Varied:
    """GV408: a gradient that was returned stays as it is while the Function is used again.

    It changes where backward returns a buffer of the class, which the next call writes into.
    """
    first = called(base.sample)
    if isinstance(first, Raised):
        return Varied()
    result = backward(base.sample, first.value, base.grad_outputs())
    if isinstance(result, Raised):
        return Varied()
    held = [(name, Snapshot.of(g)) for name, g in zip(base.names, result.value, strict=True) if g is not None]
    second = called(base.sample)
    if not isinstance(second, Raised):
        backward(base.sample, second.value, base.grad_outputs(-2 * base.u))
    for name, snapshot in held:
        if snapshot.rewritten:
            finding = base.finding(
                "GV408",
                f"the gradient of `{name}` that backward returned changes when backward runs again: it is a "
                "buffer that the next call writes into",
                hint="Return a tensor of its own (clone it): what was returned belongs to the caller, and "
                "may already be a .grad.",
                input=name,
            )
            return Varied((finding,))
    return Varied(swept=Swept(calls=("kept gradient",)))


def _runs(base: Verified, count: int) -> list[tuple[Tensor, Tensor]] | None:
    """(result, gradient) of so many fresh calls; None where one raises."""
    found = []
    for _ in range(count):
        call = called(base.sample)
        if isinstance(call, Raised):
            return None
        values = _flat(base, call.value)
        result = backward(base.sample, call.value, base.grad_outputs())
        if values is None or isinstance(result, Raised):
            return None
        found.append((values, base.inputs.flatten(result.value)))
    return found


def _flat(base: Verified, call: Call) -> Tensor | None:
    """The result of forward, copied before backward can touch it."""
    flat = guard.call(base.sample.problem.outputs.flatten, [o.detach().clone() for o in call.outputs])
    return None if isinstance(flat, Raised) else flat.value


def _depends_on_calls(first: Sequence[Tensor], more: Sequence[Tensor]) -> bool:
    """Whether the first differs from all later ones, or every one of those in a row adds the same."""
    later = [*first[1:], *more]
    if all(torch.equal(g, later[0]) for g in later):
        return True
    steps = [b - a for a, b in pairwise(more)]
    size = steps[0].abs().max() if steps else torch.zeros(())
    return bool(size > 0) and all(bool(((s - steps[0]).abs() <= SAME_STEP * size).all()) for s in steps)


def _within_rounding(base: Verified, spread: float) -> Finding:
    tolerance = 10 ** math.ceil(math.log10(2 * spread))
    return base.finding(
        "GV410",
        f"backward does not repeat itself bit by bit: runs differ by up to {spread:.2g}, which is rounding "
        "(sums in another order, as atomic additions make them)",
        hint=f"For torch's gradcheck give nondet_tol={tolerance:.0e}.",
        severity=Severity.NOTE,
    )


def _stochastic(base: Verified, values: str) -> Finding:
    return base.finding(
        "GV109",
        f"forward is stochastic: with every random state replayed, the same call gave {values}",
        hint="Take random numbers from torch, NumPy or `random`, or give the noise as an input.",
    )
