"""The verified gradient that every changed call must reproduce, and when a difference from it counts.

A call is under our control: which inputs require grad, how each argument lies in memory. Another layout sums
in another order: what `witnesses/rounding.py` says that rounding moves is no difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Finding, Point, RaisedError, Severity, TargetKind, indexed
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.guard.memory import filled_memory
from gradverify.verifier.inputs.arguments import Argument, arguments_of_call
from gradverify.verifier.numerics.calling import (
    Gradients,
    Tensors,
    copies,
    differentiate_in_place,
    returned_tensors,
)
from gradverify.verifier.numerics.problem import OTHER_OUTPUTS, Layout
from gradverify.verifier.questions.findings import OTHER_VALUES, apart, number
from gradverify.verifier.questions.subject import Sample, Subject, arguments_at, first_line
from gradverify.verifier.questions.witnessing import largest, options_of
from gradverify.verifier.witnesses.claim import Map, rows_at
from gradverify.verifier.witnesses.rounding import FACTOR, OF_A_ROW, spread
from gradverify.verifier.witnesses.values import probe

Arrange = Callable[[list[Any]], list[Any]]
"""What the target is given in place of some arguments: most often the same values elsewhere in memory."""

ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "TypeError"}
)
"""Exceptions that are never raised to refuse something."""

ACCIDENTAL_WORDS = ("to unpack", "saved tensors", "modified by an inplace operation", "incorrect number of")
"""Parts of messages of torch and Python that tell of an accident, whatever the type."""

REFUSING_WORDS = ("not implemented", "not supported", "unsupported")
"""What a compiled backward says that refuses on purpose."""


@dataclass(frozen=True)
class Call:
    """One forward, with its graph."""

    leaves: Tensors
    """The differentiable inputs; those of a frozen argument do not require grad."""
    passed: tuple[Any, ...]
    """What the target got, one for each `Argument`."""
    returned: tuple[Any, ...]
    """Everything that forward returned, by position."""
    outputs: Tensors
    """The outputs that are differentiated."""

    @property
    def writes(self) -> bool:
        """Whether forward wrote into an argument, or returned one."""
        tensors = [value for value in self.passed if isinstance(value, Tensor)]
        return any(t._version > 0 or any(r is t for r in self.returned) for t in tensors)  # noqa: SLF001

    @property
    def node(self) -> Any:  # noqa: ANN401 - the class of the node is the user's
        """The ctx of the Function behind the outputs; None where no Python Function is."""
        for output in self.outputs:
            node: Any = output.grad_fn
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                return node
        return None


def called(
    sample: Sample,
    arguments: Sequence[Argument] = (),
    *,
    frozen: frozenset[int] = frozenset(),
    arrange: Arrange | None = None,
) -> Returned[Call] | Raised:
    """Forward with its graph on fresh arguments, the random states replayed.

    `frozen` are numbers of differentiable inputs that are not to require grad.
    """
    problem, arguments = sample.problem, arguments or sample.arguments
    leaves = copies([a.value for a in arguments if a.differentiable])
    clones = (leaf.requires_grad_(number not in frozen).clone() for number, leaf in enumerate(leaves))
    with torch.enable_grad():
        passed = [
            a.moved(next(clones))
            if a.differentiable
            else a.value.clone()
            if isinstance(a.value, Tensor)
            else a.value
            for a in arguments
        ]
        problem.counter.forward += 1
        problem.random_states.replay()
        passed = passed if arrange is None else arrange(passed)
        with problem.around():
            result = guard.call(problem.function, *arguments_of_call(arguments, passed))
    if isinstance(result, Raised):
        return result
    returned = returned_tensors(result.value)
    picked = [returned[p] for p in problem.output_positions if p < len(returned)]
    outputs = tuple(t for t in picked if isinstance(t, Tensor))
    if len(outputs) != len(problem.output_positions):
        has_tensors = any(isinstance(t, Tensor) for t in returned)
        said = "returned other outputs than before" if has_tensors else "returned None"
        return Raised(RaisedError(OTHER_OUTPUTS, said))
    return Returned(Call(leaves, tuple(passed), returned, outputs))


def backward(
    sample: Sample, call: Call, grad_outputs: Sequence[Tensor | None], *, retain: bool = False
) -> Returned[Gradients] | Raised:
    """Backward; None for the inputs that do not require grad. `retain`: leaving the graph for another one.

    What backward returns and only the engine would refuse counts as None.
    """
    problem = sample.problem
    problem.counter.backward += 1
    problem.random_states.replay_for_backward()
    wanted = [leaf for leaf in call.leaves if leaf.requires_grad]
    through = partial(differentiate_in_place, keep=retain, training=problem.of_module)
    with problem.around():
        result = guard.call(through, call.outputs, wanted, grad_outputs)
    if isinstance(result, Raised):
        return result
    found = iter(result.value)
    return Returned(tuple(next(found) if leaf.requires_grad else None for leaf in call.leaves))


def is_accident(error: RaisedError) -> bool:
    """Whether an exception is a mistake, and not a refusal that somebody wrote."""
    if error.deliberate:
        return False
    return error.type in ACCIDENTS or any(words in error.message for words in ACCIDENTAL_WORDS)


def is_refusal(error: RaisedError) -> bool:
    """Whether an exception says that something is not supported."""
    return error.deliberate or any(words in error.message.lower() for words in REFUSING_WORDS)


OF_TERMS = 1e-9
"""Share of the size of a gradient's terms that sums in another order may move it by, whatever is left."""


@dataclass(frozen=True)
class Difference:
    """The worst place at which two gradients, or two results of forward, differ."""

    place: str
    """`x[0,2]`; empty where a result has another shape."""
    name: str
    """The input, or the output, it belongs to; then both shapes."""
    got: float
    wanted: float
    noise: float = 0.0
    """Where nothing is known: how far its own rounding moves what is there."""

    @property
    def values(self) -> str:
        """`0.5 instead of 0.25`."""
        return " instead of ".join(apart(self.got, self.wanted))


@dataclass(frozen=True)
class Verified:
    """A sample whose first order is verified, with one gradient of it."""

    sample: Sample
    u: Tensor
    """The grad_outputs, flat: signed, never near zero, never all alike."""
    gradient: Tensor
    """What backward returns for them, flat."""
    values: Tensor
    """What forward returns, flat."""
    forward_draws: bool
    """Forward draws random numbers: with another layout it may draw others."""
    backward_draws: bool
    writes: bool = False
    """Forward writes into an argument, or returns one."""
    found: frozenset[str] = frozenset()
    """Codes of what was found before, notes among them."""
    known: dict[tuple[float, ...], Tensor | None] = field(default_factory=dict, compare=False)
    """Gradients for other grad_outputs, by these."""

    @property
    def subject(self) -> Subject:
        """The target."""
        return self.sample.subject

    @property
    def inputs(self) -> Layout:
        """Layout of the differentiable inputs."""
        return self.sample.inputs

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the differentiable inputs."""
        return self.sample.problem.input_names

    @property
    def draws(self) -> bool:
        """Forward or backward draws random numbers."""
        return self.forward_draws or self.backward_draws

    def is_passed(self, argument: Argument) -> bool:
        """Whether the caller passes this argument: a module allocates its own parameters."""
        is_module = self.subject.target.kind is TargetKind.MODULE
        return not (is_module and argument.name.startswith("self."))

    def grad_outputs(self) -> Tensors:
        """Fresh grad_outputs, one for each output."""
        return self.sample.problem.outputs.unflatten(self.u)

    def at(self, arguments: tuple[Argument, ...]) -> Verified | None:
        """The same target at other values of its arguments; None where it raises or is not finite."""
        problem = replace(self.sample.problem, arguments=arguments)
        return verified(replace(self.sample, arguments=arguments, problem=problem))

    def of(self, u: Tensor) -> Verified | None:
        """The same call with the gradient for other grad_outputs; None where it raises or is not finite.

        A verified gradient is linear in them.
        """
        if torch.equal(u, self.u):
            return self
        key = tuple(u.tolist())
        if key not in self.known:
            zero = torch.zeros_like(self.gradient)
            self.known[key] = (
                gradient_at(u, self.sample.problem, _inputs_of(self.sample)) if u.any() else zero
            )
        gradient = self.known[key]
        if gradient is None or not gradient.isfinite().all():
            return None
        return replace(self, u=u, gradient=gradient)

    def difference(self, got: Gradients, *, frozen: frozenset[int] = frozenset()) -> Difference | None:
        """Where gradients differ from the verified one by more than rounding and the tolerance.

        `frozen` are the numbers of the inputs that have none.
        """
        flat = self.inputs.flatten(got)
        for position in frozen:
            own = self.inputs.blocks[position].span
            flat[own] = self.gradient[own]
        return self.differs(flat)

    def forward_difference(self, outputs: Sequence[Tensor]) -> Difference | None:
        """Where results of forward differ from those of the verified call."""
        layout = self.sample.problem.outputs
        shapes, wanted = (
            [list(t.shape) for t in all_of] for all_of in (outputs, layout.unflatten(self.values))
        )
        if shapes != wanted:
            one = next(
                (k for k, pair in enumerate(zip(shapes, wanted, strict=False)) if pair[0] != pair[1]), 0
            )
            return Difference("", f"{shapes[one]}, not {wanted[one]}", torch.nan, torch.nan)
        return self.differs(layout.flatten(outputs), of_forward=True)

    def differs(self, got: Tensor, *, of_forward: bool = False, same: bool = False) -> Difference | None:
        """Where flat gradients, or results, are off by more than the tolerance and by more than rounding.

        `same`: those of the very same call, off by more than sums in another order. What rounding explains
        beyond a share of the largest gradient is unknown.
        """
        problem, wanted, layout, names = self.sample.problem, self.gradient, self.inputs, self.names
        at = partial(gradient_at, self.u, problem)
        if of_forward:
            wanted, layout, at = self.values, problem.outputs, partial(value_at, problem)
            positions = problem.output_positions
            names = tuple(f"output {p}" if len(positions) > 1 else "y" for p in positions)
        off, bound = _off(got, wanted), self._tolerance(wanted, layout)
        if not (off > bound).any():
            return None
        most = OF_TERMS * max(largest(self.gradient), largest(self.values))
        moved = self.spread_of(at, wanted).clamp_max(most if same else math.inf)
        bound, known = torch.maximum(bound, moved), bound
        wrong = off > bound
        is_known = bool(wrong.any()) or of_forward
        if not is_known:
            wrong = off > torch.maximum(known, moved.clamp_max(max(OF_A_ROW * largest(wanted), most)))
        if not wrong.any():
            return None
        worst = int(torch.where(wrong, off, -1.0).argmax())
        number_of = layout.block_of(worst)
        return Difference(
            indexed(names[number_of], layout.blocks[number_of].index(worst)),
            names[number_of],
            got[worst].item(),
            wanted[worst].item(),
            noise=0.0 if is_known else moved[worst].item(),
        )

    @property
    def rounding(self) -> float:
        """Relative rounding of its numbers."""
        return max(options_of(self.sample).epsilon, float(self.inputs.rounding.max()))

    def spread_of(self, results: Callable[[Tensor], Tensor | None], like: Tensor) -> Tensor:
        """How far rounding explains that results go, one for each."""
        moved = spread(results, _inputs_of(self.sample), self.rounding)
        return torch.zeros_like(like) if moved is None else FACTOR * moved.nan_to_num(0.0, 0.0, 0.0)

    def _tolerance(self, base: Tensor, layout: Layout) -> Tensor:
        settings, size = self.subject.settings, base.abs().nan_to_num(0.0, 0.0, 0.0)
        bound = torch.full_like(base, settings.atol)
        for block in (b for b in layout.blocks if b.stop > b.start):
            eps, own = torch.finfo(block.dtype).eps, size[block.span]
            rtol = max(settings.rtol, eps**0.5 if eps > torch.finfo(torch.float64).eps else 0.0)
            bound[block.span] += rtol * (own + own.median())
        return bound


def gradient_at(u: Tensor, problem: Map, x: Tensor) -> Tensor | None:
    """The gradients for one grad_output (M) at a point (N); None where the problem raises."""
    rows = rows_at(problem, x, u[None])
    return None if rows is None else rows[0]


def value_at(problem: Map, x: Tensor) -> Tensor | None:
    """The outputs at a point, flat; None where the problem raises."""
    result = problem.evaluate(Layout.of(problem.primals).unflatten(x))
    return None if isinstance(result, Raised) else problem.outputs.flatten(result.value)


def _off(got: Tensor, wanted: Tensor) -> Tensor:
    """Absolute differences: none where both are the same, infinite where one of them is not finite."""
    off = (got - wanted).abs()
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    return torch.where(same, 0.0, torch.where(off.isfinite(), off, torch.inf))


def drawn_again(sample: Sample, number: int = 1) -> tuple[Argument, ...] | None:
    """The arguments at other values of the same shapes; None where they cannot be built."""
    drawn = arguments_at(sample.subject, sample.case, Point.TYPICAL, sample.draw + number)
    if isinstance(drawn, Raised) or list(map(_kind, drawn)) != list(map(_kind, sample.arguments)):
        return None
    return drawn


def _kind(argument: Argument) -> object:
    value = argument.value
    shape = (value.shape, value.dtype, value.layout) if isinstance(value, Tensor) else None
    return argument.name, argument.differentiable, shape


def known(sample: Sample) -> Verified | None:
    """The same, measured once for the values that a case was asked at last."""
    by_case: dict[object, Verified | None] = sample.subject.learnt.setdefault(Verified, {})
    key = (sample.case.id, sample.subject.native, sample.subject.short, sample.subject.settings.device)
    base = by_case.get(key)
    if base is None or not torch.equal(_inputs_of(base.sample), _inputs_of(sample)):
        base = by_case[key] = verified(sample)
    return base


def _inputs_of(sample: Sample) -> Tensor:
    return sample.inputs.flatten(sample.problem.primals)


def verified(sample: Sample) -> Verified | None:
    """One gradient of a verified sample; None where it raises or is not finite, as `ran`."""
    found = ran(sample)
    return found if found is not None and bool(found.gradient.isfinite().all()) else None


def ran(sample: Sample, *, fill: bool | None = None) -> Verified | None:
    """A fresh call with its gradient at a random signed grad_output; None where it raises.

    None as well where there is nothing to differentiate. `fill`: new memory is full of NaN, or not.
    """
    problem, outputs = sample.problem, sample.problem.outputs
    if not sample.inputs.size or not outputs.size:
        return None
    u = probe(outputs.size, sample.case.seed + 31)
    with nullcontext() if fill is None else filled_memory(fill=fill):
        call = called(sample)
        forward_draws = not problem.random_states.untouched()
        if isinstance(call, Raised):
            return None
        # As it is before another call could touch it.
        values = guard.call(outputs.flatten, copies(call.value.outputs))
        result = backward(sample, call.value, outputs.unflatten(u))
    draws = forward_draws, not problem.random_states.untouched()
    if isinstance(values, Raised) or isinstance(result, Raised):
        return None
    return Verified(sample, u, sample.inputs.flatten(result.value), values.value, *draws, call.value.writes)


@dataclass(frozen=True)
class Variant:
    """One way to change a call, and how what it changes is reported."""

    code: str
    when: str
    """`when grad_output is transposed`: the end of a sentence."""
    hint: str
    than: str = ""
    """What gives the value that was expected: `, which contiguous ones give`."""
    input: str | None = None
    """The input that is changed, if it is one."""
    part: str = ""
    is_mistake: Callable[[RaisedError], bool] = is_accident
    """Whether an exception is an error; else it is a note."""

    def judged(
        self,
        base: Verified,
        call: Returned[Call] | Raised,
        grad_outputs: Sequence[Tensor | None] = (),
        frozen: frozenset[int] = frozenset(),
    ) -> Finding | None:
        """What is wrong with a changed call: it raises, or gives another result or another gradient."""
        if isinstance(call, Raised):
            return self.raised(base, call.error, "forward")
        moved = base.forward_difference(call.value.outputs)
        if moved is not None:
            there = f"{moved.place} is {moved.values}{self.than}"
            if not moved.place:
                there = f"its shape is {moved.name}"
            said = f"forward gives another result {self.when}: {there}"
            return base.sample.finding(self.code, said, hint=self.hint, input=self.input, part=self.part)
        given = grad_outputs or base.grad_outputs()
        return self.gradient(base, backward(base.sample, call.value, given), frozen)

    def gradient(
        self, base: Verified, result: Returned[Gradients] | Raised, frozen: frozenset[int] = frozenset()
    ) -> Finding | None:
        """The finding where backward raises, or gives another gradient."""
        if isinstance(result, Raised):
            return self.raised(base, result.error)
        return self.differs(base, base.difference(result.value, frozen=frozen))

    def differs(self, base: Verified, found: Difference | None) -> Finding | None:
        """The finding on a gradient that is another one; GV109 where its own rounding leaves no digit."""
        if found is None:
            return None
        code, hint = self.code, self.hint
        said = f"is wrong {self.when}: {found.place} is {found.values}{self.than}"
        if found.noise:
            code, hint = "GV109", OTHER_VALUES
            said = (
                f"could not be verified {self.when}: it is unstable, its own rounding moves {found.place} by "
                f"{number(found.noise)}, and it is {found.values}"
            )
        said = f"the gradient of `{found.name}` {said}"
        return base.sample.finding(code, said, hint=hint, input=found.name, part=self.part)

    def raised(self, base: Verified, error: RaisedError, what: str = "backward") -> Finding:
        """The finding on an exception, or on other outputs than before."""
        returned = error.type == OTHER_OUTPUTS
        said = f"raises {error.type} {self.when}: {first_line(error.message)}"
        return base.sample.finding(
            self.code,
            f"{what} {error.message} {self.when}" if returned else f"{what} {said}",
            hint=self.hint,
            input=self.input,
            raised=None if returned else error,
            part=self.part,
            severity=Severity.ERROR if self.is_mistake(error) else Severity.NOTE,
        )
