"""What stands for a function, a module or an object of the author's where nobody says what is passed.

A spec names one as `{object: gradverify.verifier.inputs.stand_ins.made, init: ['{...}']}`: the string is JSON
and says what the object holds.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradverify.model import Nested, Point, TensorInput
from gradverify.verifier.inputs.tensors import build_tensor

STAND_IN = "gradverify.verifier.inputs.stand_ins.StandIn"
"""What a spec calls the class of stand-ins by."""

MADE = "gradverify.verifier.inputs.stand_ins.made"
"""What a spec calls an object by that is put together."""

SEED = 11
"""Of the tensors that an object holds: they are the same in every case."""


class StandIn(nn.Module):
    """A smooth function of whatever it gets, without parameters, that may hold attributes.

    It keeps the shape of the largest tensor; with `returns` it gives so many different ones in a tuple.
    """

    def __init__(
        self,
        returns: int = 0,
        noting: Callable[[str], None] | None = None,
        **held: Any,  # noqa: ANN401
    ) -> None:
        """`noting` is told of an attribute that is asked for in vain."""
        super().__init__()
        self._returns, self._noting = returns, noting
        for name, value in held.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Raises `AttributeError` as any object, and tells of it."""
        noting = self.__dict__.get("_noting")
        if noting is not None and not name.startswith("_"):
            noting(name)
        return super().__getattr__(name)

    def forward(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        """The hyperbolic tangent of the largest tensor, plus a part of every other that fits its shape."""
        tensors = list(_floats([*given, *named.values()]))
        if not tensors:
            return 0.75
        first = max(range(len(tensors)), key=lambda k: tensors[k].numel())
        whole = tensors[first]
        value = whole.tanh()
        for place, other in enumerate(tensors):
            if place != first and _fits(other, whole):
                value = value + (other * (0.5 + place)).sin() / 4
        return tuple(value * (1 + 0.5 * k) for k in range(self._returns)) if self._returns else value


class Giving:
    """A function that gives the same whatever it gets."""

    def __init__(self, value: Any) -> None:  # noqa: ANN401
        self._value = value

    def __call__(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        """What it holds; a tensor as a copy, which may be written into."""
        del given, named
        return self._value.clone() if isinstance(self._value, Tensor) else self._value


def _floats(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            yield value
        elif isinstance(value, list | tuple):
            yield from _floats(value)
        elif isinstance(value, dict):
            yield from _floats(list(value.values()))


def _fits(other: Tensor, whole: Tensor) -> bool:
    try:
        return other.expand(whole.shape).shape == whole.shape
    except RuntimeError:
        return False


def made(recipe: str) -> Any:  # noqa: ANN401
    """The object that a recipe describes. Raises whatever a class raises that it names."""
    return _built(json.loads(recipe))


def _built(node: Any) -> Any:  # noqa: ANN401, PLR0911 - one for each form
    match node:
        case {"tensor": shape}:
            return _tensor(shape, node)
        case {"list": entries}:
            return [_built(e) for e in entries]
        case {"modules": entries}:
            return nn.ModuleList([_built(e) for e in entries])
        case {"tuple": entries}:
            return tuple(_built(e) for e in entries)
        case {"entries": entries}:
            return {key: _built(e) for key, e in entries.items()}
        case {"attributes": entries}:
            return StandIn(node.get("returns", 0), **{key: _built(e) for key, e in entries.items()})
        case {"gives": value}:
            return Giving(_built(value))
        case {"object": path}:
            return named(path)
        case {"call": path}:
            built = named(path)(*(_built(e) for e in node.get("arguments", ())))
            return built.to(torch.float64) if isinstance(built, nn.Module) else built
        case _:
            return node


def _tensor(shape: Sequence[int], node: dict[str, Any]) -> Tensor:
    low, high = node.get("range", (0.0, 0.0))
    described = TensorInput(
        node.get("name", "held"),
        tuple(shape),
        dtype=node.get("dtype", "float64"),
        domain=node.get("domain", "real"),
        range=(low, high) if "range" in node else None,
        value=_tuples(node["value"]) if "value" in node else None,
        layout=node.get("layout", ""),
        structure=node.get("structure", ""),
        requires_grad=False,
    )
    return build_tensor(described, SEED, Point.TYPICAL, 0, "cpu")


def _tuples(value: Any) -> Nested:  # noqa: ANN401 - what JSON gives
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def named(path: str) -> Any:  # noqa: ANN401
    """What `module:attribute` names; the module may be called by its last name where it is loaded."""
    where, _, attribute = path.partition(":")
    found = sys.modules.get(where) or _by_last_name(where) or importlib.import_module(where)
    for part in attribute.split(".") if attribute else ():
        found = getattr(found, part)
    return found


def _by_last_name(where: str) -> Any:  # noqa: ANN401
    if "." in where:
        return None
    endings = (f".{where}", f"_gradverify_target_{where}")
    return next((m for name, m in list(sys.modules.items()) if name.endswith(endings)), None)
