"""What values and operations are called in a backward that is written out."""

from __future__ import annotations

import torch

from gradverify.verifier.suggesting.node import Node

VARIABLES = {
    "add": "total",
    "sub": "difference",
    "mul": "product",
    "div": "quotient",
    "sum": "total",
    "mm": "product",
    "bmm": "product",
    "pow": "power",
    "neg": "negative",
    "t": "transposed",
    "transpose": "transposed",
    "permute": "permuted",
    "view": "reshaped",
    "_unsafe_view": "reshaped",
    "reshape": "reshaped",
    "expand": "expanded",
    "unsqueeze": "column",
    "squeeze": "squeezed",
    "select": "part",
    "slice": "part",
    "index": "taken",
    "gather": "taken",
    "unfold": "windows",
    "constant_pad_nd": "padded",
    "index_add": "added",
    "index_put": "placed",
    "_unsafe_index_put": "placed",
    "select_scatter": "placed",
    "scatter": "placed",
    "masked_fill": "masked",
    "where": "chosen",
    "new_zeros": "zeros",
    "zeros": "zeros",
    "zeros_like": "zeros",
    "arange": "positions",
    "real_alone": "spectrum",
    "imag_alone": "spectrum",
    "complex": "spectrum",
    "_fft_c2c": "transformed",
    "_fft_r2c": "spectrum",
    "_fft_c2r": "transformed",
    "convolution": "convolved",
    "_softmax": "probabilities",
    "gt": "mask",
    "lt": "mask",
    "ge": "mask",
    "le": "mask",
    "eq": "mask",
}
"""What a value is called that has no name in forward; others are called by their operation."""

TORCH_NAMES = {
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "_conj": "conj",
    "_unsafe_view": "reshape",
    "view": "reshape",
    "constant_pad_nd": "nn.functional.pad",
}
"""What torch calls an operation. A view that was recorded may be of a copy that is not made here."""


def torch_function(node: Node, name: str) -> str:
    """How an operation is called: by its public name, or as the overload that was recorded."""
    if (hasattr(torch, name) or "." in name) and not name.startswith("_"):
        return f"torch.{name}"
    overload = getattr(node.target, "_overloadname", "default")
    return f"torch.ops.aten.{node.op}" + ("" if overload == "default" else f".{overload}")
