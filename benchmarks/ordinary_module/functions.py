"""Thirty right Functions as users write them: layers, norms, losses, activations, scans, lookups."""

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional


class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x, grad.sum(0)


class MatMul(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad @ b.mT, a.mT @ grad


class LayerNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return centred * scale * weight + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
        normed = centred * scale
        inner = grad * weight
        projected = normed * (inner * normed).mean(-1, keepdim=True)
        g_x = scale * (inner - inner.mean(-1, keepdim=True) - projected)
        return g_x, (grad * normed).sum(0), grad.sum(0), None


class RMSNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        scale = (x.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
        inner = grad * weight
        g_x = scale * inner - x * scale**3 * (inner * x).mean(-1, keepdim=True)
        return g_x, (grad * x * scale).sum(0), None


class BatchNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        mean, variance = x.mean(0), x.var(0, unbiased=False)
        normed = (x - mean) / (variance + 1e-5).sqrt()
        ctx.save_for_backward(x, weight)
        return normed * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        scale = (x.var(0, unbiased=False) + 1e-5).rsqrt()
        normed = (x - x.mean(0)) * scale
        inner = grad * weight
        g_x = scale * (inner - inner.mean(0) - normed * (inner * normed).mean(0))
        return g_x, (grad * normed).sum(0), grad.sum(0)


class GELU(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        return grad * (cdf + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


class SiLU(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


class SwiGLU(Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        s = torch.sigmoid(gate)
        return grad * up * (s + gate * s * (1 - s)), grad * gate * s


class Mish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(functional.softplus(x))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        t = torch.tanh(functional.softplus(x))
        return grad * (t + x * (1 - t * t) * torch.sigmoid(x))


class Sigmoid(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.sigmoid(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y * (1 - y)


class Tanh(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y)


class ReLU(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x > 0)


class LeakyReLU(Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x)
        ctx.slope = slope
        return torch.where(x > 0, x, slope * x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, grad, ctx.slope * grad), None


class Softplus(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return functional.softplus(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(x)


class Softmax(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return y * (grad - (grad * y).sum(-1, keepdim=True))


class LogSoftmax(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.log_softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad - y.exp() * grad.sum(-1, keepdim=True)


class LogSumExp(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.logsumexp(x, -1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad[:, None] * (x - y[:, None]).exp()


class MeanSquaredError(Function):
    @staticmethod
    def forward(ctx, prediction, target):
        ctx.save_for_backward(prediction, target)
        return (prediction - target).square().mean()

    @staticmethod
    def backward(ctx, grad):
        prediction, target = ctx.saved_tensors
        g = grad * 2 * (prediction - target) / prediction.numel()
        return g, -g


class HuberLoss(Function):
    @staticmethod
    def forward(ctx, prediction, target, delta):
        ctx.save_for_backward(prediction, target)
        ctx.delta = delta
        return functional.huber_loss(prediction, target, delta=delta)

    @staticmethod
    def backward(ctx, grad):
        prediction, target = ctx.saved_tensors
        g = grad * (prediction - target).clamp(-ctx.delta, ctx.delta) / prediction.numel()
        return g, -g, None


class CrossEntropy(Function):
    @staticmethod
    def forward(ctx, logits, target):
        ctx.save_for_backward(logits, target)
        return functional.cross_entropy(logits, target)

    @staticmethod
    def backward(ctx, grad):
        logits, target = ctx.saved_tensors
        hot = functional.one_hot(target, logits.shape[-1]).to(logits.dtype)
        return grad * (logits.softmax(-1) - hot) / logits.shape[0], None


class KLDivergence(Function):
    @staticmethod
    def forward(ctx, p_logits, q_logits):
        p, q = p_logits.log_softmax(-1), q_logits.log_softmax(-1)
        ctx.save_for_backward(p_logits, q_logits)
        return (p.exp() * (p - q)).sum()

    @staticmethod
    def backward(ctx, grad):
        p_logits, q_logits = ctx.saved_tensors
        p, q = p_logits.log_softmax(-1), q_logits.log_softmax(-1)
        term = p - q
        g_p = p.exp() * (term - (p.exp() * term).sum(-1, keepdim=True))
        return grad * g_p, grad * (q.exp() - p.exp())


class CosineSimilarity(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        na, nb = a.norm(dim=-1, keepdim=True), b.norm(dim=-1, keepdim=True)
        cosine = (a * b).sum(-1, keepdim=True) / (na * nb)
        g = grad[:, None]
        return g * (b / (na * nb) - cosine * a / na**2), g * (a / (na * nb) - cosine * b / nb**2)


class Normalize(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / x.norm(dim=-1, keepdim=True)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        norm = x.norm(dim=-1, keepdim=True)
        y = x / norm
        return (grad - y * (grad * y).sum(-1, keepdim=True)) / norm


class CumulativeSum(Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(-1)

    @staticmethod
    def backward(ctx, grad):
        return grad.flip(-1).cumsum(-1).flip(-1)


class DecayScan(Function):
    """h_t = a_t h_(t-1) + x_t along the last dimension."""

    @staticmethod
    def forward(ctx, x, decay):
        h, states = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = decay[:, t] * h + x[:, t]
            states.append(h)
        y = torch.stack(states, 1)
        ctx.save_for_backward(decay, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        decay, y = ctx.saved_tensors
        g_x, g_decay = torch.empty_like(grad), torch.empty_like(grad)
        running = torch.zeros_like(grad[:, 0])
        for t in reversed(range(grad.shape[1])):
            running = running + grad[:, t]
            g_x[:, t] = running
            g_decay[:, t] = running * (y[:, t - 1] if t else torch.zeros_like(running))
            running = running * decay[:, t]
        return g_x, g_decay


class Embedding(Function):
    @staticmethod
    def forward(ctx, weight, index):
        ctx.save_for_backward(index)
        ctx.rows = weight.shape[0]
        return weight[index]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return grad.new_zeros(ctx.rows, grad.shape[-1]).index_add(0, index, grad), None


class Gather(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.columns = x.shape[1]
        return x.gather(1, index)

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return grad.new_zeros(grad.shape[0], ctx.columns).scatter_add(1, index, grad), None


class Attention(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        ctx.save_for_backward(q, k, v)
        return weights @ v

    @staticmethod
    def backward(ctx, grad):
        q, k, v = ctx.saved_tensors
        scale = 1 / math.sqrt(q.shape[-1])
        weights = (q @ k.mT * scale).softmax(-1)
        inner = grad @ v.mT
        scores = weights * (inner - (inner * weights).sum(-1, keepdim=True))
        return scores @ k * scale, scores.mT @ q * scale, weights.mT @ grad


class Conv1d(Function):
    @staticmethod
    def forward(ctx, x, weight, padding):
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return functional.conv1d(x, weight, padding=padding)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        g_x = torch.nn.grad.conv1d_input(x.shape, weight, grad, padding=ctx.padding)
        g_weight = torch.nn.grad.conv1d_weight(x, weight.shape, grad, padding=ctx.padding)
        return g_x, g_weight, None


class Rotary(Function):
    @staticmethod
    def forward(ctx, x, angle):
        ctx.save_for_backward(x, angle)
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)

    @staticmethod
    def backward(ctx, grad):
        x, angle = ctx.saved_tensors
        even, odd = grad[..., 0::2], grad[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        g_x = torch.stack((even * cos + odd * sin, odd * cos - even * sin), -1).flatten(-2)
        y_even = x[..., 0::2] * cos - x[..., 1::2] * sin
        y_odd = x[..., 0::2] * sin + x[..., 1::2] * cos
        return g_x, (odd * y_even - even * y_odd)
