"""What a module's forward writes into its buffers, held: state is no function of the inputs.

Running statistics and the vectors of a power iteration are written without a graph, and autograd takes
what is written as constant. So does the derivative that it is held against: later calls find in a buffer
what the first call wrote there. What is written with a graph is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

Writes = list[tuple[int, Tensor]]
"""(which buffer, what it held then) of each write of one call, in order."""


class HeldState(TorchFunctionMode):
    """Notes the writes of a first call; in later ones it puts the same values in their place."""

    def __init__(self, buffers: Sequence[Tensor], held: Writes | None, noted: Writes) -> None:
        """`held` are the writes of the first call, None while it runs; `noted` gets those of this one."""
        super().__init__()
        self._buffers, self._held, self._noted = buffers, held, noted

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Run the function, and see which buffers it has written into."""
        before = [buffer._version for buffer in self._buffers]  # noqa: SLF001 - torch's own name for it
        result = func(*args, **(kwargs or {}))
        for which, (buffer, version) in enumerate(zip(self._buffers, before, strict=True)):
            if buffer._version != version and not buffer.requires_grad:  # noqa: SLF001
                self._hold(which, buffer)
        return result

    def _hold(self, which: int, buffer: Tensor) -> None:
        place = len(self._noted)
        self._noted.append((which, buffer.detach().clone()))
        if self._held is None or place >= len(self._held):
            return
        held, value = self._held[place]
        if held == which and value.shape == buffer.shape:
            # Not a write of the module's: the version counter that autograd compares must not move.
            buffer.data.copy_(value)
