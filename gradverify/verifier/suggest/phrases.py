"""Pieces of Python as text with how strongly their outermost operator binds, and what things are called."""

from __future__ import annotations

import ast
import math
from typing import Any

import torch

from gradverify.verifier.suggest.graph import Node

Phrase = tuple[str, int]
"""Text, and how strongly its outermost operator binds."""

_SIGNS = {
    1: {"eq": "==", "ne": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="},
    2: {"logical_or": "|", "bitwise_or": "|"},
    3: {"logical_and": "&", "bitwise_and": "&"},
    4: {"add": "+", "sub": "-"},
    5: {"mul": "*", "div": "/", "mm": "@", "bmm": "@", "mv": "@", "matmul": "@", "dot": "@"},
    7: {"pow": "**"},
}
BINARY = {op: (sign, own) for own, signs in _SIGNS.items() for op, sign in signs.items()}
"""Operators with how strongly they bind."""

ASSOCIATIVE = frozenset({"add", "mul", "logical_and", "logical_or"})
ATOM, POWER, NEGATED, PRODUCT, SUM = 9, 7, 6, 5, 4

VARIABLES = {
    op: name
    for name, ops in {
        "total": "add sum",
        "difference": "sub",
        "product": "mul mm bmm",
        "quotient": "div",
        "power": "pow",
        "negative": "neg",
        "transposed": "t transpose",
        "permuted": "permute",
        "reshaped": "view _unsafe_view reshape",
        "expanded": "expand",
        "column": "unsqueeze",
        "squeezed": "squeeze",
        "part": "select slice",
        "taken": "index gather",
        "windows": "unfold",
        "padded": "constant_pad_nd",
        "added": "index_add",
        "placed": "index_put _unsafe_index_put select_scatter scatter",
        "masked": "masked_fill",
        "chosen": "where",
        "zeros": "new_zeros zeros zeros_like",
        "positions": "arange",
        "spectrum": "real_alone imag_alone complex _fft_r2c",
        "transformed": "_fft_c2c _fft_c2r",
        "convolved": "convolution",
        "probabilities": "_softmax",
        "mask": "gt lt ge le eq",
    }.items()
    for op in ops.split()
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

NORMS = {True: {0: "", 1: "ortho", 2: "forward"}, False: {0: "forward", 1: "ortho", 2: ""}}
"""The `norm` of a transform (of an inverse one) for how it is scaled: not, by the root of n, by n."""


def number(value: Any) -> str:  # noqa: ANN401
    """A number as a person writes it: 2 and not 2.0."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6:
        return str(int(value))
    return repr(value)


def inside(phrase: Phrase, strength: int) -> str:
    """In brackets where it binds less than this."""
    text, own = phrase
    return text if own >= strength else f"({text})"


def plain(argument: Phrase | list[Any]) -> str:
    """An argument of a call."""
    if isinstance(argument, list):
        items = ", ".join(plain(a) for a in argument)
        return f"({items}{',' if len(argument) == 1 else ''})"
    return str(argument[0])


def strength(text: str) -> int:
    """How strongly the outermost operator of a text binds."""
    tree = ast.parse(text, mode="eval").body
    if isinstance(tree, ast.UnaryOp):
        return NEGATED
    if not isinstance(tree, ast.BinOp) or _is_bracketed(text):
        return ATOM
    if isinstance(tree.op, ast.Pow):
        return POWER
    return SUM if isinstance(tree.op, ast.Add | ast.Sub) else PRODUCT


def without_brackets(text: str) -> str:
    """What stands in the brackets around a tuple."""
    return text[1:-1].rstrip(",") if _is_bracketed(text) else text


def _is_bracketed(text: str) -> bool:
    """Whether the bracket that a text begins with closes at its end."""
    depth = 0
    for k, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if not depth:
            return bool(k) and k == len(text) - 1
    return False


def torch_function(node: Node, name: str) -> str:
    """How an operation is called: by its public name, or as the overload that was recorded."""
    if (hasattr(torch, name) or "." in name) and not name.startswith("_"):
        return f"torch.{name}"
    overload = getattr(node.target, "_overloadname", "default")
    return f"torch.ops.aten.{node.op}" + ("" if overload == "default" else f".{overload}")


def complex_part(node: Node, args: list[Any]) -> Phrase | None:
    """A part of a complex value, or a complex value of one part."""
    if node.op in {"real", "imag"}:
        return f"{inside(args[0], ATOM)}.{node.op}", ATOM
    if node.op == "imag_alone":
        return f"1j * {inside(args[0], PRODUCT + 1)}", PRODUCT
    if node.op == "real_alone":
        return f"torch.complex({args[0][0]}, torch.zeros_like({args[0][0]}))", ATOM
    return None


def transform(node: Node, args: list[Any]) -> Phrase | None:
    """A Fourier transform by torch's function; None for what is none, or has no such function."""
    if node.op not in {"_fft_c2c", "_fft_r2c", "_fft_c2r"}:
        return None
    _, dims, scaled, last = node.args
    forward = last if node.op == "_fft_c2c" else node.op == "_fft_r2c"
    complex_name = "fft" if forward else "ifft"
    name = {"_fft_c2c": complex_name, "_fft_r2c": "rfft" if last else "fft", "_fft_c2r": "irfft"}[node.op]
    rank = len(node.shape)
    places = [d % rank for d in dims]
    options = []
    if node.op == "_fft_c2r":
        if len(places) > 1:
            return None
        options.append(f"n={args[3][0]}")
    if len(places) > 1:
        name += "n"
        options += [f"dim=({', '.join(map(str, places))})"] if places != list(range(rank)) else []
    elif places != [rank - 1]:
        options.append(f"dim={places[0]}")
    norm = NORMS[bool(forward)][scaled]
    options += [f'norm="{norm}"'] if norm else []
    return f"torch.fft.{name}({', '.join([args[0][0], *options])})", ATOM


def convolution_gradient(made: Node, which: int, texts: tuple[str, str, str]) -> str | None:
    """One of the gradients of a convolution by the function that torch has for it; None where it has none.

    `texts` are those of grad_output, the input and the weight.
    """
    stride, padding, dilation, transposed, _, groups = made.args[4:10]
    dims = len(stride)
    if transposed or dims > 3:
        return None
    g, x, w = texts
    if which == 2:
        return f"{g}.sum((0, {', '.join(str(k) for k in range(2, dims + 2))}))"
    options = {
        "stride": (stride, 1),
        "padding": (padding, 0),
        "dilation": (dilation, 1),
        "groups": (groups, 1),
    }
    said = "".join(f", {n}={v}" for n, (v, d) in options.items() if v not in (d, (d,) * dims))
    given = (f"{x}.shape, {w}, {g}", f"{x}, {w}.shape, {g}")[which]
    return f"torch.nn.grad.conv{dims}d_{('input', 'weight')[which]}({given}{said})"
