"""The devices of this machine, and arithmetic on them without short cuts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gradverify.verifier.guard.global_state import EXACT, precisions, set_precisions

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Kinds of devices on which nothing can be verified."""


def accelerators() -> tuple[str, ...]:
    """The first device of the accelerator that torch sees, and the last where there are several.

    A kernel that is launched on the current device instead of its tensors' shows on the last alone.
    """
    kind = _accelerator()
    count = torch.get_device_module(kind).device_count() if kind else 0
    return tuple(f"{kind}:{index}" for index in sorted({0, count - 1}) if count)


def others(device: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """The devices besides one whose gradients can be held against its own.

    `allowed` are the kinds that a spec limits the target to; empty for any.
    """
    own = device if ":" in device or device == "cpu" else f"{device}:0"
    return tuple(d for d in ("cpu", *accelerators()) if d != own and (not allowed or kind_of(d) in allowed))


def shares_a_gpu(device: str, ranks: int) -> bool:
    """Whether several ranks have to run on one GPU."""
    return device != "cpu" and torch.cuda.device_count() < ranks


def kind_of(device: str) -> str:
    """`cuda` of `cuda:1`."""
    return device.partition(":")[0]


def _accelerator() -> str:
    """The kind of accelerator that torch sees, empty for none."""
    if torch.cuda.is_available():
        return "cuda"
    known: Any = getattr(torch, "accelerator", None)  # since torch 2.6
    if known is None or not known.is_available():
        return ""
    kind = str(known.current_accelerator().type)
    return "" if kind in WITHOUT_FLOAT64 else kind


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Switch TF32 and bfloat16 inside float32 operations off, and on again where they were."""
    before = precisions()
    set_precisions(EXACT)
    try:
        yield
    finally:
        set_precisions(before)
