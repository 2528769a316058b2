"""Composites of fla-core's kernels, in plain torch operations: what its specs name as `reference`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return torch.sigmoid(x)


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1."""
    return functional.elu(x) + 1


def log_sigmoid(x: Tensor, temperature: float) -> Tensor:
    """The logarithm of sigmoid(x), over a temperature."""
    return functional.logsigmoid(x) / temperature


def swish(x: Tensor) -> Tensor:
    """SiLU."""
    return functional.silu(x)


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)²."""
    return functional.relu(x).square()


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    """swish(x) y."""
    return functional.silu(x) * y


def sigmoid_glu(x: Tensor, y: Tensor) -> Tensor:
    """sigmoid(x) y."""
    return torch.sigmoid(x) * y


def pow_glu(x: Tensor, y: Tensor, power: float) -> Tensor:
    """A gate that grows like a power of x and saturates (arXiv:2605.25704)."""
    positive = torch.where(x > 0, x, 1.0)
    gate = torch.where(x > 0, positive ** (power / (positive.sqrt() + 1)), x)
    return gate * torch.sigmoid(x) * y


def l2_norm(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The direction, and one over the length."""
    scale = torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)
    return x * scale, scale[..., 0]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Over the last dimension."""
    return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A layer norm times a swish of the gate."""
    return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-6) * functional.silu(gate)


def token_shift(x: Tensor) -> Tensor:
    """The step from the token before to each; from zeros to the first."""
    return functional.pad(x, (0, 0, 1, -1)) - x


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of the first and the second half of each head are rotated."""
    first, second = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def cross_entropy(logits: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
    """Per row; zero where the label is ignored."""
    return functional.cross_entropy(logits, target, reduction="none", label_smoothing=label_smoothing)


def rwkv7_key(k: Tensor, a: Tensor, ka: Tensor) -> Tensor:
    """The key with its in-context learning rate: k (1 + (a - 1) ka)."""
    return k + k * (a - 1) * ka


def output_correction(o: Tensor, r: Tensor, k: Tensor, r_k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """(o + (Σ r k r_k) v) g."""
    return (o + ((r * k * r_k).sum(-1, keepdim=True) * v).flatten(-2)) * g


def scaled_sigmoid(x: Tensor, scale: float) -> Tensor:
    """A scaled sigmoid."""
    return scale * torch.sigmoid(x)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float) -> Tensor:
    """A state that forgets along each key what it held there, and learns the value."""
    state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    outputs = []
    for t in range(q.shape[1]):
        old = (state * k[:, t, :, :, None]).sum(-2)
        learned = (v[:, t] - old) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * learned[:, :, None]
        outputs.append((state * q[:, t, :, :, None]).sum(-2) * scale)
    return torch.stack(outputs, 1)


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Per channel over what came before, then swish."""
    w = weight.shape[-1]
    y = functional.conv1d(functional.pad(x.mT, (w - 1, 0)), weight[:, None], bias, groups=len(weight))
    return functional.silu(y).mT


def hgrn(x: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """A gated state: h = exp(g) h + x."""
    states = []
    for t in range(x.shape[1]):
        state = g[:, t].exp() * state + x[:, t]
        states.append(state)
    return torch.stack(states, 1), state


def mean_pooling(x: Tensor, chunk_size: int) -> Tensor:
    """The mean of each chunk, the last one shorter."""
    return torch.stack([part.mean(1) for part in x.split(chunk_size, 1)], 1)
