"""What torch's routines take: which arguments are sizes, dimensions or indices, and of which rank."""

from __future__ import annotations

from collections.abc import Mapping

SHAPE_CALLS = {"size", "dim", "numel", "stride", "ndimension"}
TENSOR_ATTRIBUTES = frozenset(
    {
        "shape",
        "ndim",
        "device",
        "dtype",
        "T",
        "mT",
        "data",
        "is_cuda",
        "requires_grad",
        "grad",
        "real",
        "imag",
    }
)
"""Attributes that an argument has only if it is a tensor."""

MODULE_METHODS = frozenset(
    {
        "forward",
        "parameters",
        "named_parameters",
        "modules",
        "children",
        "eval",
        "train",
        "state_dict",
        "buffers",
    }
)
"""Methods that an argument has only if it is an `nn.Module`."""

RANK_OF_METHOD = {"t": 2, "mm": 2, "addmm": 2, "bmm": 3, "baddbmm": 3, "mv": 2}
"""Rank that the first operand of a method must have."""

RANKS_OF_CALL: Mapping[str, tuple[int | None, ...]] = {
    "mm": (2, 2), "bmm": (3, 3), "mv": (2, 1), "dot": (1, 1), "ger": (1, 1), "outer": (1, 1),
    "conv1d": (3, 3, 1), "conv2d": (4, 4, 1), "conv3d": (5, 5, 1), "conv_transpose2d": (4, 4, 1),
    "conv_transpose1d": (3, 3, 1), "unfold": (4,), "fold": (3,), "grid_sample": (4, 4),
    "max_pool2d": (4,), "avg_pool2d": (4,), "interpolate": (4,), "pixel_shuffle": (4,),
    "max_pool1d": (3,), "avg_pool1d": (3,), "max_pool3d": (5,), "addmm": (None, 2, 2),
    "linear": (None, 2, 1),
}  # fmt: skip
"""Ranks of the operands of functions that fix them; None for one that may be of several."""

INDEX_ARGUMENT = {
    "index_select": -1, "gather": -1, "scatter": 1, "scatter_": 1, "scatter_add": 1, "scatter_add_": 1,
    "index_add": 1, "index_add_": 1, "index_fill_": 1, "index_reduce": 1, "index_reduce_": 1, "one_hot": 0,
    "embedding": 0, "take": -1, "take_along_dim": 0, "nll_loss": 1, "cross_entropy": 1,
}  # fmt: skip
"""Functions and methods whose argument at this position (of the method form) is an integer tensor."""

OF_A_VECTOR = frozenset(
    {"index_select", "index_add", "index_add_", "index_fill_", "index_reduce", "index_reduce_"}
)
"""Those of them whose index has one dimension."""

SIZE_CALLS = frozenset(
    {"range", "view", "reshape", "zeros", "ones", "empty", "full", "arange", "eye", "expand", "repeat",
     "chunk", "topk", "narrow", "new_zeros", "new_empty", "new_ones", "linspace", "randn", "rand", "split"}
)  # fmt: skip
"""Calls whose bare arguments are counts or sizes."""

AXIS_CALLS = frozenset(
    {"sum", "mean", "softmax", "log_softmax", "cumsum", "max", "min", "sort", "norm", "transpose", "size",
     "unbind", "squeeze", "unsqueeze", "argmax", "prod", "logsumexp", "flip"}
)  # fmt: skip
"""Calls whose bare arguments are dimensions."""

KEYWORDS: Mapping[tuple[str, ...], str] = {
    ("dim", "axis"): "dim",
    ("keepdim", "inplace", "training", "align_corners", "ceil_mode"): "flag",
    ("dtype",): "dtype",
    ("stride", "padding", "dilation", "groups", "kernel_size", "dims"): "int",
    ("min", "max"): "float",
}
"""What keyword arguments are."""

MATH_CALLS = frozenset({"sqrt", "exp", "log", "float", "pow", "cos", "sin", "tanh"})

KEEPING_SHAPE = frozenset(
    {"clone", "contiguous", "cpu", "cuda", "detach", "double", "float", "half", "long", "numpy", "to"}
    | {"requires_grad_", "type_as"}
)
"""Methods whose result has the shape of what they are called on."""
