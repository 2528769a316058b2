"""Right under `torch.autocast`, each in its own way; or refuses it clearly."""

import functools

import numpy as np
import torch
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function
from torch.autograd.function import once_differentiable

on_cpu = functools.partial(custom_fwd, device_type="cpu")
in_float32 = functools.partial(custom_fwd, device_type="cpu", cast_inputs=torch.float32)
back_on_cpu = functools.partial(custom_bwd, device_type="cpu")


class Linear(Function):
    """Both decorators: the products of backward are cast as those of forward are."""

    @staticmethod
    @on_cpu
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    @back_on_cpu
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ x, grad_output.sum(dim=0)


class LinearInFloat32(Function):
    @staticmethod
    @in_float32
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    @back_on_cpu
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ x


class LinearPromoted(Function):
    """Adding the bias makes the result float32 again."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ x, grad_output.sum(dim=0)


class LinearCastsByHand(Function):
    """No decorator: grad_output gets the dtype of what was saved."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        g = grad_output.to(weight.dtype)
        return g @ weight, g.t() @ x


class SavesShort(Function):
    """Saves what the product was made of, in the dtype of the output, and multiplies in that."""

    @staticmethod
    def forward(ctx, x, weight):
        y = x @ weight.t()
        ctx.save_for_backward(x.to(y.dtype), weight.to(y.dtype))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight, grad_output.t() @ x


class Gelu(Function):
    """Plain elementwise operations: autocast leaves them alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(1.702 * x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(1.702 * x)
        return grad_output * (s + 1.702 * x * s * (1 - s))


class Attention(Function):
    @staticmethod
    @on_cpu
    def forward(ctx, q, k, v):
        weights = torch.softmax(q @ k.t() / q.shape[1] ** 0.5, dim=-1)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    @back_on_cpu
    @once_differentiable
    def backward(ctx, grad_output):
        q, k, v, weights = ctx.saved_tensors
        to_weights = (grad_output @ v.t()).float() if weights.dtype is torch.float32 else grad_output @ v.t()
        inner = weights * (to_weights - (to_weights * weights).sum(dim=-1, keepdim=True))
        scaled = inner / q.shape[1] ** 0.5
        return scaled @ k, scaled.t() @ q, weights.t() @ grad_output


class Recomputes(Function):
    """Checkpointing: forward again in backward, in the same autocast state."""

    @staticmethod
    @on_cpu
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.tanh(x @ weight)

    @staticmethod
    @back_on_cpu
    @once_differentiable
    def backward(ctx, grad_output):
        with torch.enable_grad():
            x, weight = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            y = torch.tanh(x @ weight)
        return torch.autograd.grad(y, (x, weight), grad_output)


class LayerNorm(Function):
    """Statistics in float32, whatever it is given."""

    @staticmethod
    def forward(ctx, x, weight):
        kept = x if x.dtype is torch.float64 else x.float()
        centred = kept - kept.mean(dim=-1, keepdim=True)
        scale = torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(centred * scale, scale, weight)
        return (centred * scale * weight).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        y, scale, weight = ctx.saved_tensors
        g = grad_output.to(y.dtype)
        inner = g * weight
        mean, along = inner.mean(dim=-1, keepdim=True), (inner * y).mean(dim=-1, keepdim=True)
        return scale * (inner - mean - y * along), (g * y).sum(dim=0)


class Kernel(Function):
    """Leaves torch for NumPy, which has no bfloat16."""

    @staticmethod
    @in_float32
    def forward(ctx, x, weight):
        product = x.detach().numpy() @ weight.detach().numpy()
        ctx.save_for_backward(x, weight)
        return torch.from_numpy(np.sin(product))

    @staticmethod
    @back_on_cpu
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight = (t.numpy() for t in ctx.saved_tensors)
        inner = np.cos(x @ weight) * grad_output.numpy()
        return torch.from_numpy(inner @ weight.T), torch.from_numpy(x.T @ inner)


class Refuses(Function):
    """Says so before anything is computed: nobody trains with it by mistake."""

    @staticmethod
    def forward(ctx, x, weight):
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError("Refuses does not support autocast")
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight.t(), x.t() @ grad_output


class OnlyFloat32(Function):
    """No float64 path: held against its own operations in float64."""

    @staticmethod
    @in_float32
    def forward(ctx, x, weight):
        if x.dtype is not torch.float32:
            raise TypeError("float32 alone")
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @back_on_cpu
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight.t(), x.t() @ grad_output
