"""Uses of parameters in backward, under the names that it takes what was saved by."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from gradverify.verifier.collect.inference.called_names import name_behind
from gradverify.verifier.collect.inference.uses import called_name

Entered = Callable[[ast.Call, Mapping[str, str]], None]
"""Told of a call, and of the parameters by the names that they have at that place."""


@dataclass
class Saved:
    """What `save_for_backward` got: parameters by position, an empty name for what is computed."""

    parameters: list[str] = field(default_factory=list)

    def noting(self, further: Entered | None = None) -> Entered:
        """A listener that notes what is saved, and hands every call on."""

        def note(call: ast.Call, known: Mapping[str, str]) -> None:
            if called_name(call) == "save_for_backward" and not self.parameters:
                starred = any(isinstance(a, ast.Starred) for a in call.args)
                self.parameters += [known.get(name_behind(a), "") for a in call.args] if not starred else []
            if further is not None:
                further(call, known)

        return note

    def in_backward(self, backward: ast.FunctionDef) -> dict[str, str]:
        """Local names of backward that hold a parameter as it was saved."""
        found: dict[str, str] = {}
        for node in ast.walk(backward):
            if isinstance(node, ast.Assign) and _is_saved(node.value):
                found.update(self._taken(node.targets[0]))
        return {name: parameter for name, parameter in found.items() if parameter}

    def _taken(self, target: ast.expr) -> Iterator[tuple[str, str]]:
        match target:
            case ast.Tuple(elts=entries) | ast.List(elts=entries) if len(entries) == len(self.parameters):
                for entry, parameter in zip(entries, self.parameters, strict=True):
                    if isinstance(entry, ast.Name):
                        yield entry.id, parameter
            case _:
                return


def _is_saved(value: ast.expr) -> bool:
    return isinstance(value, ast.Attribute) and value.attr in {"saved_tensors", "saved_variables"}
