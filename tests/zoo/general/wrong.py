"""The Functions of `right.py`, each with one realistic mistake.

Same name, same forward; where one right Function has several wrong twins, the name says what went wrong.
"""

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional


def log_sum_exp_reference(x):
    return x.logsumexp(-1)


# ---------------------------------------------------------------------------------------------
# Ways of writing a Function


class Square(Function):
    """The 2 is dropped."""

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
        return x * grad_output


class SavedSlope(Function):
    """A base without a forward, right as it is: what its children save is not."""

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (slope,) = ctx.saved_tensors
        return grad_output * slope


class Sine(SavedSlope):
    """The slope of a sine with the sign of a cosine's."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(-x.cos())
        return x.sin()


class SineAgain(Sine):
    """Inherits the mistake."""


class CubeBackward(Function):
    """The 6 of the second derivative has become a 3."""

    @staticmethod
    def forward(ctx, grad_output, x):
        ctx.save_for_backward(grad_output, x)
        return grad_output * 3 * x**2

    @staticmethod
    def backward(ctx, grad_grad_x):
        grad_output, x = ctx.saved_tensors
        return grad_grad_x * 3 * x**2, grad_grad_x * grad_output * 3 * x


class Cube(Function):
    """Right itself; the Function in its backward is not, and nobody notices before second order."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return CubeBackward.apply(grad_output, x)


class Lerp(Function):
    """Two gradients for three inputs: the number was not counted."""

    @staticmethod
    def forward(ctx, a, b, t):
        ctx.t = t
        return a + t * (b - a)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * (1 - ctx.t), grad_output * ctx.t


class ScaleBy(Function):
    """The scale was a number once; now it is learned, and gets no gradient."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad_output):
        (scale,) = ctx.saved_tensors
        return grad_output * scale, None


class ScaleByZeros(Function):
    """The gradient of the scale is a placeholder that stayed."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad_output):
        (scale,) = ctx.saved_tensors
        return grad_output * scale, torch.zeros_like(scale)


class LeakyReLUInPlace(Function):
    """The negative side gets no gradient, as in a ReLU."""

    @staticmethod
    def forward(ctx, x, slope):
        x.mul_(torch.where(x > 0, 1.0, slope))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * (y > 0), None


# ---------------------------------------------------------------------------------------------
# Elementwise


class GELU(Function):
    """Φ(x) alone: the second term of the product rule is missing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


class TanhGELU(Function):
    """backward has sqrt(2/pi) to eight digits, as papers print it: off in the ninth, no more."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1 + torch.tanh(inner))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        tanh = torch.tanh(0.79788456 * (x + 0.044715 * x**3))
        grad_inner = 0.79788456 * (1 + 3 * 0.044715 * x**2)
        return grad_output * 0.5 * (1 + tanh + x * (1 - tanh**2) * grad_inner)


class ExpClampsGradient(Function):
    """Clips the gradient that comes in, so that backward is no longer linear in it."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output.clamp(-0.5, 0.5) * y


class ExpIgnoresGradient(Function):
    """The gradient of y.sum(), whatever comes in: right in every test that ends in .sum()."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return y


class ExpSavesFloat32(Function):
    """Saves the output in half the memory, and with half the digits."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y.float())
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y.double()


class ExpReturnsFloat32(Function):
    """Returns a float32 gradient for a float64 input; the engine casts it back in silence."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return (grad_output * y).float()


class Logistic(Function):
    """Keeps the slope as an attribute of ctx: a constant, as far as a second derivative can see."""

    @staticmethod
    def forward(ctx, x):
        y = x.sigmoid()
        ctx.slope = y * (1 - y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.slope


class SquareRoot(Function):
    """Divides by 2x where 2 sqrt(x) belongs: the input was saved instead of the output."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sqrt()

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output / (2 * y)


class Log(Function):
    """The derivative of log10."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.log()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / (x * math.log(10))


class FourthPower(Function):
    """4 y / x saves a multiplication, and gives NaN at zero, where the derivative is zero."""

    @staticmethod
    def forward(ctx, x):
        y = x**4
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * 4 * y / x


class SteepSine(Function):
    """The inner derivative is 1e5, and missing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(1e5 * x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.cos(1e5 * x)


class LargeOffset(Function):
    """The factor 3 is forgotten."""

    @staticmethod
    def forward(ctx, x):
        return 3 * x + 1e8

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clone()


class HardShrink(Function):
    """x > 1/2 where |x| > 1/2 was meant: the negative side is cut off."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x.abs() > 0.5, x, 0.0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0.5, grad_output, 0.0)


class SoftShrink(Function):
    """The sign of x is multiplied in once too often."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign() * (x.abs() - 0.5).clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() > 0.5, grad_output * x.sign(), 0.0)


class Floor(Function):
    """Straight through: useful at times, but not the derivative, and the spec does not declare it."""

    @staticmethod
    def forward(ctx, x):
        return x.floor()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clone()


class OnesLike(Function):
    """A gradient where there is none."""

    @staticmethod
    def forward(ctx, x):
        return torch.ones_like(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clone()


class Dropout(Function):
    """The scale 1 / (1 - p) is in forward only."""

    @staticmethod
    def forward(ctx, x, p):
        mask = torch.rand_like(x) >= p
        ctx.save_for_backward(mask)
        return x * mask / (1 - p)

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        return grad_output * mask, None


class MaskedSquare(Function):
    """The mask, being optional, was forgotten in backward: right whenever there is none."""

    @staticmethod
    def forward(ctx, x, mask=None):
        ctx.save_for_backward(x)
        y = x**2
        return y if mask is None else y * mask

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output, None


class ComplexMultiply(Function):
    """No conjugate: right for real numbers only."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output * b, grad_output * a


class SwiGLU(Function):
    """The two gradients are returned in the wrong order."""

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
        return grad_output * silu, grad_output * up * grad_silu


# ---------------------------------------------------------------------------------------------
# Along a dimension


class Softmax(Function):
    """Only the diagonal: what the entries of a row have to do with each other is dropped."""

    @staticmethod
    def forward(ctx, x):
        shifted = (x - x.amax(-1, keepdim=True)).exp()
        y = shifted / shifted.sum(-1, keepdim=True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y * (1 - y)


class LogSumExp(Function):
    """A softmax over the wrong dimension."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.logsumexp(-1)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.unsqueeze(-1) * x.softmax(0)


class LogMeanExp(Function):
    """Its backward is right. Its forward is not the logsumexp that the spec compares it with."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.logsumexp(-1) - math.log(x.shape[-1])

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.unsqueeze(-1) * x.softmax(-1)


class LayerNorm(Function):
    """The mean depends on x too: the term that says so is missing."""

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
            grad_normalised - normalised * (grad_normalised * normalised).mean(-1, keepdim=True)
        )
        return grad_x, (grad_output * normalised).sum(0), grad_output.sum(0), None


class RMSNorm(Function):
    """The root mean square is taken for a constant."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        inverse_rms = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.eps)
        return grad_output * weight * inverse_rms, (grad_output * x * inverse_rms).sum(0), None


class CumSum(Function):
    """Runs from the same end in both directions."""

    @staticmethod
    def forward(ctx, x):
        return x.cumsum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.cumsum(-1)


class RowMax(Function):
    """The largest entry of all takes the place of the largest of each row."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.amax(-1)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.unsqueeze(-1) * (x == x.max())


class Pool(Function):
    """The mean forgets to divide; the sum is right."""

    @staticmethod
    def forward(ctx, x, mode):
        ctx.columns = x.shape[-1]
        return x.mean(-1) if mode == "mean" else x.sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.unsqueeze(-1).expand(*grad_output.shape, ctx.columns), None


# ---------------------------------------------------------------------------------------------
# Several outputs, or none but a number


class NormDirection(Function):
    """A unit vector cannot grow: the part of the gradient along it should have been taken out."""

    @staticmethod
    def forward(ctx, x):
        length = x.norm(dim=-1)
        direction = x / length.unsqueeze(-1)
        ctx.save_for_backward(length, direction)
        return length, direction

    @staticmethod
    def backward(ctx, grad_length, grad_direction):
        length, direction = ctx.saved_tensors
        return grad_length.unsqueeze(-1) * direction + grad_direction / length.unsqueeze(-1)


class SumProductSign(Function):
    """What comes back through the product is dropped."""

    @staticmethod
    def forward(ctx, a, b):
        return a + b, a * b, torch.sign(a)

    @staticmethod
    def backward(ctx, grad_sum, _grad_product, _grad_sign):
        return grad_sum.clone(), grad_sum.clone()


class SumOfSquares(Function):
    """A loss is always the last node, or so it was thought: grad_output is ignored."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x


class CrossEntropy(Function):
    """The mean over the batch is in forward only."""

    @staticmethod
    def forward(ctx, logits, labels):
        ctx.save_for_backward(logits, labels)
        picked = logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1))
        return -picked.mean()

    @staticmethod
    def backward(ctx, grad_output):
        logits, labels = ctx.saved_tensors
        one_hot = functional.one_hot(labels, logits.shape[-1])
        return grad_output * (logits.softmax(-1) - one_hot), None


class Huber(Function):
    """Quadratic everywhere: wrong only for errors beyond delta."""

    @staticmethod
    def forward(ctx, prediction, target, delta):
        ctx.save_for_backward(prediction, target)
        error = prediction - target
        size = error.abs()
        return torch.where(size <= delta, 0.5 * error**2, delta * (size - 0.5 * delta)).mean()

    @staticmethod
    def backward(ctx, grad_output):
        prediction, target = ctx.saved_tensors
        error = prediction - target
        grad_prediction = grad_output * error / error.numel()
        return grad_prediction, -grad_prediction, None


# ---------------------------------------------------------------------------------------------
# Indices


class TakeAlong(Function):
    """scatter in place of scatter_add: of an entry taken twice, only one gradient survives."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x.gather(0, index)

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        return grad_output.new_zeros(ctx.shape).scatter(0, index, grad_output), None


class Lookup(Function):
    """Averages over the uses of a row, which is an option of embeddings and not their derivative."""

    @staticmethod
    def forward(ctx, weight, index):
        ctx.save_for_backward(index)
        ctx.shape = weight.shape
        return weight[index]

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        rows = grad_output.reshape(-1, ctx.shape[1])
        uses = index.reshape(-1).bincount(minlength=ctx.shape[0]).clamp(min=1)
        grad_weight = grad_output.new_zeros(ctx.shape).index_add(0, index.reshape(-1), rows)
        return grad_weight / uses.unsqueeze(1), None


class ScatterAdd(Function):
    """Takes the first rows of the gradient instead of those that index names."""

    @staticmethod
    def forward(ctx, source, index, rows):
        ctx.count = len(source)
        return source.new_zeros(rows, source.shape[1]).index_add(0, index, source)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output[: ctx.count], None, None


# ---------------------------------------------------------------------------------------------
# Linear algebra


class BatchedMatMul(Function):
    """b is not transposed, which square matrices do not mind."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output @ b, a.mT @ grad_output


class ShiftedSolve(Function):
    """Solves with the matrix where its transpose belongs."""

    @staticmethod
    def forward(ctx, a, b):
        x = torch.linalg.solve(a + len(a) * torch.eye(len(a), dtype=a.dtype, device=a.device), b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        a, x = ctx.saved_tensors
        shifted = a + len(a) * torch.eye(len(a), dtype=a.dtype, device=a.device)
        grad_b = torch.linalg.solve(shifted, grad_output)
        return -grad_b @ x.mT, grad_b


class Conv1d(Function):
    """The kernel is not flipped on the way back."""

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
        return torch.einsum("bolk,ock->bcl", padded, weight), grad_weight


class Attention(Function):
    """The gradient of k lacks the scale; those of q and v are right."""

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
        return grad_scores @ k * scale, grad_scores.t() @ q, weights.t() @ grad_output


class NewtonToATolerance(Function):
    """y + y**3 = x, to a thousandth; backward has another exponent."""

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
        return g / (1 + 2 * y * y)
