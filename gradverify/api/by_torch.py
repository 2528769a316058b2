"""torch's own check, where ours cannot tell: in which of its two modes, and what is said of its verdict.

Slow mode builds the Jacobian, entry by entry. It answers no question whose Jacobian fits in no memory, or
takes hours: fast mode, one random direction, is what torch can say there.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from gradverify.api.call import Original
from gradverify.api.gradient_error import GradientError
from gradverify.api.messages import failure, finding, name_of
from gradverify.api.orders import FirstOrder
from gradverify.verifier.checks.wording import number

MOST_ENTRIES = 10**8
"""Entries of a Jacobian that torch's slow mode is asked for. It keeps four of them at once (columns, joined
columns, gradients, gradients again): 3 GB of float64."""

MOST_VALUES = 10**12
"""Values (of inputs and outputs) that slow mode may have to work out in all: two forwards for each input
entry and two backwards for each output entry. At a billion in a second, about a quarter of an hour."""


CALLER = 5
"""Stack frames from a warning made here to the test that called the drop-in."""


def torch_decides(question: FirstOrder, unverified_by_us: str, too_large: str = "") -> bool:
    """What torch says. `too_large` says why its slow mode cannot be asked: then its fast mode is."""
    __tracebackhide__ = True
    fast = question.options.fast_mode or bool(too_large)
    try:
        result = question.ask_torch(fast)
    except GradcheckError as error:
        found = finding("GV101", f"torch.autograd.gradcheck's own check fails: {_without_matrices(error)}")
        if unverified_by_us:
            found = replace(
                found,
                message=f"torch.autograd.gradcheck's own check fails where gradverify could not tell: "
                f"{_without_matrices(error)}",
                hint="This is torch's verdict alone, and may be a false alarm. gradverify could not judge it "
                f"itself: {unverified_by_us}. Try inputs of moderate size, away from kinks.",
            )
        raise GradientError(failure(question.user_function, (found,)), (found,)) from error
    said = _how_torch_decided(unverified_by_us, "" if question.options.fast_mode else too_large)
    if said:
        warnings.warn(f"{name_of(question.user_function)}: {said}", stacklevel=CALLER)
    return result


def _how_torch_decided(unverified_by_us: str, too_large: str) -> str:
    """What the caller has to know about a verdict of torch's; `too_large` where slow mode was asked for."""
    by_fast = f"torch's fast mode, which looks along one random direction alone ({too_large})"
    if unverified_by_us:
        by = f"{by_fast}, decided" if too_large else "torch's own check decided"
        return f"not verified by gradverify, {by}: {unverified_by_us}"
    return f"what torch alone can tell was decided by {by_fast}" if too_large else ""


def _without_matrices(error: GradcheckError) -> str:
    """What torch says, up to the Jacobians that it prints in full: those stay in the error it raised."""
    return str(error).strip().partition("\nnumerical:")[0].rstrip(", ")


def beyond_slow_mode(original: Original) -> str:
    """Why slow mode cannot be asked about a call; empty where it can."""
    columns = sum(_coordinates(x) for x in original.leaves)
    rows = sum(_coordinates(o) for o in original.outputs)
    if columns * rows > MOST_ENTRIES:
        return f"its slow mode would build a Jacobian of {number(columns * rows)} entries"
    if 2 * (columns + rows) ** 2 > MOST_VALUES:
        return f"its slow mode would call the function {number(2 * (columns + rows))} times"
    return ""


def _coordinates(tensor: Tensor) -> int:
    """Real numbers in a tensor."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)
