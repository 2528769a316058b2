"""GV414: inputs that a model trains, `nn.Parameter`s with a gradient already there, and `.backward()`.

Every other call is made on tensors inside of a graph. A backward may ask whether an input is a leaf, add into
`.grad` or `main_grad` by hand, or keep something on the parameter that an optimizer's step makes stale. Two
steps of a training are made, with other values in the second: what each adds to `.grad` and `main_grad`
together has to be the gradient of an ordinary call. What stays on the tensors is state outside ctx (GV816).
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from gradverify.model import Finding, RaisedError, Swept
from gradverify.verifier import guard
from gradverify.verifier.checks.samples import another_draw
from gradverify.verifier.engine import run_every_node
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.module_state import outside_ctx
from gradverify.verifier.questions.again import read_unwritten
from gradverify.verifier.questions.call import called, is_accident
from gradverify.verifier.questions.verified import Variant, Varied, Verified

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


@dataclass(frozen=True)
class Training:
    """Parameters, which live through all steps."""

    parameters: tuple[Parameter, ...]
    when: str

    @staticmethod
    def of(base: Verified, *, with_main_grad: bool) -> Training:
        """The inputs as parameters, with a gradient that is there already."""
        parameters = tuple(Parameter(p.detach().clone()) for p in base.sample.problem.primals)
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, ALREADY_THERE)
            if with_main_grad:
                setattr(parameter, MAIN_GRAD, torch.full_like(parameter, ALREADY_THERE))
        said = f" and a {MAIN_GRAD}" if with_main_grad else ""
        return Training(parameters, f"when the inputs are parameters with a .grad already there{said}")

    def totals(self) -> list[Tensor]:
        """What `.grad` and `main_grad` of each parameter hold together, copied."""
        totals = []
        for parameter in self.parameters:
            held = (parameter.grad, getattr(parameter, MAIN_GRAD, None))
            dense = [t.to_dense() if t.layout is not torch.strided else t for t in held if t is not None]
            totals.append(sum((t.detach() for t in dense), torch.zeros_like(parameter.detach())))
        return totals

    def run(self, steps: Sequence[tuple[str, Verified]]) -> Finding | RaisedError | None:
        """What is wrong in one of the steps, or what is raised there."""
        for said, base in steps:
            with torch.no_grad():
                for parameter, value in zip(self.parameters, base.sample.problem.primals, strict=True):
                    if not torch.equal(parameter, value):
                        parameter.copy_(value)
            before = self.totals()
            result = self._step(base)
            for parameter in self.parameters:  # forward may make its inputs tensors of a subclass
                if type(parameter) is not Parameter:
                    object.__setattr__(parameter, "__class__", Parameter)
            if isinstance(result, Raised):
                return result.error
            wanted = base.inputs.unflatten(base.gradient)
            difference = base.difference(tuple(map(_added, before, self.totals(), wanted)))
            if difference is not None:
                # At other indices a gradient may have entries that nothing writes: no two calls agree there.
                wrong = Variant("GV414", f"{self.when}, {said}", HINT)
                return next(iter(read_unwritten(base.sample)), None) or wrong.differs(base, difference)
        return None

    def _step(self, base: Verified) -> Returned[None] | Raised:
        problem, rest = base.sample.problem, iter(self.parameters)

        def arrange(passed: list[Any]) -> list[Any]:
            pairs = zip(base.sample.arguments, passed, strict=True)
            return [_as_passed(a, next(rest)) if a.differentiable else value for a, value in pairs]

        call = called(base.sample, arrange=arrange)
        if isinstance(call, Raised):
            return call
        pairs = zip(call.value.outputs, base.grad_outputs(), strict=True)
        connected = [(output, g) for output, g in pairs if output.requires_grad]
        problem.counter.backward += 1
        problem.random_states.replay_for_backward()
        with problem.around():
            done = guard.call(run_every_node, *map(list, zip(*connected, strict=True)), keep=False)
        return done if connected and isinstance(done, Raised) else Returned(None)


def as_leaves(base: Verified) -> Varied:
    """Two steps of a training; once more with a `main_grad` where the module speaks of one."""
    other = another_draw(base.sample)
    second = _second(base, other) if other is not None else None
    steps = [
        ("in the first step", base),
        *([("in the second step, at other values", second)] if second else []),
    ]
    lines = linecache.getlines(base.sample.subject.target.file)
    speaks = not lines or any(MAIN_GRAD in line for line in lines)
    for with_main_grad in (False, True)[: 1 + speaks]:
        training = Training.of(base, with_main_grad=with_main_grad)
        found = training.run(steps)
        if found is not None:
            break
    if isinstance(found, RaisedError):
        if with_main_grad or any(words in found.message for words in NOT_IN_PLACE):
            return Varied()  # a fused kernel of a package that may not be here
        raised = Variant("GV414", training.when, HINT)
        return Varied((raised.raised(base, found, "the call", serious=is_accident(found)),))
    pairs = zip(base.names, training.parameters, strict=True)
    left = [f"{name}.{key}" for name, p in pairs for key in vars(p) if key != MAIN_GRAD]
    kept = [replace(f, case=base.sample.where) for f in outside_ctx(left, (), ())]
    return Varied((*([] if found is None else [found]), *kept), Swept(calls=("parameters",)))


def _as_passed(argument: Argument, parameter: Parameter) -> Tensor:
    return parameter if argument.step is None else argument.moved(parameter.clone())


def _second(base: Verified, drawn: tuple[Argument, ...]) -> Verified | None:
    """The call at other values of the same shapes; None where they are not known."""
    return base.at(drawn) if list(map(_shape, drawn)) == list(map(_shape, base.sample.arguments)) else None


def _shape(argument: Argument) -> object:
    is_input = argument.differentiable and isinstance(argument.value, Tensor)
    kind = (argument.value.shape, argument.value.dtype, argument.value.layout) if is_input else None
    return argument.name, argument.differentiable, kind


def _added(before: Tensor, after: Tensor, wanted: Tensor) -> Tensor:
    """What was added to a gradient; what is wanted, where that is all but the rounding of the sum."""
    rounding = ROUNDINGS * torch.finfo(before.dtype).eps * (before.abs() + wanted.abs())
    return torch.where((after - (before + wanted)).abs() <= rounding, wanted, after - before)
