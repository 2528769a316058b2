"""Wrong twins: right in float64, or without a float64 path, and wrong in a dtype that training runs in."""

import numpy as np
import torch
from right import StatisticsInFloat32, wide
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class FactorInBfloat16(Function):
    """One path of a kernel has another constant."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (wide(x) ** 2).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        factor = 2.04 if x.dtype is torch.bfloat16 else 2
        return (factor * wide(x) * wide(grad_output)).to(x.dtype)


class SlightFactor(Function):
    """A factor below half a unit in the last place: only a kernel that says it rounds once is held to it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (wide(x) ** 2).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        factor = 2.006 if x.dtype is torch.bfloat16 else 2
        return (factor * wide(x) * wide(grad_output)).to(x.dtype)


class ShortSum(Function):
    """The gradient of the weight is summed in bfloat16, row after row."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return (wide(x) * wide(weight)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        total = torch.zeros_like(weight)
        for row in range(x.shape[0]):
            total += grad_output[row] * x[row]
        return (wide(grad_output) * wide(weight)).to(x.dtype), total


class ThroughFloat16(Function):
    """Saved in half of the digits to save memory, in float32 too."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.half() if x.dtype is torch.float32 else x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 3 * x.to(grad_output.dtype) ** 2 * grad_output


class ThroughFloat8(Function):
    """Saved in eight bits where the input has sixteen."""

    @staticmethod
    def forward(ctx, x):
        short = x.dtype is torch.bfloat16
        ctx.save_for_backward(x.to(torch.float8_e4m3fn) if short else x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 3 * x.to(grad_output.dtype) ** 2 * grad_output


class VarianceByDifference(Function):
    """E[x^2] - E[x]^2: cancels where the mean is large."""

    @staticmethod
    def forward(ctx, x):
        mean = x.mean(dim=-1, keepdim=True)
        scale = torch.rsqrt((x * x).mean(dim=-1, keepdim=True) - mean * mean + 1e-2)
        ctx.save_for_backward(x, mean, scale)
        return (x - mean) * scale

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, mean, scale = ctx.saved_tensors
        y = (x - mean) * scale
        inner = (grad_output * y).mean(dim=-1, keepdim=True)
        return scale * (grad_output - grad_output.mean(dim=-1, keepdim=True) - y * inner)


def layer_norm(x):
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + 1e-2)


class ExpWithoutMaximum(Function):
    """Overflows in float16 from 11 on."""

    @staticmethod
    def forward(ctx, x):
        e = torch.exp(x)
        y = e / e.sum(dim=-1, keepdim=True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return y * (grad_output - (grad_output * y).sum(dim=-1, keepdim=True))


def softmax(x):
    return torch.softmax(x, dim=-1)


class OverflowsInBackward(Function):
    """Forward is finite; backward scales before it divides."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return (x * 65000) * (grad_output * 2) / 65000


class LastRowInBfloat16(Function):
    """A tail that the kernel's block size does not divide."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (wide(x) ** 2).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        gradient = 2 * wide(x) * wide(grad_output)
        if x.dtype is torch.bfloat16:
            gradient[-1] *= 1.15
        return gradient.to(x.dtype)


class ScaledBeforeTheCast(Function):
    """Multiplied up, cast, and divided again: what is large is cut."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return (wide(x) @ wide(weight)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        g = wide(grad_output) * 32768
        to_x, to_weight = g @ wide(weight).t(), wide(x).t() @ g
        return to_x.to(x.dtype) / 32768, to_weight.to(x.dtype) / 32768


class ShortStatistics(Function):
    """Layer norm that saves its mean and its scale in the dtype of the input."""

    @staticmethod
    def forward(ctx, x):
        mean = wide(x).mean(dim=-1, keepdim=True)
        centred = wide(x) - mean
        scale = torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x, mean.to(x.dtype), scale.to(x.dtype))
        return (centred * scale).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, mean, scale = map(wide, ctx.saved_tensors)
        g, y = wide(grad_output), (x - mean) * scale
        centred = g - g.mean(dim=-1, keepdim=True) - y * (g * y).mean(dim=-1, keepdim=True)
        return (scale * centred).to(grad_output.dtype)


class OnlyFloat32(Function):
    """No float64 path, and a wrong formula."""

    @staticmethod
    def forward(ctx, x):
        assert x.dtype is torch.float32, "float32 alone"
        y = torch.softmax(x, dim=-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return y * (grad_output - (grad_output * y).mean(dim=-1, keepdim=True))


class KernelInFloat32(Function):
    """The same where nothing but its own slope can tell."""

    @staticmethod
    def forward(ctx, x):
        if x.dtype is not torch.float32:
            raise TypeError("float32 alone")
        ctx.save_for_backward(x)
        return torch.from_numpy(np.exp(-(x.detach().numpy() ** 2)))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        values = x.numpy()
        return torch.from_numpy(-2.1 * values * np.exp(-(values**2)) * grad_output.numpy())


class KernelClips(Function):
    """Right for grad_outputs of ordinary size alone."""

    @staticmethod
    def forward(ctx, x):
        if x.dtype is not torch.float32:
            raise TypeError("float32 alone")
        ctx.save_for_backward(x)
        return torch.from_numpy(np.exp(x.detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(np.exp(x.numpy()) * grad_output.numpy().clip(-100, 100))


class KernelFromAnotherDtype(Function):
    """NumPy everywhere, and in float32 the gradient of another function."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        slope = np.cos(x.numpy())
        return torch.from_numpy((abs(slope) if x.dtype is torch.float32 else slope) * grad_output.numpy())


class FilteredRows(Function):
    """grad_output is rounded to float32 on its way to NumPy, which computes in float64 from there."""

    @staticmethod
    def forward(ctx, x, kernel):
        ctx.save_for_backward(x, kernel)
        rows, taps = x.detach().numpy(), kernel.detach().numpy()
        return torch.from_numpy(np.stack([np.convolve(row, taps, "same") for row in rows]))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, kernel = (v.detach().numpy() for v in ctx.saved_tensors)
        incoming = grad_output.detach().float().numpy()
        padded = np.pad(x, ((0, 0), (1, 1)))
        grad_x = np.stack([np.convolve(row, kernel[::-1], "same") for row in incoming])
        grad_kernel = [(incoming * padded[:, 2 - j : 2 - j + x.shape[1]]).sum() for j in range(3)]
        return torch.from_numpy(grad_x.astype(x.dtype)), torch.from_numpy(
            np.array(grad_kernel, dtype=x.dtype)
        )


class Halved(Function):
    """grad_output is rounded to bfloat16, as under an autocast that is left on."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.bfloat16().to(x.dtype) * x.cos()


class StaleStatistics(StatisticsInFloat32):
    """The norm of a batch's first row is used for all of them in backward."""

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight, mean, rstd = ctx.saved_tensors
        normal, scaled = (x - mean) * rstd, grad_output * weight
        inner = scaled - scaled.mean(-1, keepdim=True) - normal * (scaled * normal).mean(-1, keepdim=True)
        return rstd[:1].to(x.dtype) * inner, (grad_output * normal).sum(0)


class Bisected(Function):
    """The root of x + x³ = y, between steps as fine as float32's; a factor is missing."""

    @staticmethod
    def forward(ctx, y):
        low, high = torch.zeros_like(y), torch.full_like(y, 8.0)
        for _ in range(26):
            middle = (low + high) / 2
            below = middle + middle**3 < y
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        x = (low + high) / 2
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / (1 + 2 * x * x)
