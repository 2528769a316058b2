"""`gradcheck` and `gradgradcheck` under torch's signatures, by our own judgement."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import torch
from torch import Tensor
from torch.autograd.gradcheck import gradcheck as torch_gradcheck
from torch.autograd.gradcheck import gradgradcheck as torch_gradgradcheck

from gradverify.api.call import as_tuple, is_differentiable
from gradverify.api.decide import decide
from gradverify.api.gradient_error import GradientError
from gradverify.api.orders import FirstOrder, Options, SecondOrder

P = ParamSpec("P")

Tensors = Tensor | Sequence[Any]
"""One tensor, or several arguments of which some are tensors."""


def _called_as(theirs: Callable[P, bool]) -> Callable[[Callable[..., bool]], Callable[P, bool]]:
    """The signature of torch's own function, for readers, tools and type checkers."""

    def signed(ours: Callable[..., bool]) -> Callable[P, bool]:
        vars(ours)["__signature__"] = inspect.signature(theirs)
        return ours

    return signed


@_called_as(torch_gradcheck)
def gradcheck(
    func: Callable[..., Any],
    inputs: Tensors,
    *,
    raise_exception: bool = True,
    **keywords: Any,  # noqa: ANN401 - those of `Options`
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
    question = FirstOrder(func, as_tuple(inputs), Options(**keywords))
    return _answered(question, raise_exception=raise_exception)


@_called_as(torch_gradgradcheck)
def gradgradcheck(
    func: Callable[..., Any],
    inputs: Tensors,
    grad_outputs: Tensors | None = None,
    *,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    **keywords: Any,  # noqa: ANN401
) -> bool:
    """Whether the second derivatives are right: `torch.autograd.gradgradcheck`, as `gradcheck` is the first.

    Without `grad_outputs`, random ones between -1 and 1 are drawn.
    """
    __tracebackhide__ = True
    options = Options(check_forward_ad=check_fwd_over_rev, check_backward_ad=check_rev_over_rev, **keywords)
    given = as_tuple(inputs)
    returned = as_tuple(func(*given))
    if grad_outputs is None:
        grad_outputs = _drawn(returned, noncontiguous=gen_non_contig_grad_outputs)
    u = as_tuple(grad_outputs)
    return _answered(SecondOrder(func, given, returned, u, options), raise_exception=raise_exception)


def _answered(question: FirstOrder, *, raise_exception: bool) -> bool:
    __tracebackhide__ = True
    try:
        return decide(question)
    except GradientError:
        if raise_exception:
            raise
        return False


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
