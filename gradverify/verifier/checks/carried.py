"""GV107, a note: parameters that an argument carries into forward, where autograd does not see them.

A Function that is handed a module, as checkpoints and fixed points are, differentiates what its parameters
stand for at most by writing to their `.grad`. They are no inputs, so no check here reaches their gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType

from torch import Tensor, nn

from gradverify.model import Finding, Severity
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import listed_names

NAMED = 3
"""Parameters that are named; of more, so many and their number."""


def carried_parameters(sample: Sample) -> list[Finding]:
    """One note for each argument that carries tensors which require grad, without being one."""
    found = []
    for argument in sample.arguments:
        inputs = {id(tensor) for _, tensor in argument.holds}
        names = [name for name, tensor in _requiring_grad(argument.value) if id(tensor) not in inputs]
        if names:
            found.append(_reported(sample, argument.name, names))
    return found


def _reported(sample: Sample, name: str, carried: list[str]) -> Finding:
    shown = listed_names(carried) if len(carried) <= NAMED else f"`{carried[0]}` and {len(carried) - 1} more"
    one = len(carried) == 1
    which = "requires grad and is no input" if one else "require grad and are no inputs"
    whose = "its" if one else "their"
    return sample.finding(
        "GV107",
        f"`{name}` carries {shown}, which {which} of forward: {whose} gradient was not verified",
        hint="Autograd gives a gradient to arguments of `apply` alone: hand parameters over one by one.",
        input=name,
        severity=Severity.NOTE,
    )


def _requiring_grad(value: object) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors inside of an object, or of what a bound method belongs to.

    The base class lists parameters: a method that an author overrides is not called here.
    """
    owner = value.__self__ if isinstance(value, MethodType) else value
    if isinstance(owner, nn.Module):
        yield from ((name, p) for name, p in nn.Module.named_parameters(owner) if p.requires_grad)
    elif not isinstance(owner, Tensor):
        held = getattr(owner, "__dict__", {})
        yield from (
            (name, one) for name, one in held.items() if isinstance(one, Tensor) and one.requires_grad
        )
