"""What is known of torch's operations by their names, where their derivatives are taken otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

LINEAR_IN_EACH = frozenset(
    {
        "mul",
        "div",
        "rdiv",
        "matmul",
        "bmm",
        "mm",
        "mv",
        "dot",
        "inner",
        "outer",
        "ger",
        "einsum",
        "linear",
        "where",
        "baddbmm",
        "kron",
        "pow",
        "rpow",
        "solve",
        "linalg_solve",
        "solve_triangular",
        "linalg_solve_triangular",
        "cholesky_solve",
        "tensordot",
        "conv1d",
        "conv2d",
        "conv_transpose1d",
        "conv_transpose2d",
        "addmm",
        "vdot",
        "linalg_vecdot",
        "cross",
        "linalg_cross",
        "addcmul",
        "addbmm",
        "bilinear",
        "multi_dot",
        "linalg_multi_dot",
        "lerp",
    }
)
"""Operations in whose derivative other arguments stand: another value may be taken for them."""

BROADCASTING = frozenset(
    {
        "mul",
        "div",
        "rdiv",
        "add",
        "sub",
        "rsub",
        "pow",
        "rpow",
        "where",
        "maximum",
        "minimum",
        "lerp",
        "addcmul",
    }
)
"""Operations entry by entry, over which a smaller argument is spread."""

ALONG = frozenset(
    {
        "softmax",
        "log_softmax",
        "logsumexp",
        "cumsum",
        "cumprod",
        "sum",
        "mean",
        "prod",
        "norm",
        "var",
        "std",
        "flip",
        "roll",
        "amax",
        "amin",
        "diff",
    }
)
"""Operations along a dimension."""

BY_RESULT: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda y: y,
    "tanh": lambda y: 1 - y * y,
    "sigmoid": lambda y: y * (1 - y),
    "sqrt": lambda y: 0.5 / y,
    "rsqrt": lambda y: -0.5 * y**3,
    "reciprocal": lambda y: -y * y,
}
"""Derivatives that are written by the result, which is saved for that."""

BEHIND_A_NUMBER = {"roll": 2, "diff": 2, "norm": 2}
"""Those whose dimension stands behind another number: its place among the arguments."""

ELEMENTWISE = frozenset(
    {
        "exp",
        "log",
        "tanh",
        "sigmoid",
        "relu",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "square",
        "pow",
        "rpow",
        "sin",
        "cos",
        "tan",
        "abs",
        "neg",
        "erf",
        "erfc",
        "log1p",
        "expm1",
        "softplus",
        "silu",
        "gelu",
        "clamp",
        "clamp_min",
        "clamp_max",
        "atan",
        "arctan",
        "asin",
        "acos",
        "sinh",
        "cosh",
        "logsigmoid",
        "elu",
        "leaky_relu",
        "exp2",
        "log2",
        "log10",
        "atanh",
        "asinh",
        "acosh",
        "lgamma",
        "digamma",
        "rdiv",
        "sinc",
        "hardtanh",
        "relu6",
    }
)
"""Functions of one entry each."""

VIEWS = frozenset(
    {
        "view",
        "reshape",
        "expand",
        "expand_as",
        "view_as",
        "transpose",
        "t",
        "permute",
        "squeeze",
        "unsqueeze",
        "getitem",
        "narrow",
        "select",
        "chunk",
        "split",
        "unbind",
        "flatten",
        "unflatten",
        "movedim",
        "swapaxes",
        "swapdims",
        "moveaxis",
        "broadcast_to",
        "diagonal",
        "ravel",
        "adjoint",
        "tensor_split",
        "hsplit",
        "vsplit",
        "split_with_sizes",
        "atleast_1d",
        "atleast_2d",
        "positive",
        "conj",
        "resolve_conj",
        "real",
        "imag",
        "view_as_real",
        "view_as_complex",
        "unfold",
        "contiguous",
        "as_strided",
        "detach",
        "clone",
        "to",
        "double",
        "float",
        "type",
        "requires_grad_",
        "data",
    }
)
"""Operations whose result may share its input's memory: what is written there later must arrive."""

BOUNDED = frozenset({"clamp", "clamp_min", "clamp_max", "clip", "hardtanh"})
"""Operations whose numbers are bounds."""

WITH_NUMBERS = frozenset({"mul", "div", "add", "sub", "pow", "rsub", "rdiv", "rpow"}) | BOUNDED
"""Operations whose numbers in the source are read as constants of a formula."""

INDEXED = {"getitem": 0, "index_select": 0, "gather": 0, "take": 0, "take_along_dim": 0, "embedding": 1}
"""Operations that pick entries of an argument, and the place of that argument."""


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
