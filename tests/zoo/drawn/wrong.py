"""Wrong at some values, sizes and structures alone: which of them are drawn decides the verdict."""

import torch
from torch import nn
from torch.autograd import Function


class Coupling(Function):
    """A reversible block, called with modules and with their own parameters."""

    @staticmethod
    def forward(ctx, x, first, second, *weights):
        ctx.first, ctx.second = first, second
        ctx.save_for_backward(x)
        with torch.no_grad():
            return Coupling.composite(x, first, second)

    @staticmethod
    def composite(x, first, second):
        x1, x2 = x.chunk(2, dim=1)
        y1 = x1 + first(x2)
        return torch.cat([y1, x2 + second(y1)], dim=1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = Coupling.composite(x, ctx.first, ctx.second)
            weights = [*ctx.first.parameters(), *ctx.second.parameters()]
            of_x, *of_weights = torch.autograd.grad(y, [x, *weights], g)
        return of_x, None, None, 2 * of_weights[0], *of_weights[1:]


def blocks(generator, device, dtype, b=2, n=2):
    """`x, first, second` and the parameters of both modules."""
    x = torch.randn(b, 2 * n, generator=generator, dtype=dtype).to(device).requires_grad_()
    first, second = (nn.Sequential(nn.Linear(n, n, dtype=dtype), nn.Tanh()).to(device) for _ in range(2))
    return x, first, second, *first.parameters(), *second.parameters()
