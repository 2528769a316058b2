"""Functions that are right in every dtype they take: some round once, some round intermediates."""

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

SHORT = (torch.bfloat16, torch.float16)


def wide(x):
    """Float32 for 16 bits, as a careful kernel computes; anything else as it is."""
    return x.float() if x.dtype in SHORT else x


class Softmax(Function):
    """Keeps float32 inside, its own output included."""

    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(wide(x), dim=-1)
        ctx.save_for_backward(y)
        ctx.dtype = x.dtype
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        g = wide(grad_output)
        return (y * (g - (g * y).sum(dim=-1, keepdim=True))).to(ctx.dtype)


class NativeSoftmax(Function):
    """Every operation in the dtype of its input."""

    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, dim=-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return y * (grad_output - (grad_output * y).sum(dim=-1, keepdim=True))


class RMSNorm(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        scale = torch.rsqrt(wide(x).square().mean(dim=-1, keepdim=True) + 1e-6)
        return (wide(x) * scale * wide(weight)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        kept, kept_weight = ctx.saved_tensors
        x, weight, g = wide(kept), wide(kept_weight), wide(grad_output)
        scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6)
        inner = g * weight
        to_x = scale * (inner - x * scale**2 * (inner * x).mean(dim=-1, keepdim=True))
        return to_x.to(kept.dtype), (g * x * scale).sum(dim=0).to(kept_weight.dtype)


class LayerNorm(Function):
    @staticmethod
    def forward(ctx, x):
        kept = wide(x)
        mean = kept.mean(dim=-1, keepdim=True)
        scale = torch.rsqrt((kept - mean).square().mean(dim=-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x, mean, scale)
        return ((kept - mean) * scale).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, mean, scale = ctx.saved_tensors
        g, y = wide(grad_output), (wide(x) - mean) * scale
        centred = g - g.mean(dim=-1, keepdim=True) - y * (g * y).mean(dim=-1, keepdim=True)
        return (scale * centred).to(x.dtype)


class SwiGLU(Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        g = wide(gate)
        return (g * torch.sigmoid(g) * wide(up)).to(gate.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        gate, up = ctx.saved_tensors
        g, u, out = wide(gate), wide(up), wide(grad_output)
        s = torch.sigmoid(g)
        to_gate = out * u * s * (1 + g * (1 - s))
        return to_gate.to(gate.dtype), (out * g * s).to(up.dtype)


class OnlineSoftmax(Function):
    """One column after the other, as a tiled kernel sees them."""

    @staticmethod
    def forward(ctx, x):
        columns = wide(x)
        largest, total = columns[:, :1], torch.ones_like(columns[:, :1])
        for k in range(1, columns.shape[1]):
            now = torch.maximum(largest, columns[:, k : k + 1])
            total = total * torch.exp(largest - now) + torch.exp(columns[:, k : k + 1] - now)
            largest = now
        y = torch.exp(columns - largest) / total
        ctx.save_for_backward(y)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        g = wide(grad_output)
        return (y * (g - (g * y).sum(dim=-1, keepdim=True))).to(grad_output.dtype)


class RoundsWeights(Function):
    """Attention weights are rounded to the dtype before they meet the values: flash kernels do."""

    @staticmethod
    def forward(ctx, scores, values):
        p = torch.softmax(wide(scores), dim=-1).to(values.dtype)
        ctx.save_for_backward(p, values)
        return (wide(p) @ wide(values)).to(values.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        p, values = ctx.saved_tensors
        g, weights = wide(grad_output), wide(p)
        to_p = g @ wide(values).mT
        to_scores = weights * (to_p - (weights * to_p).sum(dim=-1, keepdim=True))
        return to_scores.to(p.dtype), (weights.mT @ g).to(p.dtype)


class LlamaRMSNorm(Function):
    """The normalised values are rounded to the dtype before the weight."""

    @staticmethod
    def forward(ctx, x, weight):
        scale = torch.rsqrt(wide(x).square().mean(dim=-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, scale)
        return weight * (wide(x) * scale).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight, scale = ctx.saved_tensors
        normed = (wide(x) * scale).to(x.dtype)
        inner = wide(grad_output * weight)
        to_x = scale * inner - scale**3 * wide(x) * (inner * wide(x)).mean(dim=-1, keepdim=True)
        return to_x.to(x.dtype), (wide(grad_output) * wide(normed)).sum(dim=0).to(weight.dtype)


class Rotary(Function):
    """Cosines and sines are rounded to the dtype, and every product."""

    @staticmethod
    def forward(ctx, x):
        rows, width = x.shape
        frequencies = 10000 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.arange(rows, dtype=torch.float64)[:, None] * frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        ctx.save_for_backward(cos, sin)
        a, b = x[:, 0::2], x[:, 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(1)

    @staticmethod
    def backward(ctx, grad_output):
        cos, sin = ctx.saved_tensors
        a, b = grad_output[:, 0::2], grad_output[:, 1::2]
        return torch.stack((a * cos + b * sin, b * cos - a * sin), dim=-1).flatten(1)


class SmoothedCrossEntropy(Function):
    """The gradient is made in forward, in place, and kept in the dtype of the logits."""

    @staticmethod
    def forward(ctx, logits, target):
        rows, classes = logits.shape
        logarithms = torch.log_softmax(wide(logits), dim=-1)
        chosen = torch.arange(rows), target
        loss = -0.9 * logarithms[chosen] - 0.1 / classes * logarithms.sum(dim=-1)
        gradient = logarithms.exp()
        gradient -= 0.1 / classes
        gradient[chosen] -= 0.9
        ctx.save_for_backward((gradient / rows).to(logits.dtype))
        return loss.mean().to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (gradient,) = ctx.saved_tensors
        return gradient * grad_output, None


class ScatterSum(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        total = wide(x).new_zeros(5, x.shape[1]).index_add(0, index, wide(x))
        return total.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        return grad_output[index], None


class Embedding(Function):
    @staticmethod
    def forward(ctx, weight, index):
        ctx.save_for_backward(index)
        ctx.rows = weight.shape[0]
        return weight[index]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        g = wide(grad_output)
        return g.new_zeros(ctx.rows, g.shape[-1]).index_add(0, index, g).to(grad_output.dtype), None


class OnlyFloat32(Function):
    """Refuses float64, as many kernels do; its operations are torch's."""

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
        return y * (grad_output - (grad_output * y).sum(dim=-1, keepdim=True))


class InsideFloat32(Function):
    """Takes float64 and computes in float32."""

    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x.float())
        ctx.save_for_backward(y)
        ctx.dtype = x.dtype
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return (grad_output.float() * (1 - y * y)).to(ctx.dtype)


class KernelInFloat32(Function):
    """No operation of torch's anywhere, and float32 alone: a kernel."""

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
        return torch.from_numpy(-2 * values * np.exp(-(values**2)) * grad_output.numpy())


class KernelWithReference(Function):
    """The same, with a composite of plain torch operations beside it."""

    forward = staticmethod(KernelInFloat32.forward)
    backward = staticmethod(KernelInFloat32.backward)


def gaussian(x):
    return torch.exp(-(x**2))


class Kernel(Function):
    """NumPy in every dtype that it knows: what rounds inside is not seen."""

    @staticmethod
    def forward(ctx, x):
        y = torch.from_numpy(np.exp(x.detach().numpy()))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return torch.from_numpy(y.numpy() * grad_output.numpy())


class ComplexSquare(Function):
    """Float32 means complex64 for complex inputs."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * z

    @staticmethod
    def backward(ctx, grad_output):
        (z,) = ctx.saved_tensors
        return 2 * z.conj() * grad_output


class FilteredRows(Function):
    """Rows convolved with three numbers, in NumPy."""

    @staticmethod
    def forward(ctx, x, kernel):
        ctx.save_for_backward(x, kernel)
        rows, taps = x.detach().numpy(), kernel.detach().numpy()
        return torch.from_numpy(np.stack([np.convolve(row, taps, "same") for row in rows]))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, kernel = (v.detach().numpy() for v in ctx.saved_tensors)
        incoming = grad_output.detach().numpy()
        padded = np.pad(x, ((0, 0), (1, 1)))
        grad_x = np.stack([np.convolve(row, kernel[::-1], "same") for row in incoming])
        grad_kernel = [(incoming * padded[:, 2 - j : 2 - j + x.shape[1]]).sum() for j in range(3)]
        return torch.from_numpy(grad_x.astype(x.dtype)), torch.from_numpy(
            np.array(grad_kernel, dtype=x.dtype)
        )


class StatisticsInFloat32(Function):
    """A norm whose mean and deviation are float32 whatever it is given, as kernels keep them."""

    @staticmethod
    def statistics(x):
        narrow = x.detach().numpy().astype(np.float32)
        mean = narrow.mean(-1, keepdims=True)
        rstd = 1 / np.sqrt(narrow.var(-1, keepdims=True) + np.float32(1e-5))
        return torch.from_numpy(mean), torch.from_numpy(rstd)

    @staticmethod
    def forward(ctx, x, weight):
        mean, rstd = StatisticsInFloat32.statistics(x)
        ctx.save_for_backward(x, weight, mean, rstd)
        return torch.from_numpy(((x - mean) * rstd).detach().numpy()) * weight

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight, mean, rstd = ctx.saved_tensors
        normal, scaled = (x - mean) * rstd, grad_output * weight
        inner = scaled - scaled.mean(-1, keepdim=True) - normal * (scaled * normal).mean(-1, keepdim=True)
        return rstd.to(x.dtype) * inner, (grad_output * normal).sum(0)


def norm(x, weight):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight)


class Bisected(Function):
    """The root of x + x³ = y, between steps as fine as float32's; backward differentiates the root."""

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
        return grad_output / (1 + 3 * x * x)
