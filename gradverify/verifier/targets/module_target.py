"""An `nn.Module` class as a target: its parameters become inputs, its buffers start afresh at each call.

What a module's forward writes into its buffers, held: state is no function of the inputs.

Running statistics and the vectors of a power iteration are written without a graph, and autograd takes
what is written as constant. So does the derivative that it is held against: later calls find in a buffer
what the first call wrote there. What is written with a graph is left alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from gradverify.model import Parameter, TensorInput
from gradverify.verifier import guard
from gradverify.verifier.targets.operators import with_keywords

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


Build = Callable[[], nn.Module]

Arguments = Callable[[int], Sequence[Any]]
"""What forward is called with at each draw."""

TRAINED = 3
"""Calls in training mode before a module is put into evaluation mode."""


class ModuleState(Enum):
    """What has happened to a module before it is verified."""

    NEW = "as it is built"
    TRAINED = "in evaluation mode"
    """After calls in training mode: what they leave in its buffers is what its users evaluate it with."""


def _train(model: nn.Module, parameters: Sequence[Parameter], arguments: Arguments) -> None:
    """Put a module into evaluation mode, after some training where its forward takes the arguments."""
    kept = [(b, b.detach().clone()) for b in nn.Module.buffers(model)]
    with guard.unmoved(), torch.no_grad():
        guard.RandomStates(0).replay()  # the same at each building
        try:
            for draw in range(TRAINED):
                with_keywords(model, parameters, ())(*arguments(draw))
        except Exception:  # noqa: BLE001 - what a call raises is told where it is verified
            for buffer, value in kept:
                buffer.data.copy_(value)
    model.eval()


@dataclass(frozen=True)
class BuiltModule:
    """A module ready to be called as a pure function of its inputs and its parameters."""

    call: Callable[..., Any]
    """(arguments of forward, then every parameter in the order of `parameters`) -> what forward returns."""
    parameters: tuple[TensorInput, ...]
    """Named as the module's author calls them: `self.weight`."""
    held: list[Writes]
    """What its first call wrote into its buffers; empty before that call."""
    again: Callable[[Sequence[Any]], Callable[..., Any]]
    """Of other arguments, parameters last: the same call, before whose result is returned the same instance
    is called with those of them that are no parameters."""


def build_module(
    make: Build,
    *,
    parameters: Sequence[Parameter] = (),
    arguments: Arguments = lambda _: (),
    device: str = "cpu",
    state: ModuleState = ModuleState.NEW,
    held: list[Writes] | None = None,
) -> BuiltModule:
    """Build the module in float64 and turn it into a function.

    `parameters` are those of its forward. Its own are drawn like inputs, frozen ones as constants. `make`
    gives the same module whenever it is called: what backward evaluates again must find the parameters of
    its own call, so each call has an instance for as long as its graph lives.
    Lazy modules take their shapes from the first of `arguments`, and `state` may ask for calls with them;
    `held` is what another building of the module wrote at its first call. Raises whatever building raises,
    and the first call of a lazy module.
    """

    def built() -> nn.Module:
        model = make().to(device=device, dtype=torch.float64)
        if any(map(is_lazy, _tensors(model))):
            with torch.no_grad():
                with_keywords(model, parameters, ())(*arguments(0))
        if state is ModuleState.TRAINED:
            _train(model, parameters, arguments)
        return model

    first = built()
    declared = [(name, tuple(p.shape), p.requires_grad) for name, p in nn.Module.named_parameters(first)]
    writes: list[Writes] = [] if held is None else held
    instance = _instances(first, built)

    def call(*given_and_own: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        count = len(given_and_own) - len(declared)
        given, values = given_and_own[:count], given_and_own[count:]
        if torch.compiler.is_compiling():
            return with_keywords(_functional(first, values), parameters, ())(*given)
        return _held(instance, values, writes, lambda one: with_keywords(one, parameters, ())(*given))

    def again(others: Sequence[Any]) -> Callable[..., Any]:
        count = len(others) - len(declared)

        def call_twice(*given_and_own: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
            given, values = given_and_own[:count], given_and_own[count:]

            def run(one: nn.Module) -> Any:  # noqa: ANN401
                module = with_keywords(one, parameters, ())
                result = module(*given)
                module(*tree_map(_copied, list(others[:count])))
                return result

            return _held(instance, values, writes, run)

        return call_twice

    trained = tuple(
        TensorInput(f"self.{name}", shape, requires_grad=None if requires_grad else False)
        for name, shape, requires_grad in declared
    )
    return BuiltModule(call, trained, writes, again)


Instances = Callable[[Sequence[Tensor]], tuple[nn.Module, list[Tensor]]]
"""Of parameters: a module that has them, which nothing has called, and its buffers."""


def _instances(first: nn.Module, built: Build) -> Instances:
    """Copies of a module, else further ones that are built."""
    copied = _is_copied_whole(first)

    def instance(values: Sequence[Tensor]) -> tuple[nn.Module, list[Tensor]]:
        # What forward writes into (running statistics, counters) would make the second call another one.
        buffers = [buffer.detach().clone() for buffer in nn.Module.buffers(first)]
        new = (*values, *buffers)
        if copied:
            return copy.deepcopy(first, dict(zip(map(id, _tensors(first)), new, strict=True))), buffers
        with torch.enable_grad():
            model = built()
        _put_in_place(model, new)
        return model, buffers

    return instance


def _functional(model: nn.Module, values: Sequence[Tensor]) -> Callable[..., Any]:
    """A module with these parameters as torch's compiler can trace it."""
    named = {name: value for (name, _), value in zip(nn.Module.named_parameters(model), values, strict=True)}
    named |= {name: buffer.detach().clone() for name, buffer in nn.Module.named_buffers(model)}

    def forward(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return torch.func.functional_call(model, named, args, kwargs)

    return forward


def _held(
    instance: Instances,
    values: Sequence[Tensor],
    writes: list[Writes],
    run: Callable[[nn.Module], Any],
) -> Any:  # noqa: ANN401 - what user code returned
    """Run an instance; what it writes into its buffers is held to what the first call wrote there."""
    model, buffers = instance(values)
    if not buffers or writes == [[]]:
        return run(model)
    noted: Writes = []

    def without() -> Any:  # noqa: ANN401
        noted.clear()
        return run(instance(values)[0])

    mode = HeldState(buffers, writes[0] if writes else None, noted)
    result = guard.under(mode, lambda: run(model), without)
    if not writes:
        writes.append(noted)
    return result


def _tensors(model: nn.Module) -> list[Tensor]:
    """Its parameters and buffers, each once; asked of the class: an instance may have a `buffers`."""
    return [*nn.Module.parameters(model), *nn.Module.buffers(model)]


def _is_copied_whole(model: nn.Module) -> bool:
    """Whether a copy is a module of its own: a function that it holds may still use the first one."""
    held = (leaf for part in model.modules() for leaf in tree_leaves(vars(part)))
    if any(isinstance(one, FunctionType) and one.__closure__ for one in held):
        return False
    return not isinstance(guard.call(copy.deepcopy, model), guard.Raised)


def _put_in_place(model: nn.Module, values: Sequence[Tensor]) -> None:
    """Give a module its parameters and buffers, wherever its parts share them."""
    given = dict(zip(map(id, _tensors(model)), values, strict=True))
    for part in model.modules():
        for kept in (part._parameters, part._buffers):  # noqa: SLF001 - torch has no other name
            slots: dict[str, Any] = kept
            slots.update({key: given[id(tensor)] for key, tensor in slots.items() if tensor is not None})


def _copied(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return copy.copy(value)
