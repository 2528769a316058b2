"""Losses and attention written out: what an author writes who derives them by hand."""

from __future__ import annotations

import math

import torch
from torch import Tensor

IGNORED = -100
"""The label that torch leaves out where nothing is said."""


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """Losses entry by entry as one number; `none` leaves them as they are."""
    match reduction:
        case "mean":
            return losses.mean()
        case "sum":
            return losses.sum()
        case "none":
            return losses
        case _:
            raise TypeError


def log_probabilities(x: Tensor, dim: int) -> Tensor:
    """log_softmax, of exponentials and their sum."""
    top = x.detach().amax(dim, keepdim=True)
    return (x - top) - torch.log(torch.exp(x - top).sum(dim, keepdim=True))


def cross_entropy(
    x: Tensor,
    target: Tensor,
    *,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Of labels and rows of logits: smoothed, without those that are ignored, by their number."""
    if x.dim() != 2 or target.is_floating_point():
        raise TypeError
    return _by_labels(log_probabilities(x, 1), target, ignore_index, reduction, label_smoothing)


def nll_loss(x: Tensor, target: Tensor, *, ignore_index: int = IGNORED, reduction: str = "mean") -> Tensor:
    """The same of log-probabilities."""
    if x.dim() != 2:
        raise TypeError
    return _by_labels(x, target, ignore_index, reduction, 0.0)


def _by_labels(logs: Tensor, target: Tensor, ignored: int, reduction: str, smoothing: float) -> Tensor:
    keep = target != ignored
    picked = -logs.gather(1, torch.where(keep, target, 0)[:, None])[:, 0]
    if smoothing:
        picked = picked * (1 - smoothing) + -logs.mean(1) * smoothing
    losses = picked * keep
    return losses.sum() / keep.sum() if reduction == "mean" else reduced(losses, reduction)


def with_logits(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """binary_cross_entropy_with_logits."""
    return reduced(x.clamp(min=0) - x * target + torch.log1p(torch.exp(-x.abs())), reduction)


def of_probabilities(p: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """binary_cross_entropy."""
    return reduced(-(target * torch.log(p) + (1 - target) * torch.log(1 - p)), reduction)


def kl_div(x: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Of log-probabilities."""
    if log_target:
        raise TypeError
    losses = target * (torch.log(target) - x)
    return losses.sum() / x.shape[0] if reduction == "batchmean" else reduced(losses, reduction)


def mse_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """Squares of differences."""
    return reduced((x - target) ** 2, reduction)


def l1_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """Absolute differences."""
    return reduced((x - target).abs(), reduction)


def attention(  # noqa: PLR0913 - torch's own
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """scaled_dot_product_attention."""
    if dropout_p or enable_gqa:
        raise TypeError
    s = (q @ k.mT) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else s + attn_mask
    e = torch.exp(s - s.detach().amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)) @ v
