"""Operators with a right gradient and a true registration, in every way that torch offers."""

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.library import Library, custom_op


def save_inputs(ctx, inputs, output):
    ctx.save_for_backward(*(i for i in inputs if isinstance(i, Tensor)))


@custom_op("zoo_right::scaled_product", mutates_args=())
def scaled_product(x: Tensor, w: Tensor, scale: float = 1.0) -> Tensor:
    return x * w * scale


def scaled_product_reference(x, w, scale=1.0):
    return scale * (x * w)


@scaled_product.register_fake
def _(x, w, scale=1.0):
    return torch.empty_like(x)


def _scaled_setup(ctx, inputs, output):
    x, w, ctx.scale = inputs
    ctx.save_for_backward(x, w)


def _scaled_backward(ctx, g):
    x, w = ctx.saved_tensors
    return g * w * ctx.scale, g * x * ctx.scale, None


scaled_product.register_autograd(_scaled_backward, setup_context=_scaled_setup)


@scaled_product.register_vmap
def _(info, in_dims, x, w, scale=1.0):
    x, w = (
        t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip((x, w), in_dims[:2], strict=True)
    )
    return scaled_product(x, w, scale), 0


@custom_op("zoo_right::numpy_cube_backward", mutates_args=())
def numpy_cube_backward(g: Tensor, x: Tensor) -> Tensor:
    """What cannot be traced, in an operator of its own; it has no backward, so there is no second order."""
    return torch.from_numpy(np.asarray(3 * g.numpy() * x.numpy() ** 2))


@numpy_cube_backward.register_fake
def _(g, x):
    return torch.empty_like(x)


@custom_op("zoo_right::numpy_cube", mutates_args=())
def numpy_cube(x: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(x.numpy() ** 3))


@numpy_cube.register_fake
def _(x):
    return torch.empty_like(x)


numpy_cube.register_autograd(
    lambda ctx, g: numpy_cube_backward(g, ctx.saved_tensors[0]), setup_context=save_inputs
)


@custom_op("zoo_right::weighted_sum", mutates_args=())
def weighted_sum(xs: list[Tensor], bias: Tensor | None, powers: list[int], *, factor: float) -> Tensor:
    """A list, an optional tensor, integers, and a parameter that is passed by name alone."""
    total = sum(p * x for p, x in zip(powers, xs, strict=True)) * factor
    return total.clone() if bias is None else total + bias


@weighted_sum.register_fake
def _(xs, bias, powers, *, factor):
    return torch.empty_like(xs[0])


def _sum_setup(ctx, inputs, keyword_only_inputs, output):
    xs, bias, ctx.powers = inputs
    ctx.factor, ctx.count, ctx.bias = keyword_only_inputs["factor"], len(xs), bias is not None


def _sum_backward(ctx, g):
    grads = [p * ctx.factor * g for p in ctx.powers]
    return grads, g.sum(0) if ctx.bias else None, None


weighted_sum.register_autograd(_sum_backward, setup_context=_sum_setup)


@custom_op("zoo_right::softmax_and_sum", mutates_args=())
def softmax_and_sum(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two results, the second of which its author says not to differentiate."""
    return torch.softmax(x, -1), torch.logsumexp(x, -1)


@softmax_and_sum.register_fake
def _(x):
    return torch.empty_like(x), x.new_empty(x.shape[:-1])


def _softmax_setup(ctx, inputs, output):
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[0])


def _softmax_backward(ctx, g, _):
    (y,) = ctx.saved_tensors
    return y * (g - (g * y).sum(-1, keepdim=True))


softmax_and_sum.register_autograd(_softmax_backward, setup_context=_softmax_setup)


@custom_op("zoo_right::gather_rows", mutates_args=())
def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """No fake kernel: torch.compile refuses it, which is a note."""
    return x[index]


def _gather_setup(ctx, inputs, output):
    x, index = inputs
    ctx.save_for_backward(index)
    ctx.rows = x.shape[0]


def _gather_backward(ctx, g):
    (index,) = ctx.saved_tensors
    return g.new_zeros(ctx.rows, *g.shape[1:]).index_add(0, index, g), None


gather_rows.register_autograd(_gather_backward, setup_context=_gather_setup)


@custom_op("zoo_right::looks_at_values", mutates_args=())
def looks_at_values(x: Tensor) -> Tensor:
    return x * x


@looks_at_values.register_fake
def _(x):
    return torch.empty_like(x)


def _looking_backward(ctx, g):
    (x,) = ctx.saved_tensors
    return 2 * x * g if g.abs().max().item() > 0 else torch.zeros_like(x)


looks_at_values.register_autograd(_looking_backward, setup_context=save_inputs)


library = Library("zoo_right_library", "DEF")
library.define("cube(Tensor x) -> Tensor")


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.zoo_right_library.cube(x)

    @staticmethod
    def backward(ctx, g):
        return 3 * g * ctx.saved_tensors[0] ** 2


library.impl("cube", lambda x: x**3, "CPU")
library.impl("cube", torch.empty_like, "Meta")
library.impl("cube", Cube.apply, "Autograd")


torch.library.define("zoo_right_library::double", "(Tensor x) -> Tensor")
torch.library.impl("zoo_right_library::double", "CompositeImplicitAutograd", lambda x: 2 * x)


@custom_op("zoo_right::mean_of", mutates_args=())
def mean_of(xs: list[Tensor]) -> Tensor:
    return sum(xs) / len(xs)


mean_of.register_fake(lambda xs: torch.empty_like(xs[0]))


def _mean_setup(ctx, inputs, output):
    ctx.count = len(inputs[0])


# One argument, a list: so is what backward returns.
mean_of.register_autograd(lambda ctx, g: [g / ctx.count] * ctx.count, setup_context=_mean_setup)


@custom_op("zoo_right::count_positive", mutates_args=())
def count_positive(x: Tensor) -> Tensor:
    """Nobody registers a backward: passed over."""
    return (x > 0).sum()
