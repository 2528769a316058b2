"""Operations that forward calls by one name and that backwards are written out for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.paths import factorised

Rule = Callable[..., Any]


def _softmax(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    if dtype is not None:
        raise TypeError
    e = torch.exp(x - x.detach().amax(dim, keepdim=True))
    return e / e.sum(dim, keepdim=True)


def _logsumexp(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:  # noqa: FBT001, FBT002
    top = x.detach().amax(dim, keepdim=True)
    total = torch.log(torch.exp(x - top).sum(dim, keepdim=True)) + top
    return total if keepdim else total.squeeze(dim)


def _log_softmax(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    if dtype is not None:
        raise TypeError
    top = x.detach().amax(dim, keepdim=True)
    return (x - top) - torch.log(torch.exp(x - top).sum(dim, keepdim=True))


def _var(
    x: Tensor,
    dim: Any = None,  # noqa: ANN401
    unbiased: bool = True,  # noqa: FBT001, FBT002
    keepdim: bool = False,  # noqa: FBT001, FBT002
    *,
    correction: int | None = None,
) -> Tensor:
    dims = tuple(range(x.dim())) if dim is None else (dim if isinstance(dim, tuple | list) else (dim,))
    if isinstance(dim, bool):
        raise TypeError
    lost = (1 if unbiased else 0) if correction is None else correction
    count = 1
    for d in dims:
        count *= x.shape[d]
    mean = x.mean(dims, keepdim=True)
    return ((x - mean) ** 2).sum(dims, keepdim=keepdim) / (count - lost)


def _std(*args: Any, **named: Any) -> Tensor:  # noqa: ANN401
    return _var(*args, **named).sqrt()


def _layer_norm(
    x: Tensor,
    shape: Any,  # noqa: ANN401
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    dims = tuple(range(-len(shape), 0))
    centred = x - x.mean(dims, keepdim=True)
    y = centred * ((centred * centred).mean(dims, keepdim=True) + eps).rsqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _cosine_similarity(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    lengths = (x * x).sum(dim).sqrt().clamp_min(eps) * (y * y).sum(dim).sqrt().clamp_min(eps)
    return (x * y).sum(dim) / lengths


MADE_OF: dict[str, Rule] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "var": _var,
    "std": _std,
    "layer_norm": _layer_norm,
    "silu": lambda x: x * torch.sigmoid(x),
    "normalize": lambda x, p=2.0, dim=1, eps=1e-12: x / x.norm(p, dim, keepdim=True).clamp_min(eps),
    "linear": lambda x, weight, bias=None: x @ weight.mT if bias is None else x @ weight.mT + bias,
    "addmm": lambda c, a, b: c + a @ b,
    "inv": factorised.inverse,
    "linalg_inv": factorised.inverse,
    "inverse": factorised.inverse,
    "det": factorised.determinant,
    "linalg_det": factorised.determinant,
    "logdet": factorised.log_determinant,
    "linalg_cholesky": factorised.cholesky,
    "cholesky": factorised.cholesky,
    "linalg_eigh": factorised.symmetric_eigen,
    "linalg_eigvalsh": factorised.symmetric_eigenvalues,
    "linalg_svdvals": factorised.singular_values,
    "linalg_svd": factorised.singular,
    "norm": factorised.norm,
    "linalg_vector_norm": factorised.norm,
    "cosine_similarity": _cosine_similarity,
    "mse_loss": lambda x, y: ((x - y) ** 2).mean(),
}
"""By the operation's name; a `TypeError` says that it was called in another way."""
