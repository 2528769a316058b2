"""Parts of an object as one again: a live stand-in to call with, and a recipe that a spec can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.composites import Route
from gradverify.verifier.collect.inference.shapes import Argument, State
from gradverify.verifier.collect.inference.trial import tensor_input
from gradverify.verifier.inputs.stand_ins import Giving, StandIn

LISTED = 2
"""Entries of a list that is gone through."""


class Noting:
    """Notes what is asked of a stand-in in vain."""

    def __init__(self, owner: str, route: Route, misses: dict[tuple[str, Route], None]) -> None:
        """`misses` is an ordered set of (parameter, route to what was asked for)."""
        self.owner, self.route, self.misses = owner, route, misses

    def below(self, step: str) -> Noting:
        """The same for one of its parts."""
        return Noting(self.owner, (*self.route, step), self.misses)

    def __call__(self, name: str) -> None:
        """Note an attribute that is not there."""
        self.misses[self.owner, (*self.route, f".{name}")] = None


def _grouped(values: Mapping[Route, Any]) -> dict[str, dict[Route, Any]]:
    groups: dict[str, dict[Route, Any]] = {}
    for route, value in values.items():
        groups.setdefault(route[0], {})[route[1:]] = value
    return groups


def composed(values: Mapping[Route, Any], noting: Noting) -> Any:  # noqa: ANN401
    """The live object of its parts."""
    if () in values:
        return values[()]
    below = {step: composed(v, noting.below(step)) for step, v in _grouped(values).items()}
    first = next(iter(below))
    if first == "()":
        return Giving(below[first])
    if first[0] == "[":
        return {step[1:-1]: v for step, v in below.items()}
    if first[0] == "#":
        return tuple(below[k] for k in sorted(below, key=lambda s: int(s[1:])))
    if first == "*":
        return [below[first]] * LISTED
    return StandIn(noting=noting, **{step[1:]: v for step, v in below.items() if step[0] == "."})


def recipe_of_parts(parts: Mapping[Route, Any]) -> Any:  # noqa: ANN401
    """What `made` makes the same object of."""
    if () in parts:
        return parts[()]
    below = {step: recipe_of_parts(v) for step, v in _grouped(parts).items()}
    first = next(iter(below))
    if first == "()":
        return {"gives": below[first]}
    if first[0] == "[":
        return {"entries": {step[1:-1]: v for step, v in below.items()}}
    if first[0] == "#":
        return {"tuple": [below[k] for k in sorted(below, key=lambda s: int(s[1:]))]}
    if first == "*":
        return {"list": [below[first]] * LISTED}
    return {"attributes": {step[1:]: v for step, v in below.items() if step[0] == "."}}


def recipe_of_part(argument: Argument, state: State) -> Any:  # noqa: ANN401
    """One part as a recipe."""
    guess = argument.guess
    match guess.kind:
        case Kind.LITERAL:
            first = guess.choices[0]
            return {"tuple": list(first)} if isinstance(first, tuple) else first
        case Kind.SIZE:
            return state.shape(argument)[0]
        case Kind.CALLABLE | Kind.OBJECT:
            path = guess.path if ":" in guess.path else ":".join(guess.path.rsplit(".", 1))
            return {"call": path, "arguments": list(guess.init)} if guess.made else {"object": path}
        case Kind.LIST:
            entries = argument.parts or (argument,) * argument.items
            return {"list": [_tensor_node(p, state) for p in entries]}
        case _:
            return _tensor_node(argument, state)


def _tensor_node(argument: Argument, state: State) -> dict[str, Any]:
    described = tensor_input(argument, state)
    node: dict[str, Any] = {"tensor": list(described.shape), "name": argument.name}
    if described.dtype != "float64":
        node["dtype"] = described.dtype
    if described.domain != "real":
        node["domain"] = described.domain
    if described.range is not None:
        node["range"] = list(described.range)
    if described.structure:
        node["structure"] = described.structure
    if described.layout:
        node["layout"] = described.layout
    if described.value is not None:
        node["value"] = described.value
    return node
