"""Right Functions of many kinds: what people write backwards for, and the ways in which they write them.

Each has a twin of the same name in `wrong.py`; `expected.py` says what a verifier must answer.
"""

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

# ---------------------------------------------------------------------------------------------
# Composite references: the same mathematics, differentiated by torch


def layer_norm_reference(x, weight, bias, eps):
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def rms_norm_reference(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def swiglu_reference(gate, up):
    return functional.silu(gate) * up


def log_sum_exp_reference(x):
    return x.logsumexp(-1)


def softmax_reference(x):
    return x.softmax(-1)


def cumsum_reference(x):
    return x.cumsum(-1)


def lookup_reference(weight, index):
    return weight[index]


def attention_reference(q, k, v):
    return (q @ k.t() / math.sqrt(q.shape[-1])).softmax(-1) @ v


# ---------------------------------------------------------------------------------------------
# Ways of writing a Function


class Square(Function):
    """forward and setup_context apart, as torch.func wants it."""

    @staticmethod
    def forward(x):
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output


class SavedSlope(Function):
    """A base without a forward: forward saves the slope of each entry, backward multiplies by it."""

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (slope,) = ctx.saved_tensors
        return grad_output * slope


class Sine(SavedSlope):
    """Its backward is inherited."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.cos())
        return x.sin()


class SineAgain(Sine):
    """Everything is inherited."""


class CubeBackward(Function):
    """The backward of `Cube` as a Function of its own, which is what gives it a second derivative."""

    @staticmethod
    def forward(ctx, grad_output, x):
        ctx.save_for_backward(grad_output, x)
        return grad_output * 3 * x**2

    @staticmethod
    def backward(ctx, grad_grad_x):
        grad_output, x = ctx.saved_tensors
        return grad_grad_x * 3 * x**2, grad_grad_x * grad_output * 6 * x


class Cube(Function):
    """x**3 with a hand-written double backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return CubeBackward.apply(grad_output, x)


class Lerp(Function):
    """a + t (b - a) with a number t, for which the gradient is None."""

    @staticmethod
    def forward(ctx, a, b, t):
        ctx.t = t
        return a + t * (b - a)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * (1 - ctx.t), grad_output * ctx.t, None


class ScaleBy(Function):
    """A tensor times a learned 0-dimensional scale."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad_output):
        x, scale = ctx.saved_tensors
        return grad_output * scale, (grad_output * x).sum()


class LeakyReLUInPlace(Function):
    """Overwrites its input; the sign of the output is that of the input, so the output is saved."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.slope = slope
        x.mul_(torch.where(x > 0, 1.0, slope))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * torch.where(y > 0, 1.0, ctx.slope), None


# ---------------------------------------------------------------------------------------------
# Elementwise


class GELU(Function):
    """x Φ(x)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        cdf = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        pdf = torch.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
        return grad_output * (cdf + x * pdf)


class TanhGELU(Function):
    """The tanh approximation of GELU."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1 + torch.tanh(inner))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        tanh = torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        grad_inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
        return grad_output * 0.5 * (1 + tanh + x * (1 - tanh**2) * grad_inner)


class Exp(Function):
    """exp, whose output is its own derivative."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y


class Logistic(Function):
    """1 / (1 + exp(-x)); the output is saved, which autograd knows how it came about."""

    @staticmethod
    def forward(ctx, x):
        y = x.sigmoid()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y * (1 - y)


class SquareRoot(Function):
    """sqrt(x) for positive x."""

    @staticmethod
    def forward(ctx, x):
        y = x.sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output / (2 * y)


class Log(Function):
    """log(x) for positive x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.log()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / x


class FourthPower(Function):
    """x**4, as smooth at zero as anywhere."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**4

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 4 * x**3


class SteepSine(Function):
    """sin(1e5 x): a naive step size sees nothing but noise."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(1e5 * x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 1e5 * torch.cos(1e5 * x)


class LargeOffset(Function):
    """3x + 1e8: the offset costs the forward eight of its sixteen digits."""

    @staticmethod
    def forward(ctx, x):
        return 3 * x + 1e8

    @staticmethod
    def backward(ctx, grad_output):
        return 3 * grad_output


class HardShrink(Function):
    """x where |x| > 1/2, zero elsewhere: a jump at ±1/2, and flat in between."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x.abs() > 0.5, x, 0.0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() > 0.5, grad_output, 0.0)


class SoftShrink(Function):
    """x drawn towards zero by 1/2: a kink at ±1/2."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign() * (x.abs() - 0.5).clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() > 0.5, grad_output, 0.0)


class Floor(Function):
    """Flat between its jumps, and its gradient says so."""

    @staticmethod
    def forward(ctx, x):
        return x.floor()

    @staticmethod
    def backward(ctx, grad_output):
        return torch.zeros_like(grad_output)


class OnesLike(Function):
    """A float output that is the same for every x."""

    @staticmethod
    def forward(ctx, x):
        return torch.ones_like(x)

    @staticmethod
    def backward(ctx, grad_output):
        return torch.zeros_like(grad_output)


class Dropout(Function):
    """Random, and still a fixed linear map once the mask is drawn: the mask is saved."""

    @staticmethod
    def forward(ctx, x, p):
        mask = (torch.rand_like(x) >= p) / (1 - p)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        return grad_output * mask, None


class MaskedSquare(Function):
    """x**2 where the mask is true, and everywhere without a mask."""

    @staticmethod
    def forward(ctx, x, mask=None):
        ctx.save_for_backward(x, mask)
        y = x**2
        return y if mask is None else y * mask

    @staticmethod
    def backward(ctx, grad_output):
        x, mask = ctx.saved_tensors
        grad_x = 2 * x * grad_output
        return (grad_x if mask is None else grad_x * mask), None


class ComplexMultiply(Function):
    """a b of complex numbers: torch's convention wants the conjugate of the other factor."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output * b.conj(), grad_output * a.conj()


class SwiGLU(Function):
    """silu(gate) * up."""

    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return gate * gate.sigmoid() * up

    @staticmethod
    def backward(ctx, grad_output):
        gate, up = ctx.saved_tensors
        sigmoid = gate.sigmoid()
        silu = gate * sigmoid
        grad_silu = sigmoid * (1 + gate * (1 - sigmoid))
        return grad_output * up * grad_silu, grad_output * silu


# ---------------------------------------------------------------------------------------------
# Along a dimension


class Softmax(Function):
    """Every entry of a row feels every other: the sum in backward is what couples them."""

    @staticmethod
    def forward(ctx, x):
        shifted = (x - x.amax(-1, keepdim=True)).exp()
        y = shifted / shifted.sum(-1, keepdim=True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        weighted = grad_output * y
        return weighted - y * weighted.sum(-1, keepdim=True)


class LogSumExp(Function):
    """log of the sum of exp over the last dimension."""

    @staticmethod
    def forward(ctx, x):
        peak = x.amax(-1, keepdim=True)
        y = (x - peak).exp().sum(-1).log() + peak.squeeze(-1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output.unsqueeze(-1) * (x - y.unsqueeze(-1)).exp()


class LayerNorm(Function):
    """Saves what it has computed, and therefore gives first derivatives only."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        centred = x - x.mean(-1, keepdim=True)
        inverse_std = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
        normalised = centred * inverse_std
        ctx.save_for_backward(normalised, inverse_std, weight)
        return normalised * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        normalised, inverse_std, weight = ctx.saved_tensors
        grad_normalised = grad_output * weight
        grad_x = inverse_std * (
            grad_normalised
            - grad_normalised.mean(-1, keepdim=True)
            - normalised * (grad_normalised * normalised).mean(-1, keepdim=True)
        )
        return grad_x, (grad_output * normalised).sum(0), grad_output.sum(0), None


class RMSNorm(Function):
    """Saves its inputs and computes again, and therefore has second derivatives."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        inverse_rms = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.eps)
        normalised = x * inverse_rms
        grad_normalised = grad_output * weight
        coupling = (grad_normalised * normalised).mean(-1, keepdim=True)
        grad_x = inverse_rms * (grad_normalised - normalised * coupling)
        return grad_x, (grad_output * normalised).sum(0), None


class CumSum(Function):
    """Running sum of each row; its transpose runs from the other end."""

    @staticmethod
    def forward(ctx, x):
        return x.cumsum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.flip(-1).cumsum(-1).flip(-1)


class RowMax(Function):
    """Largest entry of each row; the gradient goes to where it was found."""

    @staticmethod
    def forward(ctx, x):
        values, index = x.max(dim=-1, keepdim=True)
        ctx.save_for_backward(index)
        ctx.columns = x.shape[-1]
        return values.squeeze(-1)

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad_x = grad_output.new_zeros(*grad_output.shape, ctx.columns)
        return grad_x.scatter(-1, index, grad_output.unsqueeze(-1))


class Pool(Function):
    """Mean or sum of each row, by name."""

    @staticmethod
    def forward(ctx, x, mode):
        ctx.columns = x.shape[-1]
        ctx.mode = mode
        return x.mean(-1) if mode == "mean" else x.sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        grad_x = grad_output.unsqueeze(-1).expand(*grad_output.shape, ctx.columns)
        return (grad_x / ctx.columns if ctx.mode == "mean" else grad_x), None


# ---------------------------------------------------------------------------------------------
# Several outputs, or none but a number


class NormDirection(Function):
    """The length of each row and the unit vector along it."""

    @staticmethod
    def forward(ctx, x):
        length = x.norm(dim=-1)
        direction = x / length.unsqueeze(-1)
        ctx.save_for_backward(length, direction)
        return length, direction

    @staticmethod
    def backward(ctx, grad_length, grad_direction):
        length, direction = ctx.saved_tensors
        along = (grad_direction * direction).sum(-1, keepdim=True)
        across = grad_direction - along * direction
        return grad_length.unsqueeze(-1) * direction + across / length.unsqueeze(-1)


class SumProductSign(Function):
    """Three outputs; the third is flat, so that backward has no use for its gradient."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a + b, a * b, torch.sign(a)

    @staticmethod
    def backward(ctx, grad_sum, grad_product, _grad_sign):
        a, b = ctx.saved_tensors
        return grad_sum + grad_product * b, grad_sum + grad_product * a


class SumOfSquares(Function):
    """One number, 0-dimensional."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output


class CrossEntropy(Function):
    """Mean negative log-likelihood of integer labels."""

    @staticmethod
    def forward(ctx, logits, labels):
        ctx.save_for_backward(logits, labels)
        picked = logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1))
        return -picked.mean()

    @staticmethod
    def backward(ctx, grad_output):
        logits, labels = ctx.saved_tensors
        one_hot = functional.one_hot(labels, logits.shape[-1])
        return grad_output * (logits.softmax(-1) - one_hot) / logits.shape[0], None


class Huber(Function):
    """Mean loss, quadratic up to delta and linear beyond."""

    @staticmethod
    def forward(ctx, prediction, target, delta):
        ctx.save_for_backward(prediction, target)
        ctx.delta = delta
        error = prediction - target
        size = error.abs()
        return torch.where(size <= delta, 0.5 * error**2, delta * (size - 0.5 * delta)).mean()

    @staticmethod
    def backward(ctx, grad_output):
        prediction, target = ctx.saved_tensors
        error = prediction - target
        grad_prediction = grad_output * error.clamp(-ctx.delta, ctx.delta) / error.numel()
        return grad_prediction, -grad_prediction, None


# ---------------------------------------------------------------------------------------------
# Indices


class TakeAlong(Function):
    """torch.gather along the first dimension; an entry that is taken twice gets two gradients."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x.gather(0, index)

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        return grad_output.new_zeros(ctx.shape).scatter_add(0, index, grad_output), None


class Lookup(Function):
    """Rows of a table, as an embedding takes them."""

    @staticmethod
    def forward(ctx, weight, index):
        ctx.save_for_backward(index)
        ctx.shape = weight.shape
        return weight[index]

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        rows = grad_output.reshape(-1, ctx.shape[1])
        return grad_output.new_zeros(ctx.shape).index_add(0, index.reshape(-1), rows), None


class ScatterAdd(Function):
    """Adds each row of source to the row that index names, of as many as `rows` says."""

    @staticmethod
    def forward(ctx, source, index, rows):
        ctx.save_for_backward(index)
        return source.new_zeros(rows, source.shape[1]).index_add(0, index, source)

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        return grad_output[index], None, None


# ---------------------------------------------------------------------------------------------
# Linear algebra


class BatchedMatMul(Function):
    """a @ b for a batch of matrices."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output @ b.mT, a.mT @ grad_output


class ShiftedSolve(Function):
    """Solves (a + n I) x = b; one more solve, with the transpose, gives both gradients."""

    @staticmethod
    def forward(ctx, a, b):
        x = torch.linalg.solve(a + len(a) * torch.eye(len(a), dtype=a.dtype, device=a.device), b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        a, x = ctx.saved_tensors
        shifted = a + len(a) * torch.eye(len(a), dtype=a.dtype, device=a.device)
        grad_b = torch.linalg.solve(shifted.mT, grad_output)
        return -grad_b @ x.mT, grad_b


class Conv1d(Function):
    """A one-dimensional convolution as products of windows."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        windows = x.unfold(2, weight.shape[2], 1)
        return torch.einsum("bclk,ock->bol", windows, weight)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        width = weight.shape[2]
        windows = x.unfold(2, width, 1)
        grad_weight = torch.einsum("bol,bclk->ock", grad_output, windows)
        padded = functional.pad(grad_output, (width - 1, width - 1)).unfold(2, width, 1)
        grad_x = torch.einsum("bolk,ock->bcl", padded, weight.flip(2))
        return grad_x, grad_weight


class Attention(Function):
    """softmax(q kᵀ / sqrt(d)) v; the weights are computed again in backward."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return (q @ k.t() / math.sqrt(q.shape[-1])).softmax(-1) @ v

    @staticmethod
    def backward(ctx, grad_output):
        q, k, v = ctx.saved_tensors
        scale = 1 / math.sqrt(q.shape[-1])
        weights = (q @ k.t() * scale).softmax(-1)
        weighted = grad_output @ v.t() * weights
        grad_scores = weighted - weights * weighted.sum(-1, keepdim=True)
        return grad_scores @ k * scale, grad_scores.t() @ q * scale, weights.t() @ grad_output


class NewtonToATolerance(Function):
    """y + y**3 = x, to a thousandth."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        while True:
            step = (y + y**3 - x) / (1 + 3 * y * y)
            y = y - step
            if step.abs().max() < 1e-3:
                break
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (1 + 3 * y * y)
