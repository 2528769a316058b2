"""An `nn.Module` class as a target: its parameters become inputs, its buffers start afresh at each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradverify.model import Parameter, TensorInput
from gradverify.verifier.collect.named import with_keywords


@dataclass(frozen=True)
class BuiltModule:
    """A module ready to be called as a pure function of its inputs and its parameters."""

    call: Callable[..., Any]
    """(arguments of forward, then every parameter in the order of `parameters`) -> what forward returns."""
    parameters: tuple[TensorInput, ...]
    """Named as the module's author calls them: `self.weight`."""


def build_module(
    module_class: type[nn.Module],
    positional: Sequence[Any],
    keywords: Mapping[str, Any],
    *,
    parameters: Sequence[Parameter] = (),
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> BuiltModule:
    """Build the module and turn it into a function.

    `parameters` are those of its forward. Its own are drawn like inputs. Raises whatever building raises.
    """
    model = module_class(*positional, **keywords).to(device=device, dtype=dtype)
    names = [name for name, _ in model.named_parameters()]
    shapes = [tuple(parameter.shape) for parameter in model.parameters()]

    def call(*arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        count = len(arguments) - len(names)
        state: dict[str, Tensor] = dict(zip(names, arguments[count:], strict=True))
        # A buffer that forward writes into (running statistics) would make the second call another one.
        state |= {name: buffer.detach().clone() for name, buffer in model.named_buffers()}

        def forward(*given: Any, **named: Any) -> Any:  # noqa: ANN401
            return torch.func.functional_call(model, state, given, named)

        return with_keywords(forward, parameters, ())(*arguments[:count])

    trained = tuple(
        TensorInput(f"self.{name}", shape, dtype=str(dtype).removeprefix("torch."))
        for name, shape in zip(names, shapes, strict=True)
    )
    return BuiltModule(call, trained)
