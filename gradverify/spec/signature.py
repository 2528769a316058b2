"""Inputs against parameters: the same sentences whether the parameters come from source or are live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gradverify.cases.messages import Path, did_you_mean, nearest, shown
from gradverify.model import Parameter
from gradverify.source import Signature, is_not_a_tensor
from gradverify.spec.source import Complaint, at_key


def check_inputs(signature: Signature, entry: object, path: Path) -> list[Complaint]:
    """Return what is wrong with the names of the inputs of an entry, which is at `path`."""
    inputs = entry.get("inputs") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(inputs, dict) or not inputs:
        return []
    path = (*path, "inputs")
    if "arguments" in entry:  # only annotated: the hook builds the others all the same
        names = [parameter.name for parameter in signature.parameters]
        wrong = [name for name in inputs if name not in names]
        return [at_key((*path, name), _unknown(name, signature, names)) for name in wrong]
    return _check(_as_given(signature, inputs), inputs, path)


def _check(signature: Signature, inputs: Mapping[str, object], path: Path) -> list[Complaint]:
    by_name = {parameter.name: parameter for parameter in signature.parameters}
    complaints: list[Complaint] = []
    meant: set[str] = set()
    for name, raw in inputs.items():
        here = (*path, name)
        parameter = by_name.get(name)
        if parameter is None:
            free = [other for other in by_name if other not in inputs] or list(by_name)
            meant.add(nearest(name, free))
            complaints.append(at_key(here, _unknown(name, signature, free)))
        elif parameter.variadic and not (isinstance(raw, dict) and "list" in raw):
            message = f"`{name}` is the `*{name}` of {signature}: give it a list of tensors, `{{list: […]}}`"
            complaints.append(at_key(here, message))
        elif parameter.variadic and isinstance(raw, dict) and raw.get("optional") is True:
            message = f"`{name}` is the `*{name}` of {signature}, and never None"
            complaints.append(at_key((*here, "optional"), message))
        elif isinstance(raw, dict) and not _takes_parameters(by_name, raw):
            message = f"`{raw['parameters']}` is no `*args` parameter of {signature}"
            complaints.append(Complaint((*here, "parameters"), message))
        elif isinstance(raw, list) and is_not_a_tensor(parameter.annotation):
            message = (
                f"`{parameter.name}` is annotated `{shown(parameter.annotation)}`, and a bare list is the "
                "shape of a tensor: write `{tuple: […]}`, or `{list: […]}` for several tensors"
            )
            complaints.append(Complaint(here, message))
    for parameter in signature.parameters:
        required = not (parameter.has_default or parameter.variadic)
        # A misspelt name is one mistake: do not also call the parameter it meant missing.
        if required and parameter.name not in inputs and parameter.name not in meant:
            message = f"`{parameter.name}` of {signature} has no default and needs an input"
            complaints.append(at_key(path, message))
    return complaints


def _as_given(signature: Signature, inputs: Mapping[str, object]) -> Signature:
    """The signature with what a `*args` parameter holds in its place, unless it is given as a whole."""
    each = (p.parts if p.parts and p.name not in inputs else (p,) for p in signature.parameters)
    return replace(signature, parameters=tuple(p for several in each for p in several))


def _takes_parameters(by_name: Mapping[str, Parameter], raw: Mapping[str, object]) -> bool:
    """Whether what an object's `parameters` names, if it names anything, takes several tensors."""
    named = by_name.get(str(raw.get("parameters", "")))
    return "parameters" not in raw or (named is not None and named.variadic)


def _unknown(name: str, signature: Signature, free: list[str]) -> str:
    return f"`{shown(name)}` is not a parameter of {signature}{did_you_mean(name, free)}"
