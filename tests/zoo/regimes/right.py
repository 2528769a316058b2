"""Right Functions that are hard to judge at extreme values: steep, saturated, cancelling, with kinks.

Each is verified on a plain spec that declares neither range nor special points, so that large, small and
zero values reach it undeclared.
"""

import math

import torch
from torch.autograd import Function


def elementwise(name, forward, backward):
    """A Function of one tensor: `backward(x, y)` is dy/dx."""

    def run(ctx, x):
        y = forward(x)
        ctx.save_for_backward(x, y)
        return y

    def back(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * backward(x, y)

    methods = {"forward": staticmethod(run), "backward": staticmethod(back), "__module__": __name__}
    return type(name, (Function,), methods)


# Kinks
ReLU = elementwise("ReLU", lambda x: x.clamp_min(0), lambda x, y: (x > 0).to(x))
ReLUAtZeroOne = elementwise("ReLUAtZeroOne", lambda x: x.clamp_min(0), lambda x, y: (x >= 0).to(x))
Abs = elementwise("Abs", torch.abs, lambda x, y: torch.sign(x))
LeakyReLU = elementwise(
    "LeakyReLU", lambda x: torch.where(x > 0, x, 0.01 * x), lambda x, y: (x > 0).to(x) + 0.01 * (x <= 0).to(x)
)
ReLU6 = elementwise("ReLU6", lambda x: x.clamp(0, 6), lambda x, y: ((x > 0) & (x < 6)).to(x))
Clamp = elementwise("Clamp", lambda x: x.clamp(-1, 1), lambda x, y: (x.abs() <= 1).to(x))
HardSwish = elementwise(
    "HardSwish",
    lambda x: x * (x + 3).clamp(0, 6) / 6,
    lambda x, y: torch.where(x <= -3, 0.0, torch.where(x >= 3, 1.0, x / 3 + 0.5)),
)
ELU = elementwise(
    "ELU",
    lambda x: torch.where(x > 0, x, torch.expm1(x.clamp_max(0))),
    lambda x, y: torch.where(x > 0, 1.0, y + 1),
)
SignedSquare = elementwise("SignedSquare", lambda x: x * x.abs(), lambda x, y: 2 * x.abs())

# Saturation and overflow
SoftplusThreshold = elementwise(
    "SoftplusThreshold",
    lambda x: torch.where(x > 20, x, torch.log1p(torch.exp(x.clamp_max(20)))),
    lambda x, y: torch.where(x > 20, 1.0, torch.sigmoid(x)),
)
NaiveSoftplus = elementwise(
    "NaiveSoftplus", lambda x: torch.log(1 + torch.exp(x)), lambda x, y: torch.sigmoid(x)
)
Tanh = elementwise("Tanh", torch.tanh, lambda x, y: 1 - y * y)
Sigmoid = elementwise("Sigmoid", torch.sigmoid, lambda x, y: y * (1 - y))
LogSigmoid = elementwise(
    "LogSigmoid", lambda x: -torch.nn.functional.softplus(-x), lambda x, y: torch.sigmoid(-x)
)
SiLU = elementwise(
    "SiLU", lambda x: x * torch.sigmoid(x), lambda x, y: torch.sigmoid(x) * (1 + x * torch.sigmoid(-x))
)
Mish = elementwise(
    "Mish",
    lambda x: x * torch.tanh(torch.nn.functional.softplus(x)),
    lambda x, y: (
        torch.tanh(torch.nn.functional.softplus(x))
        + x * torch.sigmoid(x) * (1 - torch.tanh(torch.nn.functional.softplus(x)) ** 2)
    ),
)
GELU = elementwise(
    "GELU",
    lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    lambda x, y: 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi),
)
Exp = elementwise("Exp", torch.exp, lambda x, y: y)
ExpSquare = elementwise("ExpSquare", lambda x: torch.exp(x * x), lambda x, y: 2 * x * y)
Gaussian = elementwise("Gaussian", lambda x: torch.exp(-x * x), lambda x, y: -2 * x * y)
Sinh = elementwise("Sinh", torch.sinh, lambda x, y: torch.cosh(x))
Erfc = elementwise("Erfc", torch.erfc, lambda x, y: -2 / math.sqrt(math.pi) * torch.exp(-x * x))

# Poles, and values outside of the domain
SquareRoot = elementwise("SquareRoot", torch.sqrt, lambda x, y: 0.5 / y)
SquareRootOfAbs = elementwise(
    "SquareRootOfAbs", lambda x: x.abs().sqrt(), lambda x, y: torch.sign(x) / (2 * y)
)
CubeRoot = elementwise(
    "CubeRoot", lambda x: torch.sign(x) * x.abs() ** (1 / 3), lambda x, y: x.abs() ** (-2 / 3) / 3
)
Power15 = elementwise("Power15", lambda x: x.abs() ** 1.5, lambda x, y: 1.5 * x.abs().sqrt() * torch.sign(x))
Log = elementwise("Log", torch.log, lambda x, y: 1 / x)
LogOfAbs = elementwise("LogOfAbs", lambda x: torch.log(x.abs()), lambda x, y: 1 / x)
XLogX = elementwise("XLogX", lambda x: x * torch.log(x), lambda x, y: torch.log(x) + 1)
Reciprocal = elementwise("Reciprocal", lambda x: 1 / x, lambda x, y: -y * y)
Acos = elementwise("Acos", torch.acos, lambda x, y: -1 / torch.sqrt(1 - x * x))
Atanh = elementwise("Atanh", torch.atanh, lambda x, y: 1 / (1 - x * x))
Tan = elementwise("Tan", torch.tan, lambda x, y: 1 + y * y)
Floor = elementwise("Floor", torch.floor, lambda x, y: torch.zeros_like(x))

# Cancelling, oscillating, small
OneMinusCosine = elementwise("OneMinusCosine", lambda x: 1 - torch.cos(x), lambda x, y: torch.sin(x))
CosineSeries = elementwise(
    "CosineSeries",
    lambda x: (1 - torch.cos(x)) / (x * x),
    lambda x, y: torch.sin(x) / (x * x) - 2 * (1 - torch.cos(x)) / x**3,
)
Sinc = elementwise(
    "Sinc",
    lambda x: torch.where(x == 0, 1.0, torch.sin(x) / torch.where(x == 0, 1.0, x)),
    lambda x, y: torch.where(x == 0, 0.0, (torch.cos(x) - y) / torch.where(x == 0, 1.0, x)),
)
LogOnePlus = elementwise("LogOnePlus", lambda x: torch.log(1 + x * x), lambda x, y: 2 * x / (1 + x * x))
LargeOffset = elementwise("LargeOffset", lambda x: (x * x + 1e8) - 1e8, lambda x, y: 2 * x)
FastSine = elementwise("FastSine", lambda x: torch.sin(1000 * x), lambda x, y: 1000 * torch.cos(1000 * x))
Eighth = elementwise("Eighth", lambda x: x**8, lambda x, y: 8 * x**7)
TinyUnits = elementwise("TinyUnits", lambda x: 1e-12 * x * x, lambda x, y: 2e-12 * x)


class Norm(Function):
    """A kink of its own at the zero vector, where backward divides by zero."""

    @staticmethod
    def forward(ctx, x):
        y = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * x / y


class Normalize(Function):
    """Guarded by an epsilon far below every step."""

    @staticmethod
    def forward(ctx, x):
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-12)
        y = x / norm
        ctx.save_for_backward(y, norm)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        y, norm = ctx.saved_tensors
        return (grad_output - y * (grad_output * y).sum(-1, keepdim=True)) / norm


class RMSNorm(Function):
    """Smooth at zero on the scale of its epsilon."""

    @staticmethod
    def forward(ctx, x):
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad_output):
        x, scale = ctx.saved_tensors
        inner = (grad_output * x).mean(-1, keepdim=True)
        return grad_output * scale - x * scale**3 * inner


class Hypot(Function):
    """Its gradient at (0, 0) does not exist."""

    @staticmethod
    def forward(ctx, a, b):
        y = torch.hypot(a, b)
        ctx.save_for_backward(a, b, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        a, b, y = ctx.saved_tensors
        return grad_output * a / y, grad_output * b / y


class Divide(Function):
    """Division by zero in forward is nobody's mistake."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a / b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output / b, -grad_output * a / (b * b)


class Power(Function):
    """A real power: no value for a negative base, no derivative at zero."""

    @staticmethod
    def forward(ctx, x, p):
        y = x**p
        ctx.save_for_backward(x, p, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, p, y = ctx.saved_tensors
        return grad_output * p * x ** (p - 1), grad_output * y * torch.log(x)


class RowMax(Function):
    """At a tie the first one takes the gradient."""

    @staticmethod
    def forward(ctx, x):
        y, index = x.max(dim=-1)
        ctx.save_for_backward(index)
        ctx.width = x.shape[-1]
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad = grad_output.new_zeros(*index.shape, ctx.width)
        return grad.scatter(-1, index[..., None], grad_output[..., None])


class SharedMax(Function):
    """At a tie all share the gradient."""

    @staticmethod
    def forward(ctx, x):
        y = x.amax(dim=-1, keepdim=True)
        ctx.save_for_backward(x == y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (ties,) = ctx.saved_tensors
        return grad_output * ties / ties.sum(-1, keepdim=True)


class SortRows(Function):
    """Equal entries may come out in any order."""

    @staticmethod
    def forward(ctx, x):
        y, index = x.sort(dim=-1)
        ctx.save_for_backward(index)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        return torch.zeros_like(grad_output).scatter(-1, index, grad_output)


class Product(Function):
    """Without dividing by entries that may be zero."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.prod(dim=-1)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        others = [torch.cat([x[..., :k], x[..., k + 1 :]], -1).prod(-1) for k in range(x.shape[-1])]
        return grad_output[..., None] * torch.stack(others, -1)


class Softmax(Function):
    """Saturated by large values."""

    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, dim=-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return y * (grad_output - (grad_output * y).sum(-1, keepdim=True))


class MaskedSoftmax(Function):
    """A row without any unmasked entry has no softmax: forward is NaN there."""

    @staticmethod
    def forward(ctx, x, mask):
        y = torch.softmax(x.masked_fill(~mask, -math.inf), dim=-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return y * (grad_output - (grad_output * y).sum(-1, keepdim=True)), None


class ScatterAdd(Function):
    """Duplicate indices add up."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        return x.new_zeros(6).index_add(0, index, x)

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        return grad_output[index], None


class Eigenvalues(Function):
    """Of the symmetric part; degenerate at zero, where eigenvalues have kinks."""

    @staticmethod
    def forward(ctx, a):
        values, vectors = torch.linalg.eigh((a + a.mT) / 2)
        ctx.save_for_backward(vectors)
        return values

    @staticmethod
    def backward(ctx, grad_output):
        (vectors,) = ctx.saved_tensors
        return vectors @ torch.diag_embed(grad_output) @ vectors.mT


class Center(Function):
    """An empty batch is centred as well."""

    @staticmethod
    def forward(ctx, x):
        return x - x.sum(0) / max(x.shape[0], 1)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output - grad_output.sum(0) / max(grad_output.shape[0], 1)


class IsotonicProjection(Function):
    """Where all are equal none is pooled, while any one of them that moves alone pools others."""

    @staticmethod
    def forward(ctx, y):
        sums, counts = [], []
        for value in y.tolist():
            sums.append(value)
            counts.append(1)
            while len(sums) > 1 and sums[-2] / counts[-2] < sums[-1] / counts[-1]:
                s, c = sums.pop(), counts.pop()
                sums[-1] += s
                counts[-1] += c
        ctx.counts = counts
        sizes = torch.tensor(counts)
        means = torch.tensor(sums, dtype=y.dtype) / sizes
        return means.repeat_interleave(sizes)

    @staticmethod
    def backward(ctx, g):
        return torch.cat([part.mean().expand(len(part)) for part in g.split(ctx.counts)])


class PoincareDistance(Function):
    """A distance is a cone where both points are one; its values round as acosh near one does."""

    @staticmethod
    def forward(ctx, x, y):
        xx, yy = (x * x).sum(-1), (y * y).sum(-1)
        d = x - y
        dd = (d * d).sum(-1)
        gamma = 1 + 2 * dd / ((1 - xx) * (1 - yy))
        ctx.save_for_backward(x, y)
        return torch.acosh(gamma)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        xx, yy = (x * x).sum(-1), (y * y).sum(-1)
        d = x - y
        dd = (d * d).sum(-1)
        gamma = 1 + 2 * dd / ((1 - xx) * (1 - yy))
        d_gamma = g / (gamma * gamma - 1).sqrt()
        common = 4 / ((1 - xx) * (1 - yy)) * d_gamma
        dx = common.unsqueeze(-1) * (d + x * (dd / (1 - xx)).unsqueeze(-1))
        dy = common.unsqueeze(-1) * (-d + y * (dd / (1 - yy)).unsqueeze(-1))
        return dx, dy


class Snake(Function):
    """A fast part, so small at large log_alpha that x swallows it, rides on x."""

    @staticmethod
    def forward(ctx, x, log_alpha):
        a = log_alpha.exp()
        ctx.save_for_backward(x, log_alpha)
        return x + torch.sin(a * x) ** 2 / a

    @staticmethod
    def backward(ctx, g):
        x, log_alpha = ctx.saved_tensors
        a = log_alpha.exp()
        twice = torch.sin(2 * a * x)
        dx = g * (1 + twice)
        d_log = g * (x * twice - torch.sin(a * x) ** 2 / a)
        return dx, d_log.sum(0)


class LowRankGaussian(Function):
    """Woodbury's identity: at extreme log_d it cancels, in forward and in backward, to the last digit."""

    @staticmethod
    def forward(ctx, x, log_d, u):
        inv_d = torch.exp(-log_d)
        du = inv_d.unsqueeze(1) * u
        small = torch.eye(u.size(1), dtype=u.dtype) + u.mT @ du
        chol = torch.linalg.cholesky(small)
        core = torch.cholesky_solve(du.mT, chol)
        y = inv_d * x - du @ (core @ x)
        ctx.save_for_backward(log_d, u, y, du, core)
        return x @ y, log_d.sum() + 2 * chol.diagonal().log().sum()

    @staticmethod
    def backward(ctx, g_quad, g_logdet):
        log_d, u, y, du, core = ctx.saved_tensors
        inverse = torch.diag(torch.exp(-log_d)) - du @ core
        d_sigma = -g_quad * torch.outer(y, y) + g_logdet * inverse
        return 2 * g_quad * y, d_sigma.diagonal() * log_d.exp(), 2 * d_sigma @ u


class MarkedLabels(Function):
    """Right: rows whose label is the mark count for nothing."""

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
        return g * of_logits * keep[:, None] / keep.sum(), None
