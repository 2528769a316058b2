"""`gradcheck` and `gradgradcheck` under torch's signatures, by our own judgement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradverify.api.decide import decide
from gradverify.api.gradient_error import GradientError
from gradverify.api.inputs import as_tuple, is_differentiable
from gradverify.api.options import Options
from gradverify.api.orders import FirstOrder, SecondOrder

Tensors = Tensor | Sequence[Any]
"""One tensor, or several arguments of which some are tensors."""


def gradcheck(  # noqa: PLR0913 - torch's signature
    func: Callable[..., Any],
    inputs: Tensors,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Whether the gradients of `func` at `inputs` are right: `torch.autograd.gradcheck`, with an answer.

    Every keyword means what it means there; an entry is wrong only beyond atol + rtol · |numerical|. What is
    finer than that is a warning. The numerical side measures its own error and finds its own steps, so `eps`
    and `fast_mode` matter only where torch's own implementation decides: for sparse and quantised tensors,
    subclasses, low precision, forward mode and batched gradients, and wherever ours cannot tell (a kink, a
    stochastic function), which is then said in a warning. A Jacobian that slow mode cannot build is left to
    torch's fast mode there, and the warning says so.

    Returns True. Raises `GradientError`, whose message says which entries are wrong and by how much (or
    returns False where `raise_exception` is False), and whatever `func` raises.
    """
    __tracebackhide__ = True  # the failure of a test is the report
    options = Options(
        eps=eps,
        atol=atol,
        rtol=rtol,
        nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad,
        check_batched_forward_grad=check_batched_forward_grad,
        check_forward_ad=check_forward_ad,
        check_backward_ad=check_backward_ad,
        fast_mode=fast_mode,
        masked=masked,
    )
    options.require_consistent()
    question = FirstOrder(func, as_tuple(inputs), options)
    return _answered(question, raise_exception=raise_exception)


def gradgradcheck(  # noqa: PLR0913 - torch's signature
    func: Callable[..., Any],
    inputs: Tensors,
    grad_outputs: Tensors | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Whether the second derivatives are right: `torch.autograd.gradgradcheck`, as `gradcheck` is the first.

    Without `grad_outputs`, random ones between -1 and 1 are drawn.
    """
    __tracebackhide__ = True
    _require_consistent(check_fwd_over_rev, check_rev_over_rev, check_undefined_grad, check_batched_grad)
    options = Options(
        eps=eps,
        atol=atol,
        rtol=rtol,
        nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad,
        check_batched_forward_grad=False,
        check_forward_ad=check_fwd_over_rev,
        check_backward_ad=check_rev_over_rev,
        fast_mode=fast_mode,
        masked=masked,
    )
    given = as_tuple(inputs)
    returned = as_tuple(func(*given))
    u = (
        as_tuple(grad_outputs)
        if grad_outputs is not None
        else _drawn(returned, noncontiguous=gen_non_contig_grad_outputs)
    )
    question = SecondOrder(func, given, returned, u, options)
    return _answered(question, raise_exception=raise_exception)


def _answered(question: FirstOrder, *, raise_exception: bool) -> bool:
    __tracebackhide__ = True
    if raise_exception:
        return decide(question)
    try:
        return decide(question)
    except GradientError:
        return False


def _require_consistent(
    check_fwd_over_rev: bool,  # noqa: FBT001
    check_rev_over_rev: bool,  # noqa: FBT001
    check_undefined_grad: bool,  # noqa: FBT001
    check_batched_grad: bool,  # noqa: FBT001
) -> None:
    if not (check_fwd_over_rev or check_rev_over_rev):
        raise AssertionError("Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True")
    for keyword, given in (
        ("check_undefined_grad", check_undefined_grad),
        ("check_batched_grad", check_batched_grad),
    ):
        if given and not check_rev_over_rev:
            raise AssertionError(f"Setting {keyword}=True requires check_rev_over_rev to be True")


def _drawn(returned: tuple[Any, ...], *, noncontiguous: bool) -> tuple[Tensor, ...]:
    """Random grad_outputs for every differentiable output, as torch draws them."""
    return tuple(
        torch.testing.make_tensor(
            o.shape,
            dtype=o.dtype if o.is_floating_point() or o.is_complex() else torch.float64,
            device=o.device,
            low=-1,
            high=1,
            requires_grad=True,
            noncontiguous=noncontiguous,
        )
        for o in returned
        if is_differentiable(o)
    )
