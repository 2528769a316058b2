"""What specs of published packages name: composites that autograd differentiates, modules, inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Gate(nn.Module):
    """The inner network of an additive coupling block: shape kept, one parameter."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([weight], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """tanh(w x)."""
        return torch.tanh(self.weight * x)


class ScaleAndShift(Gate):
    """The inner network of an affine coupling block: a positive scale and a shift."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """exp(tanh(w x)) and w x."""
        return torch.exp(torch.tanh(self.weight * x)), self.weight * x


def additive_inputs(generator, device, dtype, b=2, c=4):  # noqa: ANN001, ANN201
    """`x, Fm, Gm` of a coupling block; its weights are those of the modules, which it reads by itself."""
    x = torch.randn(b, c, generator=generator, dtype=dtype).to(device)
    return x.requires_grad_(), _constant(Gate(0.7)), _constant(Gate(1.3))


def affine_inputs(generator, device, dtype, b=2, c=4):  # noqa: ANN001, ANN201
    """The same with modules that return a scale and a shift."""
    x = torch.randn(b, c, generator=generator, dtype=dtype).to(device)
    return x.requires_grad_(), _constant(ScaleAndShift(0.7)), _constant(ScaleAndShift(1.3))


def _constant(module: nn.Module) -> nn.Module:
    """A module whose weights are buffers: the block asks for gradients of parameters that it is given."""
    value = module.weight.detach()
    del module.weight
    module.register_buffer("weight", value)
    return module


def clamp(x: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:  # noqa: ARG001
    """Straight-through: backward is that of the identity."""
    return x.clone()


def identity(x: Tensor, *rest: object) -> Tensor:  # noqa: ARG001
    """Straight-through."""
    return x.clone()


def binary_sign_of_magnitude(x: Tensor) -> Tensor:
    """Its backward is that of |x| with the derivative 1 at 0."""
    return torch.where(x >= 0, x, -x)


def reversed_gradient(x: Tensor, alpha: Tensor) -> Tensor:
    """Gradient reversal: backward is that of -alpha x."""
    return -alpha.detach() * x


def arctangent(x: Tensor, alpha: float) -> Tensor:
    """Its derivative is alpha / 2 / (1 + (pi/2 alpha x)^2)."""
    return torch.atan(torch.pi / 2 * alpha * x) / torch.pi


def sigmoid(x: Tensor, slope: float) -> Tensor:
    """The derivative of a sigmoid of this slope."""
    return torch.sigmoid(slope * x)


def escape_rate(x: Tensor, beta: float, slope: float) -> Tensor:
    """Its derivative is slope exp(-beta |x - 1|)."""
    away = x - 1
    return torch.sign(away) * slope / beta * (1 - torch.exp(-beta * away.abs()))


def scan(a: Tensor, x: Tensor) -> Tensor:
    """h[t] = a[t] h[t-1] + x[t] along dimension 1, step by step."""
    state, states = torch.zeros_like(x[:, 0]), []
    for step in range(x.shape[1]):
        state = a[:, step] * state + x[:, step]
        states.append(state)
    return torch.stack(states, 1)


def rebuilt_weight(t1, w1a, w1b, t2, w2a, w2b, scale):  # noqa: ANN001, ANN201
    """The product of two Tucker-decomposed convolution weights."""
    first = torch.einsum("ijkl,jr,ip->prkl", t1, w1b, w1a)
    return first * torch.einsum("ijkl,jr,ip->prkl", t2, w2b, w2a) * scale


def circular_convolution(x: Tensor, w: Tensor) -> Tensor:
    """Block-circular matrix product by indices, y[i] = sum over j of x[j] w[j - i]: what the FFTs compute."""
    outputs, inputs, size = w.shape
    row, column = torch.arange(size)[:, None], torch.arange(size)[None, :]
    matrix = w[:, :, (column - row) % size]
    blocks = x.reshape(*x.shape[:-1], inputs, size)
    return torch.einsum("mnij,...nj->...mi", matrix, blocks).reshape(*x.shape[:-1], outputs * size)


def erf_step(x: Tensor, alpha: float) -> Tensor:
    """Its derivative is alpha / sqrt(pi) exp(-(alpha x)^2)."""
    return torch.erf(alpha * x) / 2


def negative_definite(generator, device, dtype, shape):  # noqa: ANN001, ANN201
    """A natural covariance -P/2 of a well-conditioned precision P."""
    root = torch.randn(shape, generator=generator, dtype=dtype) / 2
    return -(root @ root.mT + torch.eye(shape[0], dtype=dtype)).to(device) / 2


def target_log_softmax(pred: Tensor, target: Tensor, valid: None) -> Tensor:  # noqa: ARG001
    """The logarithm of the softmax along dimension 1, of the target class."""
    return pred.log_softmax(1).gather(1, target)


def attention(q, k, v, mask, causal, *buckets):  # noqa: ANN001, ANN002, ANN201, ARG001
    """Softmax attention; a causal mask is aligned at the ends."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        n, m = scores.shape[-2:]
        hidden = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ v
