"""What of a derivative could not be judged and why, in words: each reason has another remedy (GV109)."""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.model import Finding
from gradverify.rules import Family
from gradverify.verifier.checks.result import NO_VALUE, OTHER_VALUES, ROUNDED_AWAY, Uncovered
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import number, part
from gradverify.verifier.numerics.flat import Block, Layout
from gradverify.verifier.numerics.noise import typical_values
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.refine import KINK_STEPS, LARGEST_NOISE
from gradverify.verifier.numerics.sampling import Sampler
from gradverify.verifier.numerics.verdict import Judged

STAYS = 0.25
"""Of two steps, one 64 times smaller: where the change of f shrinks to no less than this share it does not
depend on the step. A jump and rounding stay, the root of the step shrinks to an eighth."""

GROWS = 2.0
"""A slope that is so many times larger at the smaller step has no limit there."""

LOW_PRECISION = (
    "Let forward compute in the dtype it is given, or name a composite of plain torch operations as "
    "`reference:`: the target is then judged in its own precision."
)


def uncovered_part(problem: Problem, judged: Judged, output: Block, source: Block) -> Uncovered | None:
    """What of one (output, input) block of a first-order Jacobian could not be judged; None where all was."""
    comparison, measured = judged.comparison, judged.measured
    covered, kinks = part(comparison.covered, output, source), part(comparison.kinks, output, source)
    wrong = part(comparison.wrong | comparison.nonfinite, output, source)
    rounded_away = part(comparison.not_judged, output, source)
    mask = ~covered & ~wrong & ~kinks & ~rounded_away
    if not part(comparison.telling, output, source).any() and not wrong.any():
        mask |= kinks | rounded_away
    if not mask.any():
        return None
    if rounded_away[mask].all():
        return Uncovered(mask, ROUNDED_AWAY)
    error = part(measured.error, output, source)[mask]
    if (~measured.centre.isfinite())[output.start : output.stop][mask.any(dim=1)].all():
        # Nothing jumps: there is no value at all, as of a deviation over one element.
        return Uncovered(mask, "forward itself is not finite at these inputs", NO_VALUE)
    if not error.isfinite().all():
        places = torch.zeros_like(comparison.covered)
        part(places, output, source)[mask] = True
        return Uncovered(mask, *why_unknown(problem, judged, places))
    difference = (comparison.analytical - comparison.numerical).abs()
    if part(comparison.kinks, output, source)[mask].all():
        reason = "these inputs lie on a kink of forward"
    elif part(difference > comparison.bound, output, source)[mask].any():
        reason = "a measured difference did not recur: forward is noisy"
    else:
        reason = (
            f"the numerical derivative is known to ±{number(error.max().item())} only: forward is noisy "
            "(float32 inside, or large numbers that cancel)"
        )
    return Uncovered(mask, reason)


def why_unknown(problem: Problem, judged: Judged, places: Tensor, what: str = "forward") -> tuple[str, str]:
    """The reason, and what to try, where the error of a derivative is infinite (`places`: bool, M × N).

    `what` is the map that is differentiated. 12 evaluations, in the first of the places' columns.
    """
    measured = judged.measured
    places = places & measured.error.isinf()
    if judged.inputs.size != Layout.of(problem.primals).size or not places.any():
        return f"{what} jumps or is not finite around these inputs", OTHER_VALUES
    column = int(places.any(dim=0).nonzero()[0])
    sampler = Sampler(problem, measured.centre)
    coarse, fine = (sampler.sample([column], step * sampler.scales[[column]]) for step in KINK_STEPS)
    rows = places[:, column]
    if not (coarse.truncation.isfinite() & fine.truncation.isfinite())[0][rows].all():
        return f"{what} raises or is not finite next to these inputs", NO_VALUE
    changes = [torch.maximum(s.left.abs(), s.right.abs())[0] * s.step.abs().max() for s in (coarse, fine)]
    row = int(torch.where(rows, changes[1], -1.0).argmax())
    before, after = changes[0][row].item(), changes[1][row].item()
    size = typical_values(measured.centre, problem.outputs)[row].item()
    if after >= STAYS * before and after > 0:
        share = after / size if size else 1.0
        if share <= LARGEST_NOISE:
            said = (
                f"rounding inside {what} moves its values by {number(share)} of themselves, where float64 "
                "rounds to 2.2e-16: it computes in lower precision, or large numbers cancel"
            )
            return said, LOW_PRECISION
        sides = sorted([abs(fine.left[0, row].item()), abs(fine.right[0, row].item())])
        if not STAYS * sides[1] < sides[0] < (1 - STAYS) * sides[1]:
            return f"{what} jumps by {number(after)} next to these inputs", OTHER_VALUES
    if after * KINK_STEPS[0] > GROWS * before * KINK_STEPS[1]:
        return f"{what} is too steep here: its slope grows without limit as the step shrinks", OTHER_VALUES
    return f"{what} changes too fast here for a numerical derivative (it oscillates)", OTHER_VALUES


def family_of(name: str) -> Family:
    """The family whose outcome an uncovered pair decides, by how the pair is called."""
    if name.startswith("second order"):
        return Family.GRADGRADCHECK
    return Family.REFERENCE if name == "reference" else Family.GRADCHECK


def not_verified(sample: Sample, position: int, name: str, unknown: Uncovered) -> Finding:
    """What of one (output, input) pair could not be judged, and why."""
    count, total, reason = int(unknown.mask.sum()), unknown.mask.numel(), unknown.reason
    if name == "reference":
        return sample.finding("GV109", f"not compared with the reference: {reason}", output=position)
    of_output = f" of output {position}" if sample.outputs_returned > 1 else ""
    if name.startswith("second order"):
        what, source = "the second derivative", name.removeprefix("second order").removeprefix(", ")
    else:
        what, source = f"the gradient{of_output}", name
    by = f" with respect to `{source}`" if source else ""
    share = f" at {count} of {total} entries" if count < total else ""
    return sample.finding(
        "GV109",
        f"{what}{by} could not be verified{share}: {reason}",
        hint=unknown.hint,
        output=position,
        input=source or None,
    )
