"""Inputs against parameters: the same sentences whether the parameters come from source or are live."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gradverify.cases.messages import Path, did_you_mean, nearest, shown
from gradverify.model import Parameter
from gradverify.spec.source import At, Complaint

_NOT_A_TENSOR = {"int", "tuple", "Tuple", "Size", "list", "List", "Sequence", "Iterable"}
"""Annotations for which a bare list is no tensor shape but the value itself."""
_NEUTRAL = {"None", "Optional", "Union", "Annotated"}


@dataclass(frozen=True)
class Signature:
    """How a target is called."""

    label: str
    """`Linear.forward` for a class, the function's own name else."""
    parameters: tuple[Parameter, ...]

    def __str__(self) -> str:
        """Return `Linear.forward(input, weight, bias)`."""
        names = (
            f"*{parameter.name}" if parameter.variadic else parameter.name for parameter in self.parameters
        )
        return f"{self.label}({', '.join(names)})"


def check_inputs(signature: Signature, inputs: Mapping[str, object], path: Path) -> list[Complaint]:
    """Return what is wrong with the names of a function's inputs; `path` is where `inputs` is."""
    signature = _as_given(signature, inputs)
    by_name = {parameter.name: parameter for parameter in signature.parameters}
    complaints: list[Complaint] = []
    meant: set[str] = set()
    for name, raw in inputs.items():
        here = (*path, name)
        parameter = by_name.get(name)
        if parameter is None:
            free = [other for other in by_name if other not in inputs] or list(by_name)
            meant.add(nearest(name, free))
            complaints.append(Complaint(here, _unknown(name, signature, free), At.KEY))
        elif parameter.variadic and not _is_list(raw):
            message = f"`{name}` is the `*{name}` of {signature}: give it a list of tensors, `{{list: […]}}`"
            complaints.append(Complaint(here, message, At.KEY))
        elif parameter.variadic and isinstance(raw, dict) and raw.get("optional") is True:
            message = f"`{name}` is the `*{name}` of {signature}, and never None"
            complaints.append(Complaint((*here, "optional"), message, At.KEY))
        elif isinstance(raw, dict) and not _takes_parameters(by_name, raw):
            message = f"`{raw['parameters']}` is no `*args` parameter of {signature}"
            complaints.append(Complaint((*here, "parameters"), message))
        elif isinstance(raw, list) and is_not_a_tensor(parameter.annotation):
            complaints.append(Complaint(here, _bare_list(parameter)))
    for parameter in signature.parameters:
        required = not (parameter.has_default or parameter.variadic)
        # A misspelt name is one mistake: do not also call the parameter it meant missing.
        if required and parameter.name not in inputs and parameter.name not in meant:
            message = f"`{parameter.name}` of {signature} has no default and needs an input"
            complaints.append(Complaint(path, message, At.KEY))
    return complaints


def _as_given(signature: Signature, inputs: Mapping[str, object]) -> Signature:
    """The signature with what a `*args` parameter holds in its place, unless it is given as a whole."""
    each = (p.parts if p.parts and p.name not in inputs else (p,) for p in signature.parameters)
    return replace(signature, parameters=tuple(p for several in each for p in several))


def check_annotations(signature: Signature, inputs: Mapping[str, object], path: Path) -> list[Complaint]:
    """Return the annotated names that are no parameters; the hook builds the others all the same."""
    names = [parameter.name for parameter in signature.parameters]
    return [
        Complaint((*path, name), _unknown(name, signature, names), At.KEY)
        for name in inputs
        if name not in names
    ]


def _takes_parameters(by_name: Mapping[str, Parameter], raw: Mapping[str, object]) -> bool:
    """Whether what an object's `parameters` names, if it names anything, takes several tensors."""
    named = by_name.get(str(raw.get("parameters", "")))
    return "parameters" not in raw or (named is not None and named.variadic)


def _is_list(raw: object) -> bool:
    return isinstance(raw, dict) and "list" in raw


def is_not_a_tensor(annotation: str) -> bool:
    """Whether an annotation says int, tuple, list or Size, so that a bare list cannot be a tensor's shape."""
    try:
        heads = set(_heads(ast.parse(annotation.strip(), mode="eval").body)) - _NEUTRAL
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return bool(heads) and heads <= _NOT_A_TENSOR


def _heads(node: ast.expr) -> list[str]:
    """Return the outermost names of an annotation: `Optional[Tuple[int, int]]` gives `None` and `Tuple`."""
    match node:
        case ast.Constant(value=str() as text):
            return _heads(ast.parse(text, mode="eval").body)
        case ast.Constant(value=None):
            return ["None"]
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _heads(left) + _heads(right)
        case ast.Subscript(value=value, slice=inner):
            return _subscript_heads(_heads(value), inner)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return [name]
        case _:
            return ["?"]


def _subscript_heads(outer: list[str], inner: ast.expr) -> list[str]:
    members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if outer == ["Annotated"]:
        return _heads(members[0])
    return (
        [head for member in members for head in _heads(member)]
        if outer in (["Optional"], ["Union"])
        else outer
    )


def _unknown(name: str, signature: Signature, free: list[str]) -> str:
    return f"`{shown(name)}` is not a parameter of {signature}{did_you_mean(name, free)}"


def _bare_list(parameter: Parameter) -> str:
    return (
        f"`{parameter.name}` is annotated `{shown(parameter.annotation)}`, and a bare list is the shape "
        "of a tensor: write `{tuple: […]}`, or `{list: […]}` for several tensors"
    )
