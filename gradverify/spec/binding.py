"""The second stage: what only live objects can tell, after the worker has imported the module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path as FilePath

from gradverify.cases.messages import did_you_mean
from gradverify.model import Mistake, Target, TargetKind
from gradverify.source import Signature
from gradverify.spec.function import SpecFunction
from gradverify.spec.read import SpecFile
from gradverify.spec.signature import check_inputs
from gradverify.spec.source import Complaint, at_key


def check_against_targets(
    spec: SpecFile, targets: Sequence[Target], *, module: FilePath | None = None
) -> list[Mistake]:
    """Return the functions without a target, and inputs that are not parameters of theirs.

    `targets` are what collecting the module gave, functions that only the spec names included. With
    `module`, only the functions that belong to it are checked: a spec without `module:` may name
    several. A skipped function needs no target, since nothing of it is called.
    """
    by_name = {target.name: target for target in targets}
    functions = spec.functions_of(module) if module else tuple(spec.functions.values())
    complaints: list[Complaint] = []
    for function in functions:
        if function.plan.skip:
            continue
        target = by_name.get(function.name)
        if target is not None:
            complaints += _input_complaints(spec, function, target)
            if function.plan.init is not None and target.kind is not TargetKind.MODULE:
                message = f"`init` builds an nn.Module, and `{target.attribute}` is none"
                complaints.append(at_key(("functions", function.key, "init"), message))
        else:
            complaints.append(_missing(spec, function, targets))
    return spec.document.mistakes(complaints)


def _input_complaints(spec: SpecFile, function: SpecFunction, target: Target) -> list[Complaint]:
    if not function.inputs or _takes_anything(function, target):
        return []
    last = target.attribute.rpartition(":")[2]
    label = f"{last}.forward" if target.kind is TargetKind.FUNCTION else last
    data = spec.document.data
    raw = data["functions"][function.key] if isinstance(data, dict) else {}
    return check_inputs(Signature(label, target.parameters), raw, ("functions", function.key))


def _takes_anything(function: SpecFunction, target: Target) -> bool:
    """Whether the names of its parameters are not known: they are then whatever the spec calls them.

    Compiled functions show none, and a wrapper may take `*args` and hand them on.
    """
    names = {parameter.name for parameter in target.parameters}
    hides = all(parameter.variadic for parameter in target.parameters)
    return target.kind is TargetKind.CALLABLE and hides and not names & set(function.inputs)


def _missing(spec: SpecFile, function: SpecFunction, targets: Sequence[Target]) -> Complaint:
    meant = did_you_mean(function.attribute, [target.attribute for target in targets])
    message = f"`{function.attribute}` is not defined in {function.module}{meant}"
    path = ("functions", function.key, "target")
    if path in spec.document.values:
        return Complaint(path, message)
    return at_key(path[:2], message)
