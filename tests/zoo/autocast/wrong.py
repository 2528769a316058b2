"""Right without autocast, wrong under it: what training in mixed precision meets."""

import functools

import torch
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function
from torch.autograd.function import once_differentiable

on_cpu = functools.partial(custom_fwd, device_type="cpu")
back_on_cpu = functools.partial(custom_bwd, device_type="cpu")


class Linear(Function):
    """Nothing decorated: grad_output comes in bfloat16, the weight was saved in float32."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ x, grad_output.sum(dim=0)


class ForgetsBackward(Function):
    """Only forward is decorated."""

    @staticmethod
    @on_cpu
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ x


class ForAnotherDevice(Function):
    """Decorated for CUDA, and run on the CPU: both decorators do nothing there."""

    @staticmethod
    @functools.partial(custom_fwd, device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    @functools.partial(custom_bwd, device_type="cuda")
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ x


class SavedShort(Function):
    """Forward saves the product, which autocast has made short, beside an input that it has not."""

    @staticmethod
    def forward(ctx, x, weight):
        hidden = x @ weight
        ctx.save_for_backward(x, weight, hidden)
        return torch.relu(hidden).float() if hidden.dtype is torch.bfloat16 else torch.relu(hidden)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight, hidden = ctx.saved_tensors
        inner = grad_output.to(hidden.dtype) * (hidden > 0)
        return inner @ weight.t(), x.t() @ inner


class ScalesTwice(Function):
    """The branch for short grad_outputs has another factor."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        ctx.scale = x.shape[-1] ** -0.5
        return (x @ weight) * ctx.scale

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        g = grad_output * ctx.scale
        if grad_output.dtype is torch.bfloat16:
            g = (g * ctx.scale).to(weight.dtype)
        return g @ weight.t(), x.t() @ g


class AllocatesShort(Function):
    """The gradient is summed, row by row, into a tensor of grad_output's dtype, in eight bits."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        short = grad_output.dtype is torch.bfloat16
        kept = x.to(torch.float8_e5m2) if short else x
        g = grad_output.to(weight.dtype)
        return g @ weight.t(), kept.to(weight.dtype).t() @ g


class AlwaysHalf(Function):
    """Made for CUDA: under autocast the result is float16, whatever autocast casts to."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = torch.sin(x)
        return y.half() if torch.is_autocast_enabled("cpu") else y

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.cos(x)


class ForgetsTheInput(Function):
    """The branch for short products was never finished."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        y = x @ weight
        ctx.short = y.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        if ctx.short is torch.bfloat16:
            return torch.zeros_like(x), x.t() @ grad_output.to(x.dtype)
        return grad_output @ weight.t(), x.t() @ grad_output
