"""Operators whose backward is wrong, in every way in which torch registers one."""

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.library import Library, custom_op


@custom_op("suggested::scaled", mutates_args=())
def scaled(x: Tensor, w: Tensor, scale: float = 1.0) -> Tensor:
    return x * w * scale


def _setup_scaled(ctx, inputs, output):
    x, w, ctx.scale = inputs
    ctx.save_for_backward(x, w)


def backward(ctx, g):
    x, w = ctx.saved_tensors
    return g * w, g * x * ctx.scale, None


scaled.register_autograd(backward, setup_context=_setup_scaled)


@custom_op("suggested::grown", mutates_args=())
def grown(x: Tensor, *, rate: float) -> tuple[Tensor, Tensor]:
    y = torch.exp(rate * x)
    return y, y.sum(-1)


grown.register_autograd(lambda ctx, g, h: g)


library = Library("suggested_library", "DEF")
library.define("cube(Tensor x) -> Tensor")
library.impl("cube", lambda x: x**3, "CPU")
library.impl("cube", torch.empty_like, "Meta")


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.suggested_library.cube(x)

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0] ** 2


library.impl("cube", Cube.apply, "Autograd")


def cubed(x):
    return x**3


class Layer(nn.Module):
    def forward(self, x):
        return cubed(x)
