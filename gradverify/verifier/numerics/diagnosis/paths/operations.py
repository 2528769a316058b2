"""What is known of torch's operations by their names, where their derivatives are taken otherwise."""

from __future__ import annotations

from collections.abc import Callable

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
