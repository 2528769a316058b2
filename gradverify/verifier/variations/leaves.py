"""GV414: inputs that a model trains, `nn.Parameter`s with a gradient already there, and `.backward()`.

Every other call is made on tensors inside of a graph. A backward may ask whether an input is a leaf, add into
`.grad` or `main_grad` by hand, or keep something on the parameter that an optimizer's step makes stale. Two
steps of a training are made, with other values in the second: what each adds to `.grad` and `main_grad`
together has to be the gradient of an ordinary call. What stays on the tensors is state outside ctx (GV816).

GV406: the gradient of an input must not depend on which other inputs require grad.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Finding, RaisedError, Severity, Swept
from gradverify.verifier import guard
from gradverify.verifier.checks.samples import another_draw
from gradverify.verifier.checks.wording import listed_names
from gradverify.verifier.engine import run_every_node
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.arguments import Argument, arguments_of_call
from gradverify.verifier.module_state import outside_ctx
from gradverify.verifier.numerics.calling import returned_tensors
from gradverify.verifier.variations.call import called, is_accident, is_refusal
from gradverify.verifier.variations.uninitialized import read_unwritten
from gradverify.verifier.variations.verified import Variant, Varied, Verified

ALL_SUBSETS = 4
"""Up to so many differentiable inputs every subset is tried; beyond, singles and all but one."""

HINT_OF_A_SUBSET = (
    "Test ctx.needs_input_grad for each gradient separately, save what every one of them needs, and return "
    "them at the places of their own inputs."
)


def requires_grad_subsets(base: Verified) -> Varied:
    """Forward and backward with some of the inputs frozen."""
    count = len(base.names)
    swept = [_key(base, frozenset(range(count)))]
    refused: Finding | None = None
    for chosen in _subsets(count, singles=base.sample.subject.brief):
        finding = _with_subset(base, chosen)
        if finding is None:
            swept.append(_key(base, chosen))
        elif finding.severity is Severity.ERROR:
            return Varied((finding,), Swept(requires_grad=(*swept, _key(base, chosen))))
        else:
            refused = refused or finding
    return Varied(() if refused is None else (refused,), Swept(requires_grad=tuple(swept)))


def _subsets(count: int, *, singles: bool) -> Iterator[frozenset[int]]:
    """Proper subsets, the smallest first: a finding should name the fewest inputs."""
    sizes = range(1, count) if count <= ALL_SUBSETS else dict.fromkeys((1, count - 1))
    sizes = range(1, min(count, 2)) if singles else sizes
    for size in sizes:
        yield from map(frozenset, combinations(range(count), size))


def singles_and_all_but_one(some: int, count: int) -> Iterator[frozenset[int]]:
    """Each of the first `some` of `count` inputs alone, then all but each of these."""
    if count > 1:
        yield from (frozenset({k}) for k in range(some))
    if count > 2:
        yield from (frozenset(range(count)) - {k} for k in range(some))


def _key(base: Verified, chosen: frozenset[int]) -> str:
    return ",".join(base.names[i] for i in sorted(chosen))


def _with_subset(base: Verified, chosen: frozenset[int]) -> Finding | None:
    names = listed_names([base.names[i] for i in sorted(chosen)])
    when = f"when only {names} require{'s' if len(chosen) == 1 else ''} grad"
    variant = Variant("GV406", when, HINT_OF_A_SUBSET)
    call = called(base.sample, frozen=frozenset(range(len(base.names))) - chosen)
    if isinstance(call, Raised):
        return variant.raised(base, call.error, "forward")
    found = variant.gradient(base, call.value, only=chosen)
    if isinstance(found, Finding):
        return found
    if found is not None:
        said = variant.raised(base, found, serious=is_accident(found) or not is_refusal(found))
        # Whoever freezes parameters of a module reads what it raises at once, and no gradient is wrong.
        held = {name for a in base.sample.arguments for name, _ in a.holds}
        freezes = base.sample.problem.of_module or any(
            name in held for k, name in enumerate(base.names) if k not in chosen
        )
        is_loud = freezes and said.severity is Severity.ERROR
        return replace(said, severity=Severity.WARNING) if is_loud else said
    return variant.forward(base, call.value.outputs)


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
class Step:
    """One step of the training: a call at some values, and the gradient of an ordinary call there."""

    base: Verified
    said: str


def as_leaves(base: Verified) -> Varied:
    """Two steps of a training; once more with a `main_grad` where the module speaks of one."""
    if not base.sample.subject.is_first_of_options:
        return Varied()
    steps = [Step(base, "in the first step"), *_second(base)]
    training = _Training(base, with_main_grad=False)
    found = training.run(steps)
    if found is None and _speaks_of_main_grad(base):
        training = _Training(base, with_main_grad=True)
        found = training.run(steps)
    if isinstance(found, RaisedError):
        in_place = any(words in found.message for words in NOT_IN_PLACE)
        if in_place or training.with_main_grad:  # a fused kernel of a package that may not be here
            return Varied()
        variant = Variant("GV414", training.when, HINT)
        return Varied((variant.raised(base, found, "the call", serious=is_accident(found)),))
    kept = [replace(f, case=base.sample.where) for f in outside_ctx(training.kept(), (), ())]
    return Varied((*([] if found is None else [found]), *kept), Swept(calls=("parameters",)))


def _second(base: Verified) -> list[Step]:
    """The second step, at other values of the same shapes; none where they are not known."""
    drawn = another_draw(base.sample)
    if drawn is None or len(drawn) != len(base.sample.arguments):
        return []
    if not all(_alike(a, b) for a, b in zip(base.sample.arguments, drawn, strict=True)):
        return []
    problem = replace(base.sample.problem, arguments=drawn)
    gradient = problem.pull_back(problem.primals, base.grad_outputs())
    if isinstance(gradient, Raised):
        return []
    flat = base.inputs.flatten(gradient.value)
    sample = replace(base.sample, arguments=drawn, problem=problem)
    there = replace(base, sample=sample, gradient=flat)
    return [Step(there, "in the second step, at other values")] if flat.isfinite().all() else []


def _alike(one: Argument, other: Argument) -> bool:
    if one.name != other.name or one.differentiable != other.differentiable:
        return False
    a, b = one.value, other.value
    if not one.differentiable or not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return True
    return a.shape == b.shape and a.dtype == b.dtype and a.layout is b.layout


def _added(before: Tensor, after: Tensor, wanted: Tensor) -> Tensor:
    """What was added to a gradient; what is wanted, where that is all but the rounding of the sum."""
    rounding = ROUNDINGS * torch.finfo(before.dtype).eps * (before.abs() + wanted.abs())
    return torch.where((after - (before + wanted)).abs() <= rounding, wanted, after - before)


class _Training:
    """The parameters, which live through all steps."""

    def __init__(self, base: Verified, *, with_main_grad: bool) -> None:
        self._base = base
        self.with_main_grad = with_main_grad
        self._parameters = [torch.nn.Parameter(p.detach().clone()) for p in base.sample.problem.primals]
        self._classes = [*map(type, self._parameters)]
        for parameter in self._parameters:
            parameter.grad = torch.full_like(parameter, ALREADY_THERE)
            if with_main_grad:
                setattr(parameter, MAIN_GRAD, torch.full_like(parameter, ALREADY_THERE))
        self.when = "when the inputs are parameters with a .grad already there" + (
            f" and a {MAIN_GRAD}" if with_main_grad else ""
        )

    def run(self, steps: Sequence[Step]) -> Finding | RaisedError | None:
        """What is wrong in one of the steps, or what is raised there."""
        for step in steps:
            with torch.no_grad():
                for parameter, value in zip(self._parameters, step.base.sample.problem.primals, strict=True):
                    if not torch.equal(parameter, value):
                        parameter.copy_(value)
            before = self._totals()
            result = self._step(step.base)
            self._restore_classes()
            if isinstance(result, Raised):
                return result.error
            wanted = step.base.inputs.unflatten(step.base.gradient)
            added = tuple(map(_added, before, self._totals(), wanted))
            difference = step.base.difference(added)
            if difference is not None:
                # At other indices a gradient may have entries that nothing writes: no two calls agree there.
                unwritten = read_unwritten(step.base.sample)
                wrong = Variant("GV414", f"{self.when}, {step.said}", HINT)
                return next(iter(unwritten), None) or wrong.differs(step.base, difference)
        return None

    def _restore_classes(self) -> None:
        """Forward may make its inputs tensors of a subclass that has operations of its own."""
        for parameter, kind in zip(self._parameters, self._classes, strict=True):
            if type(parameter) is not kind:
                object.__setattr__(parameter, "__class__", kind)

    def kept(self) -> list[str]:
        """Attributes that the calls left on the parameters."""
        pairs = zip(self._base.names, self._parameters, strict=True)
        return [f"{name}.{key}" for name, p in pairs for key in vars(p) if key != MAIN_GRAD]

    def _totals(self) -> list[Tensor]:
        """What `.grad` and `main_grad` of each parameter hold together, copied."""
        totals = []
        for parameter in self._parameters:
            held = (parameter.grad, getattr(parameter, MAIN_GRAD, None))
            dense = [t.to_dense() if t.layout is not torch.strided else t for t in held if t is not None]
            totals.append(sum((t.detach() for t in dense), torch.zeros_like(parameter.detach())))
        return totals

    def _step(self, base: Verified) -> Returned[None] | Raised:
        problem, arguments = base.sample.problem, base.sample.arguments
        rest = iter(self._parameters)
        passed: list[Any] = []
        with torch.enable_grad():
            for argument in arguments:
                value = argument.value
                if argument.differentiable:
                    parameter = next(rest)
                    value = parameter if argument.step is None else argument.moved(parameter.clone())
                elif isinstance(value, Tensor):
                    value = value.clone()
                passed.append(value)
        problem.counter.forward += 1
        problem.counter.backward += 1
        problem.random_states.replay()
        with torch.enable_grad(), problem.around():
            result = guard.call(problem.function, *arguments_of_call(arguments, passed))
        if isinstance(result, Raised):
            return result
        returned = returned_tensors(result.value)
        pairs = zip(problem.output_positions, base.grad_outputs(), strict=True)
        connected = [(returned[p], g) for p, g in pairs if returned[p].requires_grad]
        if not connected:
            return Returned(None)
        problem.random_states.replay_for_backward()
        with problem.around():
            done = guard.call(run_every_node, *map(list, zip(*connected, strict=True)), keep=False)
        return done if isinstance(done, Raised) else Returned(None)


def _speaks_of_main_grad(base: Verified) -> bool:
    """Whether the file of the target has the word; so it is taken where it cannot be read."""
    lines = linecache.getlines(base.sample.subject.target.file)
    return not lines or any(MAIN_GRAD in line for line in lines)
