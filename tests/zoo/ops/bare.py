"""Operators without a spec: what they take is read off their schemas."""

import torch
from torch import Tensor
from torch.library import custom_op


def save_inputs(ctx, inputs, output):
    ctx.save_for_backward(*(i for i in inputs if isinstance(i, Tensor)))


@custom_op("zoo_bare::linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out = x @ weight.t()
    return out if bias is None else out + bias


@linear.register_fake
def _(x, weight, bias=None):
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _linear_backward(ctx, g):
    x, w, *b = ctx.saved_tensors
    return g @ w, g.t() @ x, g.sum(0) if b else None


linear.register_autograd(_linear_backward, setup_context=save_inputs)


def linear_ref(x, weight, bias=None):
    return torch.nn.functional.linear(x, weight, bias)


@custom_op("zoo_bare::pick", mutates_args=())
def pick(x: Tensor, index: Tensor, scale: float, *, mode: str) -> Tensor:
    rows = x[index] * scale
    return rows * 2 if mode == "double" else rows.clone()


pick.register_fake(lambda x, index, scale, *, mode: x.new_empty(*index.shape, *x.shape[1:]))


def _pick_setup(ctx, inputs, keyword_only_inputs, output):
    x, index, ctx.scale = inputs
    ctx.factor, ctx.shape = 2 if keyword_only_inputs["mode"] == "double" else 1, x.shape
    ctx.save_for_backward(index)


def _pick_backward(ctx, g):
    (index,) = ctx.saved_tensors
    return g.new_zeros(ctx.shape).index_add(0, index, g * ctx.scale * ctx.factor), None, None


pick.register_autograd(_pick_backward, setup_context=_pick_setup)


@custom_op("zoo_bare::halved", mutates_args=())
def halved(x: Tensor, squared: bool) -> Tensor:
    return x * x if squared else x.clone()


halved.register_fake(lambda x, squared: torch.empty_like(x))
halved.register_autograd(lambda ctx, g: (g * ctx.saved_tensors[0], None), setup_context=save_inputs)


def use(x):
    return halved(x, True)


@custom_op("zoo_bare::exponential", mutates_args=())
def exponential(x: Tensor) -> Tensor:
    """No backward is registered: it is passed over, and says so."""
    return x.exp()
