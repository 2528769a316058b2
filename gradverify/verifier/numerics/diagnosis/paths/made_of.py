"""Operations that forward calls by one name and that backwards are written out for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.paths import factorised, losses, normalised

Rule = Callable[..., Any]


def given(named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, without those that torch's functions add, or that say nothing."""
    unsaid = {"inplace": False, "size_average": None, "reduce": None}
    return {
        k: v
        for k, v in named.items()
        if v is not None and k != "_stacklevel" and not (k in unsaid and v == unsaid[k])
    }


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return x * (0.5 * (1 + torch.erf(x / math.sqrt(2))))
    return x * (0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


MADE_OF: dict[str, Rule] = {
    "softmax": normalised.softmax,
    "log_softmax": normalised.log_softmax,
    "logsumexp": normalised.logsumexp,
    "var": normalised.var,
    "std": normalised.std,
    "layer_norm": normalised.layer_norm,
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": _gelu,
    "normalize": lambda x, p=2.0, dim=1, eps=1e-12: x / x.norm(p, dim, keepdim=True).clamp_min(eps),
    "linear": lambda x, weight, bias=None: x @ weight.mT if bias is None else x @ weight.mT + bias,
    "addmm": lambda c, a, b: c + a @ b,
    "inv": factorised.inverse,
    "linalg_inv": factorised.inverse,
    "inverse": factorised.inverse,
    "solve_triangular": factorised.triangular_solution,
    "linalg_solve_triangular": factorised.triangular_solution,
    "solve": factorised.solution,
    "linalg_solve": factorised.solution,
    "cholesky_solve": factorised.solution_by_factor,
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
    "cosine_similarity": normalised.cosine_similarity,
    "rms_norm": normalised.rms_norm,
    "group_norm": normalised.group_norm,
    "batch_norm": normalised.batch_norm,
    "mse_loss": losses.mse_loss,
    "l1_loss": losses.l1_loss,
    "cross_entropy": losses.cross_entropy,
    "nll_loss": losses.nll_loss,
    "binary_cross_entropy": losses.of_probabilities,
    "binary_cross_entropy_with_logits": losses.with_logits,
    "kl_div": losses.kl_div,
    "scaled_dot_product_attention": losses.attention,
}
"""By the operation's name; a `TypeError` says that it was called in another way."""
