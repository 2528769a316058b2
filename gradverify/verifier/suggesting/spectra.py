"""Fourier transforms by the functions that torch has for them."""

from __future__ import annotations

from typing import Any

from gradverify.verifier.suggesting.node import Node

NORMS = {True: {0: "", 1: "ortho", 2: "forward"}, False: {0: "forward", 1: "ortho", 2: ""}}
"""The `norm` of a transform (of an inverse one) for how it is scaled: not, by the root of n, by n."""


def transform(node: Node, args: list[Any]) -> str | None:
    """The call; None for what is no transform, or has no such function."""
    if node.op not in {"_fft_c2c", "_fft_r2c", "_fft_c2r"}:
        return None
    _, dims, scaled, last = node.args
    forward = last if node.op == "_fft_c2c" else node.op == "_fft_r2c"
    name = {
        "_fft_c2c": "fft" if forward else "ifft",
        "_fft_r2c": "rfft" if last else "fft",
        "_fft_c2r": "irfft",
    }[node.op]
    rank = len(node.shape)
    places = [d % rank for d in dims]
    options = []
    if node.op == "_fft_c2r":
        options.append(f"n={args[3][0]}")
        if len(places) > 1:
            return None
    if len(places) > 1:
        name += "n"
        options.append(f"dim=({', '.join(map(str, places))})" if places != list(range(rank)) else "")
    elif places != [rank - 1]:
        options.append(f"dim={places[0]}")
    norm = NORMS[bool(forward)][scaled]
    options.append(f'norm="{norm}"' if norm else "")
    return f"torch.fft.{name}({', '.join([args[0][0], *filter(None, options)])})"
