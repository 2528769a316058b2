"""Whether interpreted kernels can be believed in a dtype: known products are tried."""

from __future__ import annotations

from functools import cache

import torch

from gradverify.verifier import guard
from gradverify.verifier.interpreter.launches import forget_launches_since, launches


@cache
def wrong_product(dtype: torch.dtype) -> str:
    """Why nothing can be judged in a dtype by interpreted kernels; empty where known products are right.

    The interpreter of Triton 3.9 multiplies the bits of bfloat16 as integers.
    """
    from gradverify.verifier.interpreter.known_product import (  # noqa: PLC0415 - imports Triton
        LEFT,
        RIGHT,
        product,
    )

    before = launches()
    expected = [left * right for left, right in zip(LEFT, RIGHT, strict=True)]
    result = guard.call(product, dtype)
    forget_launches_since(before)
    if not isinstance(result, guard.Raised) and result.value.tolist() == expected:
        return ""
    name = str(dtype).removeprefix("torch.")
    got = result.error.type if isinstance(result, guard.Raised) else f"{result.value[0].item():.3g}"
    return (
        f"Triton's interpreter, in which kernels run without a GPU, computes {name} wrongly ({LEFT[0]:g} * "
        f"{RIGHT[0]:g} is {got} there); `--device cuda` judges it on a GPU"
    )
