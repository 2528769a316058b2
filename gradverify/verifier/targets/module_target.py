"""An `nn.Module` class as a target: its parameters become inputs, its buffers start afresh at each call.

What a module's forward writes into its buffers, held: state is no function of the inputs.

Running statistics and the vectors of a power iteration are written without a graph, and autograd takes
what is written as constant. So does the derivative that it is held against: later calls find in a buffer
what the first call wrote there. What is written with a graph is left alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
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


_PLAIN = (bool, int, float, str, type(None), list, dict, set)
"""Attributes of a module that each call finds as the first one did."""

_OF_TORCH = frozenset(vars(nn.Module()))
"""What every module holds: its parts, its hooks, whether it is in training mode."""

MOST_OUTSTANDING = 8
"""Instances that are waited for. What is held beyond them lives for as long as its holders do."""

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


def _in_state(
    model: nn.Module, state: ModuleState, parameters: Sequence[Parameter], arguments: Arguments
) -> None:
    if state is not ModuleState.NEW:
        with torch.random.fork_rng(devices=[]):  # the same at each building
            torch.manual_seed(0)
            _evaluating(model, parameters, arguments)


def _evaluating(model: nn.Module, parameters: Sequence[Parameter], arguments: Arguments) -> None:
    """Put a module into evaluation mode, after some training where its forward takes the arguments."""
    kept = [(b, b.detach().clone()) for b in nn.Module.buffers(model)]
    try:
        with torch.no_grad():
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
        # Asked of the class: an instance may have an attribute called `buffers`.
        tensors = (*nn.Module.parameters(model), *nn.Module.buffers(model))
        if any(map(is_lazy, tensors)):
            with torch.no_grad():
                with_keywords(model, parameters, ())(*arguments(0))
        _in_state(model, state, parameters, arguments)
        return model

    pool = _Pool(built)
    model = pool.first
    declared = [(name, tuple(p.shape), p.requires_grad) for name, p in nn.Module.named_parameters(model)]
    writes: list[Writes] = [] if held is None else held

    def call(*given_and_own: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        count = len(given_and_own) - len(declared)
        given, values = given_and_own[:count], given_and_own[count:]
        if torch.compiler.is_compiling():
            named = {name: value for (name, *_), value in zip(declared, values, strict=True)}
            named |= {name: buffer.detach().clone() for name, buffer in nn.Module.named_buffers(model)}

            def forward(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
                return torch.func.functional_call(model, named, args, kwargs)

            return with_keywords(forward, parameters, ())(*given)
        return _called(pool, values, writes, lambda one: with_keywords(one, parameters, ())(*given))

    def again(others: Sequence[Any]) -> Callable[..., Any]:
        count = len(others) - len(declared)

        def call_twice(*given_and_own: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
            given, values = given_and_own[:count], given_and_own[count:]

            def run(one: nn.Module) -> Any:  # noqa: ANN401
                module = with_keywords(one, parameters, ())
                result = module(*given)
                module(*tree_map(_copied, list(others[:count])))
                return result

            return _called(pool, values, writes, run)

        return call_twice

    trained = tuple(
        TensorInput(f"self.{name}", shape, requires_grad=None if requires_grad else False)
        for name, shape, requires_grad in declared
    )
    return BuiltModule(call, trained, writes, again)


def _called(
    pool: _Pool, values: Sequence[Tensor], writes: list[Writes], run: Callable[[nn.Module], Any]
) -> Any:  # noqa: ANN401 - what user code returned
    """Run an instance with parameters and fresh buffers; what it writes into them is held to the first."""
    instance = pool.taken()
    lease = _Lease(pool, instance)
    buffers = instance.fill(values)
    if not buffers or writes == [[]]:
        result = run(instance.model)
    else:
        result = _held(instance, buffers, values, writes, run)
    lease.bind(result)
    return result


def _held(
    instance: _Instance,
    buffers: Sequence[Tensor],
    values: Sequence[Tensor],
    writes: list[Writes],
    run: Callable[[nn.Module], Any],
) -> Any:  # noqa: ANN401 - what user code returned
    """Run it while what it writes into its buffers is held to what the first call wrote there."""
    noted: Writes = []

    def without() -> Any:  # noqa: ANN401
        noted.clear()
        instance.fill(values)
        return run(instance.model)

    mode = HeldState(buffers, writes[0] if writes else None, noted)
    result = guard.under(mode, lambda: run(instance.model), without)
    if not writes:
        writes.append(noted)
    return result


Slot = tuple[dict[str, Any], str]
"""Where a module keeps a tensor."""


@dataclass(frozen=True)
class _Instance:
    """A module that a graph may evaluate again, whole or in part."""

    model: nn.Module
    parts: tuple[nn.Module, ...]
    parameters: tuple[tuple[Slot, ...], ...]
    """Where each parameter is: in several places where parts share it."""
    buffers: tuple[tuple[Slot, ...], ...]
    own: tuple[tuple[Slot, Any], ...]
    """What is there between calls."""
    plain: tuple[dict[str, Any], ...]
    """Numbers, strings, collections and plain tensors that each part holds before any call."""

    @staticmethod
    def of(model: nn.Module) -> _Instance:
        """An instance that nothing has called yet."""
        parts = tuple(model.modules())
        parameters = _places([p._parameters for p in parts])  # noqa: SLF001 - torch has no other name
        buffers = _places([p._buffers for p in parts])  # noqa: SLF001
        slots = [slot for places in (*parameters, *buffers) for slot in places]
        own = tuple((slot, slot[0][slot[1]]) for slot in slots)
        plain = tuple(
            {k: _copied(v) for k, v in vars(part).items() if _is_plain(v) and k not in _OF_TORCH}
            for part in parts
        )
        return _Instance(model, parts, parameters, buffers, own, plain)

    def fill(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Give it parameters, and buffers and attributes as they were; returns the buffers."""
        self.reset()
        for places, value in zip(self.parameters, values, strict=True):
            for where, key in places:
                where[key] = value
        buffers = []
        for places in self.buffers:
            # What forward writes into (running statistics, counters) would make the second call another one.
            buffers.append(places[0][0][places[0][1]].detach().clone())
            for where, key in places:
                where[key] = buffers[-1]
        for part, attributes in zip(self.parts, self.plain, strict=True):
            vars(part).update({name: _copied(value) for name, value in attributes.items()})
        return buffers

    def reset(self) -> None:
        """Let go of the tensors of a call."""
        for (where, key), tensor in self.own:
            where[key] = tensor


class _Pool:
    """The instances of a module: those that are free, and in order of their calls those that are not."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._free = [_Instance.of(build())]
        self.first = self._free[0].model
        self._busy: dict[int, _Instance] = {}

    def taken(self) -> _Instance:
        """One that no graph needs: built, where there is none."""
        if not self._free:
            with torch.enable_grad():
                self._free.append(_Instance.of(self._build()))
        instance = self._free.pop()
        self._busy[id(instance)] = instance
        if len(self._busy) > MOST_OUTSTANDING:
            del self._busy[next(iter(self._busy))]
        return instance

    def give_back(self, number: int) -> None:
        """Let an instance go that was taken, by its `id`; one that is waited for no longer stays away."""
        instance = self._busy.pop(number, None)
        if instance is not None:
            instance.reset()
            self._free.append(instance)


class _Lease:
    """What an instance is taken for: it ends with the graph of the call.

    It does not hold the instance. One that keeps its own result would live forever.
    """

    def __init__(self, pool: _Pool, instance: _Instance) -> None:
        self._pool, self._number = pool, id(instance)

    def bind(self, result: Any) -> None:  # noqa: ANN401 - what user code returned
        """Last for as long as the graph behind a result."""
        for node in filter(None, map(_node, _tensors(result))):
            node.metadata.setdefault(_Lease, []).append(self)

    def __del__(self) -> None:
        self._pool.give_back(self._number)


def _tensors(result: Any) -> Iterator[Tensor]:  # noqa: ANN401 - what user code returned
    for leaf in tree_leaves(result):
        if isinstance(leaf, Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            yield from _tensors([getattr(leaf, f.name) for f in fields(leaf)])


def _node(tensor: Tensor) -> Any:  # noqa: ANN401 - any node of a graph
    try:
        return tensor.grad_fn
    except RuntimeError:  # a view whose base was written to: backward raises the same
        return None


def _places(kept: Sequence[dict[str, Any]]) -> tuple[tuple[Slot, ...], ...]:
    """The slots of each tensor, in the order in which modules name them."""
    found: dict[int, list[Slot]] = {}
    for where in kept:
        for key, tensor in where.items():
            if tensor is not None:
                found.setdefault(id(tensor), []).append((where, key))
    return tuple(map(tuple, found.values()))


def _is_plain(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, _PLAIN) or (isinstance(value, Tensor) and value.is_leaf)


def _copied(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return copy.copy(value)
