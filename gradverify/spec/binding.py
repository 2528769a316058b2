"""The second stage: what only live objects can tell, after the worker has imported the module.

Inputs of an entry against the parameters of its target: names, `*args`, and what is a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath

from gradverify.cases.messages import Path, did_you_mean, nearest, shown
from gradverify.model import Mistake, Parameter, Target, TargetKind
from gradverify.source import is_not_a_tensor
from gradverify.spec.function import SpecFunction
from gradverify.spec.read import SpecFile
from gradverify.spec.source import Complaint, at_key


def check_against_targets(
    spec: SpecFile, targets: Sequence[Target], *, module: FilePath | None = None
) -> list[Mistake]:
    """Return the inputs that are not parameters of their targets.

    `targets` are those that were found; a skipped function needs none. With `module`, only the functions that
    belong to it are checked: a spec without `module:` may name several.
    """
    by_name = {target.name: target for target in targets}
    functions = spec.functions_of(module) if module else tuple(spec.functions.values())
    entries = spec.document.data["functions"]  # type: ignore[index]
    complaints: list[Complaint] = []
    for function in functions:
        target = by_name.get(function.name)
        if target is not None and not function.plan.skip:
            of_entry = _complaints(function, target, entries[function.key])
            complaints += [one.under(("functions", function.key)) for one in of_entry]
    return spec.document.mistakes(complaints)


def _complaints(
    function: SpecFunction, target: Target, entry: Mapping[str, Mapping[str, object]]
) -> Iterator[Complaint]:
    if function.inputs and not _takes_anything(function, target):
        yield from _of_inputs(target, entry["inputs"], hooked="arguments" in entry)
    if function.plan.init is not None and target.kind is not TargetKind.MODULE:
        yield at_key(("init",), f"`init` builds an nn.Module, and `{target.attribute}` is none")


def _takes_anything(function: SpecFunction, target: Target) -> bool:
    """Whether the names of its parameters are not known: they are then whatever the spec calls them.

    Compiled functions show none, and a wrapper may take `*args` and hand them on.
    """
    names = {parameter.name for parameter in target.parameters}
    hides = all(parameter.variadic for parameter in target.parameters)
    return target.kind is TargetKind.CALLABLE and hides and not names & set(function.inputs)


def _of_inputs(target: Target, inputs: Mapping[str, object], *, hooked: bool) -> Iterator[Complaint]:
    """Check names; what a hook builds is only annotated, and need not be all there is."""
    # What a `*args` parameter holds is in its place, unless it is given as a whole.
    each = (p.parts if p.parts and p.name not in inputs else (p,) for p in target.parameters)
    by_name = {p.name: p for several in each for p in several}
    label = target.attribute.rpartition(":")[2] + ".forward" * (target.kind is TargetKind.FUNCTION)
    call = f"{label}({', '.join('*' * p.variadic + p.name for p in by_name.values())})"
    meant: set[str] = set()
    for name, raw in inputs.items():
        if name not in by_name:
            free = [other for other in by_name if other not in inputs] or list(by_name)
            meant.add(nearest(name, free))
            unknown = f"`{shown(name)}` is not a parameter of {call}{did_you_mean(name, free)}"
            yield at_key(("inputs", name), unknown)
        elif not hooked:
            yield from _of_one(by_name, name, raw, call)
    for name, parameter in by_name.items():
        needed = not (hooked or parameter.has_default or parameter.variadic)
        # A misspelt name is one mistake: do not also call the parameter it meant missing.
        if needed and name not in inputs and name not in meant:
            yield at_key(("inputs",), f"`{name}` of {call} has no default and needs an input")


def _of_one(by_name: Mapping[str, Parameter], name: str, raw: object, call: str) -> Iterator[Complaint]:
    here: Path = ("inputs", name)
    parameter, entry = by_name[name], raw if isinstance(raw, dict) else {}
    named = by_name.get(str(entry.get("parameters")))
    several = f"`{name}` is the `*{name}` of {call}"
    if parameter.variadic and "list" not in entry:
        yield at_key(here, f"{several}: give it a list of tensors, `{{list: […]}}`")
    elif parameter.variadic and entry.get("optional") is True:
        yield at_key((*here, "optional"), f"{several}, and never None")
    elif "parameters" in entry and not (named and named.variadic):
        message = f"`{entry['parameters']}` is no `*args` parameter of {call}"
        yield Complaint((*here, "parameters"), message)
    elif isinstance(raw, list) and is_not_a_tensor(parameter.annotation):
        message = (
            f"`{name}` is annotated `{shown(parameter.annotation)}`, and a bare list is the "
            "shape of a tensor: write `{tuple: […]}`, or `{list: […]}` for several tensors"
        )
        yield Complaint(here, message)
