"""Operations whose derivative authors write where that of another one should stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def _repeated(x: Tensor, count: int, dim: int) -> Tensor:
    return x.repeat([count if k == dim % x.dim() else 1 for k in range(x.dim())])


def _padded_otherwise(x: Tensor, pad: Sequence[int], *rest: Any, **named: Any) -> Tensor:  # noqa: ANN401
    turned = [n for k in range(0, len(pad), 2) for n in (pad[k + 1], pad[k])]
    return torch.nn.functional.pad(x, turned, *rest, **named)


def _whole(index: Any) -> Tensor:  # noqa: ANN401 - whatever stands in brackets
    """The index, if it is a tensor of whole numbers."""
    if isinstance(index, Tensor) and not index.dtype.is_floating_point and index.dtype is not torch.bool:
        return index
    raise TypeError


def _diagonal_of_softmax(x: Tensor, dim: int, **_: Any) -> Tensor:  # noqa: ANN401
    p = torch.softmax(x.detach(), dim)
    return x * (p * (1 - p))


def _diagonal_of_log_softmax(x: Tensor, dim: int, **_: Any) -> Tensor:  # noqa: ANN401
    return x * (1 - torch.softmax(x.detach(), dim))


def _other_gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh" if approximate == "none" else "none")


def _by_sigmoid(x: Tensor, **_: str) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


_EXPONENTIAL = (
    ("`exp(A)ᵀ @ grad_output`, as if everything commuted", lambda a: torch.matrix_exp(a.detach()) @ a),
    ("`grad_output @ exp(A)ᵀ`, as if everything commuted", lambda a: a @ torch.matrix_exp(a.detach())),
    ("`exp(A) * grad_output`, entry by entry", lambda a: torch.matrix_exp(a.detach()) * a),
)
"""What is written for the derivative of a matrix function by those who think of numbers."""

INSTEAD: dict[str, tuple[tuple[str, Callable[..., Any]], ...]] = {
    "maximum": (("the smaller one", torch.minimum),),
    "minimum": (("the larger one", torch.maximum),),
    "amax": (("the smallest entry", torch.amin),),
    "amin": (("the largest entry", torch.amax),),
    "where": (("the condition turned round", lambda c, a, b: torch.where(c, b, a)),),
    "relu": (("the condition turned round", lambda x: x - torch.relu(x)),),
    "cumsum": (
        ("the order turned round", lambda x, dim: x.flip(dim).cumsum(dim).flip(dim)),
        ("each sum without its own entry", lambda x, dim: x.cumsum(dim) - x),
    ),
    "cumprod": (("the order turned round", lambda x, dim: x.flip(dim).cumprod(dim).flip(dim)),),
    "logcumsumexp": (("the order turned round", lambda x, dim: x.flip(dim).logcumsumexp(dim).flip(dim)),),
    "roll": (
        ("the shift turned round", lambda x, n, dim=None: torch.roll(x, -n, dim)),
        ("a shift by one more", lambda x, n, dim=None: torch.roll(x, n + 1, dim)),
        ("a shift by one less", lambda x, n, dim=None: torch.roll(x, n - 1, dim)),
    ),
    "flip": (("no flip", lambda x, *_: x),),
    "repeat_interleave": (("`repeat` in place of it", _repeated),),
    "pad": (("the padding on the other side", _padded_otherwise),),
    "gather": (
        ("the index one further", lambda x, dim, index: x.gather(dim, (index + 1) % x.shape[dim])),
        ("the index one before", lambda x, dim, index: x.gather(dim, (index - 1) % x.shape[dim])),
    ),
    "index_select": (
        ("the index one further", lambda x, dim, index: x.index_select(dim, (index + 1) % x.shape[dim])),
        ("the index one before", lambda x, dim, index: x.index_select(dim, (index - 1) % x.shape[dim])),
    ),
    "getitem": (
        ("the index one further", lambda x, index: x[(_whole(index) + 1) % x.shape[0]]),
        ("the index one before", lambda x, index: x[(_whole(index) - 1) % x.shape[0]]),
    ),
    "softmax": (("the diagonal of its Jacobian alone", _diagonal_of_softmax),),
    "log_softmax": (("the diagonal of its Jacobian alone", _diagonal_of_log_softmax),),
    "tril": (("the upper triangle", lambda x, k=0: torch.triu(x, -k)),),
    "triu": (("the lower triangle", lambda x, k=0: torch.tril(x, -k)),),
    "gelu": (("gelu's other form (tanh or erf)", _other_gelu), ("`x * sigmoid(1.702 * x)`", _by_sigmoid)),
    "matrix_exp": _EXPONENTIAL,
    "linalg_matrix_exp": _EXPONENTIAL,
    "solve": (("a product in place of the solve", torch.matmul),),
    "linalg_solve": (("a product in place of the solve", torch.matmul),),
    "solve_triangular": (("a product in place of the solve", lambda a, b, **_: a @ b),),
    "linalg_solve_triangular": (("a product in place of the solve", lambda a, b, **_: a @ b),),
}
"""Operations whose derivative stands where that of this one should: each with its words."""


def instead_cause(operation: str) -> str:
    """The cause whose name fits such an exchange best."""
    if operation in _IN_PLACES:
        return "permuted"
    if operation in {"tril", "triu"}:
        return "region"
    if operation in {"softmax", "log_softmax"}:
        return "diagonal-only"
    if "matrix_exp" in operation or operation == "gelu":
        return "chain-factor"
    return "operand" if "solve" in operation else "branch"


_IN_PLACES = frozenset(
    {
        "cumsum",
        "cumprod",
        "logcumsumexp",
        "roll",
        "flip",
        "repeat_interleave",
        "pad",
        "gather",
        "index_select",
        "getitem",
    }
)
"""Operations that put entries in other places, or go along them."""
