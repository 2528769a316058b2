"""An `nn.Module` class as a target: its parameters become inputs, its buffers start afresh at each call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradverify.model import Parameter, TensorInput
from gradverify.verifier.collect.named import with_keywords
from gradverify.verifier.inputs.arguments import seeded

_PLAIN = (bool, int, float, str, type(None), list, dict, set)
"""Attributes of a module that each call finds as the first one did."""


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
    seed: int = 0,
    parameters: Sequence[Parameter] = (),
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> BuiltModule:
    """Build the module and turn it into a function.

    `parameters` are those of its forward. Its own are drawn like inputs, frozen ones as constants. Raises
    whatever building raises.
    """
    model = seeded(seed, module_class, *positional, **keywords).to(device=device, dtype=dtype)
    names = [name for name, _ in model.named_parameters()]
    declared = [(tuple(p.shape), p.requires_grad) for p in model.parameters()]
    plain = _plain_attributes(model)

    def call(*arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        count = len(arguments) - len(names)
        state: dict[str, Tensor] = dict(zip(names, arguments[count:], strict=True))
        # What forward writes into (running statistics, counters) would make the second call another one.
        state |= {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        for part, attributes in plain:
            vars(part).update({name: copy.copy(value) for name, value in attributes.items()})

        def forward(*given: Any, **named: Any) -> Any:  # noqa: ANN401
            return torch.func.functional_call(model, state, given, named)

        return with_keywords(forward, parameters, ())(*arguments[:count])

    trained = tuple(
        TensorInput(
            f"self.{name}",
            shape,
            dtype=str(dtype).removeprefix("torch."),
            requires_grad=None if requires_grad else False,
        )
        for name, (shape, requires_grad) in zip(names, declared, strict=True)
    )
    return BuiltModule(call, trained)


def _plain_attributes(model: nn.Module) -> list[tuple[nn.Module, dict[str, Any]]]:
    """Numbers, strings and collections that the module and its parts hold, as they are before any call."""
    return [
        (part, {k: copy.copy(v) for k, v in vars(part).items() if isinstance(v, _PLAIN) and k[:1] != "_"})
        for part in model.modules()
    ]
