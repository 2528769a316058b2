"""Seeing every operation that torch runs, without loading torch's compiler for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_COMPILER = "torch._dynamo"


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that is given each operation below autograd.

    Torch keeps its compiler away from what a mode does, and loads it for that (1.4 s, torch 2.13). Where
    nobody else has loaded it, it is nowhere near.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._apart: Callable[..., Any] | None = None

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one operation, an OpOverload, and return its result."""
        raise NotImplementedError

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        if self._apart is None and _COMPILER in sys.modules:
            self._apart = torch.compiler.disable(self.operation)  # type: ignore[no-untyped-call]
        return (self._apart or self.operation)(func, tuple(args), kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch is to load its compiler to keep it away: we do that above."""
        return False
