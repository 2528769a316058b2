"""GV414: inputs that a model trains, `nn.Parameter`s with a gradient already there, and `.backward()`.

Every other call is made on tensors inside of a graph. A backward may ask whether an input is a leaf, add into
`.grad` or `main_grad` by hand, or keep something on the parameter that an optimizer's step makes stale. Two
steps of a training are made, with other values in the second: what each adds to `.grad` and `main_grad`
together has to be the gradient of an ordinary call. What stays on the tensors is state outside ctx (GV816).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from gradverify.model import Finding
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.engine import run_every_node
from gradverify.verifier.guard.module_state import outside_ctx
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.questions.again import read_unwritten
from gradverify.verifier.questions.call import called
from gradverify.verifier.questions.verified import Variant, Varied, Verified, drawn_again, lines_of

ALREADY_THERE = 0.5
"""What `.grad` holds before, and `main_grad`: a gradient that is written over it is not added to it."""

ROUNDINGS = 4.0
"""Roundings, relative to the sum, of a gradient that is added to what is there."""

MAIN_GRAD = "main_grad"
"""The attribute of a parameter that fused kernels add to, in place of `.grad`."""

NOT_IN_PLACE = ("a leaf Variable that requires grad", "a view of a leaf Variable")
"""What torch says of a forward that writes into a leaf."""

HINT = (
    "Backward returns the gradient and autograd adds it to .grad. Look for is_leaf, isinstance(x, "
    "nn.Parameter), .grad, main_grad, or something kept on the tensor that is stale once its values change."
)


def as_leaves(base: Verified) -> Varied:
    """Two steps of a training; once more with a `main_grad` where the module speaks of one."""
    drawn = drawn_again(base.sample)
    second = None if drawn is None else base.at(drawn)
    lines = lines_of(base.sample.subject)
    speaks = not lines or any(MAIN_GRAD in line for line in lines)
    for held in (("grad",), ("grad", MAIN_GRAD))[: 1 + speaks]:
        parameters = tuple(Parameter(p.detach().clone()) for p in base.sample.problem.primals)
        said = "when the inputs are parameters with a .grad already there"
        said += f" and a {MAIN_GRAD}" if MAIN_GRAD in held else ""
        found = _step(base, parameters, held, Variant("GV414", f"{said}, in the first step", HINT))
        if found is None and second is not None:
            variant = Variant("GV414", f"{said}, in the second step, at other values", HINT)
            found = _step(second, parameters, held, variant)
        if found is not None:
            break
    if found is not None and found.raised is not None:
        # A fused kernel of a package that may not be here; a forward that writes into a leaf.
        is_refused = MAIN_GRAD in held or any(words in found.raised.message for words in NOT_IN_PLACE)
        return Varied.of(None if is_refused else found)
    pairs = zip(base.names, parameters, strict=True)
    left = [f"{name}.{key}" for name, p in pairs for key in vars(p) if key != MAIN_GRAD]
    kept = [replace(f, case=base.sample.where) for f in outside_ctx(left, (), ())]
    return Varied.of(found, *kept, calls=["parameters"])


def _step(
    base: Verified, parameters: tuple[Parameter, ...], held: Sequence[str], variant: Variant
) -> Finding | None:
    """What is wrong in a step of a training at the values of a call, or what is raised there.

    `held`: the attributes of a parameter that hold a gradient.
    """
    sample, problem, rest = base.sample, base.sample.problem, iter(parameters)
    for parameter, value in zip(parameters, problem.primals, strict=True):
        with torch.no_grad():
            if not torch.equal(parameter, value):
                parameter.copy_(value)
        for name in held:
            setattr(parameter, name, torch.full_like(parameter, ALREADY_THERE))

    def arrange(passed: list[Any]) -> list[Any]:
        pairs = zip(sample.arguments, passed, strict=True)
        return [_as_passed(a, next(rest)) if a.differentiable else value for a, value in pairs]

    call = called(sample, arrange=arrange)
    if isinstance(call, Raised):
        return variant.raised(base, call.error, "the call")
    pairs = zip(call.value.outputs, base.grad_outputs(), strict=True)
    connected = [(output, g) for output, g in pairs if output.requires_grad]
    problem.counter.backward += 1
    problem.random_states.replay_for_backward()
    with problem.around():
        done = guard.call(run_every_node, *map(list, zip(*connected, strict=True)), keep=False)
    if connected and isinstance(done, Raised):
        return variant.raised(base, done.error, "the call")
    for parameter in parameters:  # forward may make its inputs tensors of a subclass
        if type(parameter) is not Parameter:
            object.__setattr__(parameter, "__class__", Parameter)
    wanted = base.inputs.unflatten(base.gradient)
    added = tuple(_added(p, held, g) for p, g in zip(parameters, wanted, strict=True))
    difference = base.difference(added)
    if difference is None:
        return None
    # At other indices a gradient may have entries that nothing writes: no two calls agree there.
    return next(iter(read_unwritten(sample)), None) or variant.differs(base, difference)


def _as_passed(argument: Argument, parameter: Parameter) -> Tensor:
    return parameter if argument.step is None else argument.moved(parameter.clone())


def _added(parameter: Parameter, held: Sequence[str], wanted: Tensor) -> Tensor:
    """What was added to a gradient; what is wanted, where that is all but the rounding of the sum."""
    there = [one.detach() for name in held if (one := getattr(parameter, name)) is not None]
    after = sum((t if t.layout is torch.strided else t.to_dense() for t in there), torch.zeros_like(wanted))
    before = ALREADY_THERE * len(held)
    rounding = ROUNDINGS * torch.finfo(wanted.dtype).eps * (before + wanted.abs())
    return torch.where((after - (before + wanted)).abs() <= rounding, wanted, after - before)
