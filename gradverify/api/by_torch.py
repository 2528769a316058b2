"""torch's own check, where ours cannot tell: in which of its two modes, and what is said of its verdict.

Slow mode builds the Jacobian, entry by entry. It answers no question whose Jacobian fits in no memory, or
takes hours: fast mode, one random direction, is what torch can say there.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from gradverify.api.call import Original
from gradverify.api.gradient_error import GradientError
from gradverify.api.messages import failure, finding, name_of
from gradverify.api.orders import FirstOrder, Options
from gradverify.verifier.numerics.problem import Layout
from gradverify.verifier.questions.findings import number

PLAIN = (Tensor, torch.nn.Parameter)
"""The tensors that are no subclass with a meaning of its own."""

DOUBLE = (torch.float64, torch.complex128)
"""The dtypes whose numerical derivatives are worth measuring."""

MOST_ENTRIES = 10**8
"""Entries of a Jacobian that torch's slow mode is asked for. It keeps four of them at once (columns, joined
columns, gradients, gradients again): 3 GB of float64."""

MOST_VALUES = 10**12
"""Values (of inputs and outputs) that slow mode may have to work out in all: two forwards for each input
entry and two backwards for each output entry. At a billion in a second, about a quarter of an hour."""


CALLER = 5
"""Stack frames from a warning made here to the test that called the drop-in."""


def only_for_torch(inputs: Sequence[Any], options: Options) -> bool:
    """Whether torch's own implementation has to decide: what it does there is defined by it alone.

    Sparse, quantised and MKL-DNN tensors, subclasses of Tensor, inputs of low precision, inputs that share
    memory, `masked`, a check of forward mode without backward mode, and whatever torch refuses.
    """
    if options.masked or not options.check_backward_ad:
        return True
    if options.check_batched_forward_grad and not options.check_forward_ad:
        return True
    memory: set[int] = set()
    several, wanted = len(inputs) > 1, False
    for x in inputs:
        if isinstance(x, Tensor):
            if not _is_plain(x) or (x.requires_grad and (x.dtype not in DOUBLE or _overlaps(x))):
                return True
            wanted = wanted or x.requires_grad
            if several and x.numel():
                start = x.untyped_storage().data_ptr()
                if start in memory:
                    return True
                memory.add(start)
    return not wanted


def _overlaps(x: Tensor) -> bool:
    """Whether several entries lie in one place, as after `expand`: torch refuses that."""
    pairs = zip(x.stride(), x.shape, strict=True)
    return 0 in x.stride() and any(stride == 0 and size > 1 for stride, size in pairs)


def _is_plain(x: Tensor) -> bool:
    return type(x) in PLAIN and x.layout is torch.strided and not x.is_quantized


def torch_decides(question: FirstOrder, unverified_by_us: str, too_large: str = "") -> bool:
    """What torch says. `too_large` says why its slow mode cannot be asked: then its fast mode is."""
    __tracebackhide__ = True
    fast = question.options.fast_mode or bool(too_large)
    try:
        result = question.ask_torch(fast)
    except GradcheckError as error:
        # What torch says ends in the Jacobians, printed in full: those stay in the error it raised.
        said = str(error).strip().partition("\nnumerical:")[0].rstrip(", ")
        where = " where gradverify could not tell" if unverified_by_us else ""
        hint = (
            "This is torch's verdict alone, and may be a false alarm. gradverify could not judge it itself: "
            f"{unverified_by_us}. Try inputs of moderate size, away from kinks."
        )
        message = f"torch.autograd.gradcheck's own check fails{where}: {said}"
        found = finding("GV101", message, hint if unverified_by_us else "")
        raise GradientError(failure(question.function, (found,)), (found,)) from error
    said = _how_torch_decided(unverified_by_us, "" if question.options.fast_mode else too_large)
    if said:
        warnings.warn(f"{name_of(question.function)}: {said}", stacklevel=CALLER)
    return result


def _how_torch_decided(unverified_by_us: str, too_large: str) -> str:
    """What the caller has to know about a verdict of torch's; `too_large` where slow mode was asked for."""
    by_fast = f"torch's fast mode, which looks along one random direction alone ({too_large})"
    if unverified_by_us:
        by = f"{by_fast}, decided" if too_large else "torch's own check decided"
        return f"not verified by gradverify, {by}: {unverified_by_us}"
    return f"what torch alone can tell was decided by {by_fast}" if too_large else ""


def beyond_slow_mode(original: Original) -> str:
    """Why slow mode cannot be asked about a call; empty where it can."""
    columns, rows = Layout.of(original.leaves).size, Layout.of(original.outputs).size
    if columns * rows > MOST_ENTRIES:
        return f"its slow mode would build a Jacobian of {number(columns * rows)} entries"
    if 2 * (columns + rows) ** 2 > MOST_VALUES:
        return f"its slow mode would call the function {number(2 * (columns + rows))} times"
    return ""
