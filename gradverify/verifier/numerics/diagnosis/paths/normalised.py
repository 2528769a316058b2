"""Softmaxes, moments and normalisations written out: what an author writes who derives them by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.paths.losses import log_probabilities


def softmax(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Exponentials by their sum."""
    if dtype is not None:
        raise TypeError
    e = torch.exp(x - x.detach().amax(dim, keepdim=True))
    return e / e.sum(dim, keepdim=True)


def logsumexp(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:  # noqa: FBT001, FBT002
    """The logarithm of a sum of exponentials."""
    top = x.detach().amax(dim, keepdim=True)
    total = torch.log(torch.exp(x - top).sum(dim, keepdim=True)) + top
    return total if keepdim else total.squeeze(dim)


def log_softmax(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Differences to the logarithm of a sum of exponentials."""
    if dtype is not None:
        raise TypeError
    return log_probabilities(x, dim)


def var(
    x: Tensor,
    dim: Any = None,  # noqa: ANN401
    unbiased: bool = True,  # noqa: FBT001, FBT002
    keepdim: bool = False,  # noqa: FBT001, FBT002
    *,
    correction: int | None = None,
) -> Tensor:
    """The mean of squares about the mean, or what stands for it."""
    dims = tuple(range(x.dim())) if dim is None else (dim if isinstance(dim, tuple | list) else (dim,))
    if isinstance(dim, bool):
        raise TypeError
    lost = (1 if unbiased else 0) if correction is None else correction
    count = 1
    for d in dims:
        count *= x.shape[d]
    mean = x.mean(dims, keepdim=True)
    return ((x - mean) ** 2).sum(dims, keepdim=keepdim) / (count - lost)


def std(*args: Any, **named: Any) -> Tensor:  # noqa: ANN401
    """Its root."""
    return var(*args, **named).sqrt()


def layer_norm(
    x: Tensor,
    shape: Any,  # noqa: ANN401
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Centred, by the deviation, with weight and bias."""
    dims = tuple(range(-len(shape), 0))
    centred = x - x.mean(dims, keepdim=True)
    y = centred * ((centred * centred).mean(dims, keepdim=True) + eps).rsqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rms_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """By the root of the mean square."""
    dims = tuple(range(-len(shape), 0))
    added = torch.finfo(x.dtype).eps if eps is None else eps
    y = x * ((x * x).mean(dims, keepdim=True) + added).rsqrt()
    return y if weight is None else y * weight


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Of groups of channels."""
    grouped = x.reshape(x.shape[0], groups, -1)
    centred = grouped - grouped.mean(-1, keepdim=True)
    y = (centred * ((centred * centred).mean(-1, keepdim=True) + eps).rsqrt()).reshape(x.shape)
    return _by_channel(y, weight, bias)


def batch_norm(  # noqa: PLR0913 - torch's own
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,  # noqa: FBT001, FBT002 - torch's own
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """In training, without statistics that are kept."""
    del momentum
    if not training or running_mean is not None or running_var is not None:
        raise TypeError
    dims = tuple(k for k in range(x.dim()) if k != 1)
    centred = x - x.mean(dims, keepdim=True)
    y = centred * ((centred * centred).mean(dims, keepdim=True) + eps).rsqrt()
    return _by_channel(y, weight, bias)


def _by_channel(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    along = [-1 if k == 1 else 1 for k in range(y.dim())]
    y = y if weight is None else y * weight.reshape(along)
    return y if bias is None else y + bias.reshape(along)


def cosine_similarity(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """A product by two lengths."""
    lengths = (x * x).sum(dim).sqrt().clamp_min(eps) * (y * y).sum(dim).sqrt().clamp_min(eps)
    return (x * y).sum(dim) / lengths
