"""Operators whose gradient is wrong, missing, or whose registration says what is not so."""

import torch
from torch import Tensor
from torch.autograd import Function
from torch.library import Library, custom_op


def save_inputs(ctx, inputs, output):
    ctx.save_for_backward(*(i for i in inputs if isinstance(i, Tensor)))


def like_first(*inputs):
    return torch.empty_like(inputs[0])


@custom_op("zoo_wrong::product", mutates_args=())
def product(x: Tensor, w: Tensor) -> Tensor:
    return x * w


product.register_fake(like_first)


def _product_backward(ctx, g):
    x, w = ctx.saved_tensors
    return g * w, 2 * g * x


product.register_autograd(_product_backward, setup_context=save_inputs)


@custom_op("zoo_wrong::row_sums", mutates_args=())
def row_sums(x: Tensor) -> Tensor:
    return x.sum(-1)


row_sums.register_fake(lambda x: x.new_empty(x.shape[:-1]))
row_sums.register_autograd(
    lambda ctx, g: g,  # not expanded
    setup_context=save_inputs,
)


@custom_op("zoo_wrong::scaled", mutates_args=())
def scaled(x: Tensor, *, factor: float) -> Tensor:
    return x * factor


scaled.register_fake(lambda x, *, factor: x.new_empty(x.shape))


def _scaled_setup(ctx, inputs, keyword_only_inputs, output):
    ctx.factor = keyword_only_inputs["factor"]


scaled.register_autograd(lambda ctx, g: (g * ctx.factor, g), setup_context=_scaled_setup)


@custom_op("zoo_wrong::mean_of", mutates_args=())
def mean_of(xs: list[Tensor]) -> Tensor:
    return sum(xs) / len(xs)


mean_of.register_fake(lambda xs: torch.empty_like(xs[0]))


def _mean_setup(ctx, inputs, output):
    ctx.count = len(inputs[0])


mean_of.register_autograd(lambda ctx, g: [g] * ctx.count, setup_context=_mean_setup)


@custom_op("zoo_wrong::forgotten", mutates_args=())
def forgotten(x: Tensor) -> Tensor:
    """A spec asks for the gradient of it, and nobody registered one."""
    return x.exp()


@custom_op("zoo_wrong::transposed_fake", mutates_args=())
def transposed_fake(x: Tensor) -> Tensor:
    return x.mT @ x


transposed_fake.register_fake(lambda x: x.new_empty(x.shape[0], x.shape[0]))
transposed_fake.register_autograd(lambda ctx, g: ctx.saved_tensors[0] @ (g + g.mT), setup_context=save_inputs)


@custom_op("zoo_wrong::misspelt_fake", mutates_args=())
def misspelt_fake(x: Tensor) -> Tensor:
    return x * x


misspelt_fake.register_fake(lambda x: torch.empty_like(y))  # noqa: F821
misspelt_fake.register_autograd(lambda ctx, g: 2 * g * ctx.saved_tensors[0], setup_context=save_inputs)


@custom_op("zoo_wrong::hidden_write", mutates_args=())
def hidden_write(x: Tensor, running: Tensor) -> Tensor:
    """Its schema says that `running` is only read."""
    running.mul_(0.9).add_(x.detach().mean())
    return x * x


hidden_write.register_fake(like_first)


def _hidden_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


hidden_write.register_autograd(
    lambda ctx, g: (2 * g * ctx.saved_tensors[0], None), setup_context=_hidden_setup
)


library = Library("zoo_wrong_library", "DEF")
library.define("cube(Tensor x) -> Tensor")
library.define("detached(Tensor x) -> Tensor")


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        return 3 * g * ctx.saved_tensors[0] ** 2


library.impl("cube", Cube.apply, "CPU")
library.impl("cube", torch.empty_like, "Meta")
library.impl("detached", lambda x: x.detach().exp(), "CPU")
