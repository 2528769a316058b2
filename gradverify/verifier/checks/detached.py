"""A second derivative that is zero or cut, in words (GV202)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradverify.model import Finding, Severity
from gradverify.verifier.checks.nested import is_connected, what_gives_nothing
from gradverify.verifier.checks.saved_intermediates import Cut
from gradverify.verifier.checks.second_pairs import SecondPair, entries_in, worst_place
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import listed_names, number
from gradverify.verifier.numerics.problem import VjpProblem
from gradverify.verifier.numerics.verdict import Judged

FIRST_ORDER_ONLY = (
    "If no second derivative is meant, say so: @torch.autograd.function.once_differentiable above backward."
)


def detached(sample: Sample, second: VjpProblem, judged: Judged, wrong: list[SecondPair]) -> Finding:
    """All of a second derivative is zero where it should not be."""
    worst = max(wrong, key=lambda p: abs(worst_place(judged, p)[1]))
    place, value = worst_place(judged, worst)
    silent, constant = _silent(second, worst)
    message = (
        "the second derivative comes out as zero"
        if constant
        else f"the second derivative is silently cut: for autograd the gradient of `{worst.gradient_of}` "
        "depends on nothing"
    )
    return sample.finding(
        "GV202",
        f"{message}, but {place} is {number(value)}",
        hint=f"{silent}Mark backward with @torch.autograd.function.once_differentiable, so that a double "
        "backward raises instead of losing a term; or build it from differentiable operations. To accept it: "
        'ignore: {GV2: "first order only"}.',
        input=worst.by,
        output=worst.position,
        severity=Severity.WARNING if sample.subject.inferred else Severity.ERROR,
        cause="detached",
    )


def _silent(second: VjpProblem, pair: SecondPair) -> tuple[str, bool]:
    """Which Functions in backward return nothing, as a sentence; whether there is a graph all the same."""
    by = second.input_names.index(pair.by)
    names = what_gives_nothing(second, pair.position, by)
    if not names:
        return "", is_connected(second, pair.position, by)
    returns = "returns" if len(names) == 1 else "return"
    return f"{listed_names(names)}, which backward calls, {returns} None or zeros for `{pair.by}`. ", True


def partly_cut(sample: Sample, second: VjpProblem, judged: Judged, pair: SecondPair) -> Finding:
    """One block of it is."""
    place, value = worst_place(judged, pair)
    silent, constant = _silent(second, pair)
    message = (
        f"part of the second derivative comes out as zero: that of the gradient of `{pair.gradient_of}` by "
        f"`{pair.by}`"
        if constant
        else f"part of the second derivative is silently cut: the gradient of `{pair.gradient_of}` does not "
        f"depend on `{pair.by}` for autograd"
    )
    detached = (
        "Something that backward uses is detached (an intermediate kept on ctx instead of saved as an "
        "input or output, .detach(), .data, no_grad), or a Function that backward calls returns None or "
        "zeros for it. Recompute it in backward from saved inputs."
    )
    return sample.finding(
        "GV202",
        f"{message}, but {place} is {number(value)}",
        hint=f"{silent + WRITE_ITS_OWN if silent else detached} {FIRST_ORDER_ONLY}",
        input=pair.by,
        output=pair.position,
        entries=entries_in(judged, pair),
        cause="detached",
    )


WRITE_ITS_OWN = "Write the derivative of what it computes in its own backward."
"""What helps where a Function that backward calls returns nothing."""


def because_of(finding: Finding, cut: Cut | None) -> Finding:
    """The finding with its cause, where a value without its graph is all that is wrong."""
    if cut is None:
        return finding
    hint = _of_calls(cut.calls) if cut.calls else _of_kept(cut.kept)
    return replace(finding, hint=f"{hint} {FIRST_ORDER_ONLY}", cause="detached")


def _of_calls(calls: Sequence[str]) -> str:
    what = " and ".join(calls)
    cuts, it = ("cut", "them") if len(calls) > 1 else ("cuts", "it")
    return f"{what} {cuts} the graph: without {it} the second derivative is right (tried here)."


def _of_kept(kept: Sequence[str]) -> str:
    names = " and ".join(f"`{name}`" for name in kept)
    are, them, its, depend = (
        ("are neither inputs nor outputs", "them", "their", "they depend")
        if len(kept) > 1
        else ("is neither an input nor an output", "it", "its", "it depends")
    )
    return (
        f"{names}, which forward keeps, {are}: in backward, {depend} on nothing for autograd. "
        f"With {its} graph the second derivative is right (tried here). Compute {them} in backward from "
        "saved inputs and outputs."
    )
