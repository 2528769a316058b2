"""An `nn.Module` class as a target: its parameters become inputs, its buffers start afresh at each call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradverify.model import Parameter, TensorInput
from gradverify.verifier.collect.held_state import HeldState, Writes
from gradverify.verifier.collect.named import with_keywords

_PLAIN = (bool, int, float, str, type(None), list, dict, set)
"""Attributes of a module that each call finds as the first one did."""

_OF_TORCH = frozenset(vars(nn.Module()))
"""What every module holds: its parts, its hooks, whether it is in training mode."""


@dataclass(frozen=True)
class BuiltModule:
    """A module ready to be called as a pure function of its inputs and its parameters."""

    call: Callable[..., Any]
    """(arguments of forward, then every parameter in the order of `parameters`) -> what forward returns."""
    parameters: tuple[TensorInput, ...]
    """Named as the module's author calls them: `self.weight`."""
    held: list[Writes]
    """What its first call wrote into its buffers; empty before that call."""


def build_module(
    make: Callable[[], nn.Module],
    *,
    parameters: Sequence[Parameter] = (),
    device: str = "cpu",
    first_arguments: Callable[[], Sequence[Any]] | None = None,
    held: list[Writes] | None = None,
) -> BuiltModule:
    """Build the module in float64 and turn it into a function.

    `parameters` are those of its forward. Its own are drawn like inputs, frozen ones as constants.
    `first_arguments` gives what forward is called with, for lazy modules, which take their shapes from it;
    `held` is what another building of the module wrote at its first call. Raises whatever building raises,
    and the first call of a lazy module.
    """
    model = make().to(device=device, dtype=torch.float64)
    if first_arguments is not None and any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        with torch.no_grad():
            with_keywords(model, parameters, ())(*first_arguments())
    names = [name for name, _ in model.named_parameters()]
    declared = [(tuple(p.shape), p.requires_grad) for p in model.parameters()]
    plain = _plain_attributes(model)
    writes: list[Writes] = [] if held is None else held

    def call(*arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        count = len(arguments) - len(names)
        state: dict[str, Tensor] = dict(zip(names, arguments[count:], strict=True))
        # What forward writes into (running statistics, counters) would make the second call another one.
        buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        for part, attributes in plain:
            vars(part).update({name: _copied(value) for name, value in attributes.items()})
        noted: Writes = []
        mode = HeldState(tuple(buffers.values()), writes[0] if writes else None, noted)

        def forward(*given: Any, **named: Any) -> Any:  # noqa: ANN401
            with mode if buffers else nullcontext():
                return torch.func.functional_call(model, state | buffers, given, named)

        result = with_keywords(forward, parameters, ())(*arguments[:count])
        if not writes:
            writes.append(noted)
        return result

    trained = tuple(
        TensorInput(
            f"self.{name}",
            shape,
            requires_grad=None if requires_grad else False,
        )
        for name, (shape, requires_grad) in zip(names, declared, strict=True)
    )
    return BuiltModule(call, trained, writes)


def _plain_attributes(model: nn.Module) -> list[tuple[nn.Module, dict[str, Any]]]:
    """Numbers, strings, collections and plain tensors that the module and its parts hold before any call."""
    return [
        (part, {k: _copied(v) for k, v in vars(part).items() if _is_plain(v) and k not in _OF_TORCH})
        for part in model.modules()
    ]


def _is_plain(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, _PLAIN) or (isinstance(value, Tensor) and value.is_leaf)


def _copied(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return copy.copy(value)
