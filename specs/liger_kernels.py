"""Composites of liger-kernel's kernels, in plain torch operations: what its specs name as `reference`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Over the last dimension."""
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last dimension."""
    return functional.rms_norm(x, x.shape[-1:], weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of a sum, and the sum."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, channels: int, groups: int, eps: float) -> Tensor:  # noqa: ARG001
    """Groups of channels, over all that follows them."""
    return functional.group_norm(x, groups, weight, bias, eps)


def poly_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """A weighted sum of the normed powers 3, 2 and 1."""

    def normed(power: Tensor) -> Tensor:
        return power * torch.rsqrt(power.square().mean(-1, keepdim=True) + eps)

    return weight[0] * normed(x**3) + weight[1] * normed(x**2) + weight[2] * normed(x) + bias


def geglu(a: Tensor, b: Tensor) -> Tensor:
    """By the tanh approximation of GELU."""
    return functional.gelu(a, approximate="tanh") * b


def swiglu(a: Tensor, b: Tensor) -> Tensor:
    """SiLU(a) b."""
    return functional.silu(a) * b


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)²."""
    return functional.relu(x).square()


def softmax(x: Tensor) -> Tensor:
    """Over the last dimension."""
    return torch.softmax(x, -1)


def sparsemax(x: Tensor, dim: int) -> Tensor:
    """The projection on the simplex (Martins and Astudillo, 2016)."""
    ordered = x.sort(dim=dim, descending=True).values.movedim(dim, -1)
    sums = ordered.cumsum(-1)
    count = torch.arange(1, x.shape[dim] + 1, device=x.device, dtype=x.dtype)
    size = (1 + count * ordered > sums).sum(-1, keepdim=True)
    threshold = (sums.gather(-1, size - 1) - 1) / size.to(x.dtype)
    return functional.relu(x.movedim(dim, -1) - threshold).movedim(-1, dim)


def cross_entropy(logits: Tensor, target: Tensor, weight: None, ignore_index: int) -> Tensor:  # noqa: ARG001
    """The mean over the labels that count."""
    return functional.cross_entropy(logits, target, ignore_index=ignore_index)


def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The same of a linear layer's logits."""
    return functional.cross_entropy(x @ weight.mT, target)


def kl_div(predicted: Tensor, target: Tensor) -> Tensor:
    """`batchmean`; the target is one of probabilities."""
    return functional.kl_div(predicted, target, reduction="batchmean")


def jsd(predicted: Tensor, target: Tensor) -> Tensor:
    """Of logarithms, the mean over the rows."""
    p, q = predicted.exp(), target.exp()
    middle = ((p + q) / 2).log()
    both = p * (predicted - middle) + q * (target - middle)
    return both.sum() / (2 * predicted.shape[0])


def tvd(p: Tensor, q: Tensor) -> Tensor:
    """Half the distance in the 1-norm, the mean over the rows."""
    return (p - q).abs().sum() / (2 * p.shape[0])


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of the first and the second half of each head are rotated."""

    def rotated(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]

    return rotated(q), rotated(k)


def rope_inputs(generator, device, dtype, b=1, heads=2, length=3, d=4):  # noqa: ANN001, ANN201
    """`q, k` of some heads, and the cosine and sine of angles that both halves share."""
    made = {"generator": generator, "device": device, "dtype": dtype}
    q, k = torch.randn(b, heads, length, d, **made), torch.randn(b, heads, length, d, **made)
    angles = torch.randn(1, length, d // 2, **made).repeat(1, 1, 2)
    return q.requires_grad_(), k.requires_grad_(), angles.cos(), angles.sin()
