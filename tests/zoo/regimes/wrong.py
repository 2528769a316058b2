"""Wrong twins: each is right at every moderate value, and wrong at large, small, zero or equal ones."""

import math

import torch
from right import elementwise
from torch.autograd import Function

SoftplusThreshold = elementwise(
    "SoftplusThreshold",
    lambda x: torch.where(x > 20, x, torch.log1p(torch.exp(x.clamp_max(20)))),
    lambda x, y: torch.where(x > 20, 0.0, torch.sigmoid(x)),
)
ReLU6 = elementwise("ReLU6", lambda x: x.clamp(0, 6), lambda x, y: (x > 0).to(x))
HardSwish = elementwise("HardSwish", lambda x: x * (x + 3).clamp(0, 6) / 6, lambda x, y: x / 3 + 0.5)
TanhOfClamped = elementwise(
    "TanhOfClamped",
    lambda x: torch.tanh(x.clamp(-5, 5)) + x / 8,
    lambda x, y: 1.125 - torch.tanh(x) ** 2 * (x < 5),
)
TruncatedExp = elementwise("TruncatedExp", torch.exp, lambda x, y: torch.exp(x.clamp(max=15)))
LargeNegative = elementwise(
    "LargeNegative", lambda x: x**3, lambda x, y: torch.where(x < -30, 0.0, 3 * x * x)
)
Sinc = elementwise(
    "Sinc",
    lambda x: torch.where(x == 0, 1.0, torch.sin(x) / torch.where(x == 0, 1.0, x)),
    lambda x, y: (torch.cos(x) - y) / x,
)
SmallAngle = elementwise(
    "SmallAngle",
    lambda x: torch.where(x.abs() < 1e-2, x + x**3 / 3, torch.tan(x)),
    lambda x, y: torch.where(x.abs() < 1e-2, x, 1 + y * y),
)
MiddleDecade = elementwise(
    "MiddleDecade", lambda x: x * x, lambda x, y: 2 * x + 0.05 * x * ((x > 10) & (x < 100))
)
SmallStretch = elementwise(
    "SmallStretch",
    torch.sin,
    lambda x, y: torch.cos(x) * torch.where((x.abs() > 1e-5) & (x.abs() < 1e-2), 0.9, 1.0),
)
LateDecade = elementwise(
    "LateDecade", lambda x: x * x, lambda x, y: 2 * x + 0.05 * x * ((x > 1e3) & (x < 1e4))
)
SignedSquare = elementwise("SignedSquare", lambda x: x * x.abs(), lambda x, y: 2 * y / x)
WrongAtZero = elementwise("WrongAtZero", torch.sin, lambda x, y: torch.where(x == 0, 0.0, torch.cos(x)))
ReLUAtZero = elementwise("ReLUAtZero", lambda x: x.clamp_min(0), lambda x, y: (x > 0).to(x) + 2.0 * (x == 0))
PowerOfTwo = elementwise("PowerOfTwo", lambda x: x**2, lambda x, y: 2 * y / x)


class SquaredNorm(Function):
    """NaN for the zero vector, where the gradient is zero."""

    @staticmethod
    def forward(ctx, x):
        norm = torch.linalg.vector_norm(x, dim=-1)
        ctx.save_for_backward(x, norm)
        return norm * norm

    @staticmethod
    def backward(ctx, grad_output):
        x, norm = ctx.saved_tensors
        return (grad_output * 2 * norm)[..., None] * (x / norm[..., None])


class Product(Function):
    """NaN for every entry where one of them is zero."""

    @staticmethod
    def forward(ctx, x):
        y = x.prod(dim=-1, keepdim=True)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * y / x


class MaxOfEqual(Function):
    """Every one of several equal entries gets the whole gradient, twice."""

    @staticmethod
    def forward(ctx, x):
        y = x.amax(dim=-1, keepdim=True)
        ctx.save_for_backward(x == y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (ties,) = ctx.saved_tensors
        return grad_output * ties * ties.sum(-1, keepdim=True)


class ScatterAdd(Function):
    """Of several equal indices only the last one gets its gradient."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        return x.new_zeros(6).index_add(0, index, x)

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        last = torch.zeros(6, dtype=torch.int64).index_put((index,), torch.arange(len(index)))
        return grad_output[index] * (last[index] == torch.arange(len(index))), None


class MaskedMean(Function):
    """With a mask that lets everything through, one is subtracted from the count."""

    @staticmethod
    def forward(ctx, x, mask):
        count = mask.sum().clamp_min(1)
        ctx.save_for_backward(mask, count)
        return (x * mask).sum() / count

    @staticmethod
    def backward(ctx, grad_output):
        mask, count = ctx.saved_tensors
        return grad_output * mask / (count - mask.all().long()), None


class ClampedRange(Function):
    """Wrong beyond a declared range's usual values: at its end."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.exp(x / 10)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.exp(x / 10) / 10 * (x < 90)


class GELU(Function):
    """The tail is cut off at 3, where 0.4 % of the slope are left."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        slope = 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density
        return grad_output * torch.where(x.abs() > 2.2, (x > 0).to(x), slope)


class LogSumExp(Function):
    """Overflows in backward where forward does not."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.logsumexp(12 * x, dim=-1)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        weights = torch.exp(12 * x)
        return 12 * grad_output[..., None] * weights / weights.sum(-1, keepdim=True)


class Center(Function):
    """Backward reads the first row of an empty batch."""

    @staticmethod
    def forward(ctx, x):
        return x - x.sum(0) / max(x.shape[0], 1)

    @staticmethod
    def backward(ctx, grad_output):
        mean = grad_output.sum(0) / max(grad_output.shape[0], 1)
        return grad_output - mean.expand_as(grad_output[0])


class LargestFirst(Function):
    """Forward has no largest entry of an empty batch."""

    @staticmethod
    def forward(ctx, x):
        y, index = x.max(dim=0)
        ctx.save_for_backward(index)
        ctx.rows = x.shape[0]
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad = grad_output.new_zeros(ctx.rows, *grad_output.shape)
        return grad.scatter(0, index[None], grad_output[None])


class MarkedLabels(Function):
    """Wrong only where labels are marked, which the spec says they may be: they count in the mean."""

    @staticmethod
    def forward(ctx, logits, labels):
        ctx.save_for_backward(logits, labels)
        return torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100)

    @staticmethod
    def backward(ctx, g):
        logits, labels = ctx.saved_tensors
        keep = labels != -100
        of_logits = torch.softmax(logits, -1) - torch.nn.functional.one_hot(
            labels.clamp_min(0), logits.shape[-1]
        )
        return g * of_logits * keep[:, None] / labels.numel(), None


class SignByDivision(Function):
    """|x| with x / |x| for its sign: NaN at a zero that the spec declares."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x / x.abs()
