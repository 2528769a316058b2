"""The verified gradient that every variation must reproduce, and when a difference from it counts.

What a variation is: one idea of what must leave the verified gradient unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Entries, Finding, RaisedError, Severity, Swept, TargetKind, indexed
from gradverify.verifier.checks.result import OTHER_VALUES
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.wording import apart, number, vector_entries
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import Gradients, Tensors, copies
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.problem import OTHER_OUTPUTS, CallProblem, Layout, VjpProblem
from gradverify.verifier.numerics.round_off import ROUND_OFF, SCALES, gradient_noise, nudged
from gradverify.verifier.numerics.sampling import own_noise
from gradverify.verifier.numerics.tolerance import EPSILON, KNOWN, distance
from gradverify.verifier.variations.call import Call, backward, called, is_accident


@dataclass(frozen=True)
class Varied:
    """What one variation found, and what it really swept."""

    findings: tuple[Finding, ...] = ()
    swept: Swept = field(default_factory=Swept)


@dataclass(frozen=True)
class Variation:
    """One idea."""

    run: Callable[[Verified], Varied]
    unless: frozenset[str] = frozenset()
    """Codes that explain what it would find: it is left out where one of them was found."""
    unless_noted: frozenset[str] = frozenset()
    """Codes that do so as a note as well."""
    on_ranks: bool = True
    """It says something of a target on several ranks, whose memory and ctx are in other processes."""
    brief: bool = False
    """It finds what is common, in few calls: it runs where a call is slow, too."""


@dataclass(frozen=True)
class Variant:
    """One way to vary a call, and how what it changes is reported."""

    code: str
    when: str
    """`when grad_output is transposed`: the end of a sentence."""
    hint: str
    than: str = ""
    """What gives the value that was expected: `, which contiguous ones give`."""
    output: int | None = None
    part: str = ""

    def forward(self, base: Verified, outputs: Sequence[Tensor]) -> Finding | None:
        """The finding where forward gives another result."""
        moved = base.forward_difference(outputs)
        if moved is None:
            return None
        said = f"forward gives another result {self.when}: {moved.place} is {moved.values}{self.than}"
        return base.finding(self.code, said, hint=self.hint)

    def both(self, base: Verified, outputs: Sequence[Tensor], gradients: Gradients) -> Finding | None:
        """The finding where forward gives another result, or else backward another gradient."""
        moved = self.forward(base, outputs)
        difference = None if moved is not None else base.difference(gradients, or_unknown=True)
        return moved if difference is None else self.differs(base, difference)

    def gradient(
        self,
        base: Verified,
        call: Call,
        given: Sequence[Tensor] | None = None,
        *,
        wanted: Tensor | None = None,
        u: Tensor | None = None,
        only: frozenset[int] | None = None,
    ) -> Finding | RaisedError | None:
        """The finding where backward gives another gradient than the one wanted; what it raised.

        `given` are the grad_outputs, `u` the values of these if they are not those of the verified call.
        """
        result = backward(base.sample, call, base.grad_outputs(u) if given is None else given)
        if isinstance(result, Raised):
            return result.error
        difference = base.difference(result.value, wanted, u=u, only=only, or_unknown=True)
        return None if difference is None else self.differs(base, difference)

    def differs(self, base: Verified, difference: Difference) -> Finding:
        """The finding on a gradient that is another one; GV109 where its own rounding leaves no digit."""
        if difference.noise:
            return base.finding(
                "GV109",
                f"the gradient of `{difference.name}` could not be verified {self.when}: it is unstable, its "
                f"own rounding moves {difference.place} by {number(difference.noise)}, and it is "
                f"{difference.values}",
                hint=OTHER_VALUES,
                input=difference.name,
                output=self.output,
                part=self.part,
            )
        return base.finding(
            self.code,
            f"the gradient of `{difference.name}` is wrong {self.when}: {difference.place} is "
            f"{difference.values}{self.than}",
            hint=self.hint,
            input=difference.name,
            output=self.output,
            part=self.part,
        )

    def raised(
        self, base: Verified, error: RaisedError, what: str = "backward", *, serious: bool | None = None
    ) -> Finding:
        """The finding on an exception: an error where it is a mistake (`serious`), else a note."""
        is_error = is_accident(error) if serious is None else serious
        return base.finding(
            self.code,
            f"{what} {error.message} {self.when}"
            if error.type == OTHER_OUTPUTS
            else f"{what} raises {error.type} {self.when}: {first_line(error.message)}",
            hint=self.hint,
            output=self.output,
            raised=None if error.type == OTHER_OUTPUTS else error,
            part=self.part,
            severity=Severity.ERROR if is_error else Severity.NOTE,
        )


@dataclass(frozen=True)
class Answer:
    """What one of torch's transforms answers: a line of the capability table, and the findings behind it."""

    capability: str = "not-run"
    """`yes`, `no`, `wrong` or `not-run`."""
    findings: tuple[Finding, ...] = field(default=())


NOT_RUN = Answer()
UNSUPPORTED = Answer("no")


def wrong(finding: Finding) -> Answer:
    """The transform gives another value, or fails by accident."""
    return Answer("wrong", (finding,))


def refusal(base: Verified, code: str, what: str, error: RaisedError) -> Finding:
    """The note that a transform raises, which users see anyway."""
    return base.finding(
        code,
        f"{what} raises {error.type}: {first_line(error.message)}",
        hint="If it is meant to be supported, see the traceback with -vv; else nothing need be done.",
        severity=Severity.NOTE,
        raised=error,
    )


ROUND_OFFS = 10.0
"""A difference counts beyond so many times the measured round-off: another layout sums in another order."""


@dataclass(frozen=True)
class Difference:
    """The worst place at which two gradients, or two results of forward, differ."""

    place: str
    """`x[0,2]`."""
    name: str
    """The input, or the output, it belongs to."""
    got: float
    wanted: float
    missing: bool = False
    """There is no gradient at all: None."""
    block: int = 0
    """The number of that input, or of that output."""
    entries: Entries | None = None
    """All of it that differs, the worst ones by name."""
    noise: float = 0.0
    """Where nothing is known: how far its own rounding moves what is there."""

    @property
    def values(self) -> str:
        """`0.5 instead of 0.25`."""
        got, wanted = apart(self.got, self.wanted)
        return f"{'None' if self.missing else got} instead of {wanted}"


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

    @cached_property
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
        is_module = self.sample.subject.target.kind is TargetKind.MODULE
        return not (is_module and argument.name.startswith("self."))

    def grad_outputs(self, flat: Tensor | None = None) -> Tensors:
        """Fresh grad_outputs, one for each output."""
        return self.sample.problem.outputs.unflatten(self.u if flat is None else flat)

    def gradient_for(self, flat: Tensor) -> Tensor | None:
        """The gradient for other grad_outputs by an ordinary call, flat; None where it raises."""
        result = self.sample.problem.pull_back(self.sample.problem.primals, self.grad_outputs(flat))
        return None if isinstance(result, Raised) else self.inputs.flatten(result.value)

    def difference(
        self,
        got: Gradients,
        wanted: Tensor | None = None,
        *,
        u: Tensor | None = None,
        only: frozenset[int] | None = None,
        rounding_of: CallProblem | None = None,
        or_unknown: bool = False,
    ) -> Difference | None:
        """Where gradients differ from the verified one by more than rounding and the tolerance.

        `or_unknown`: else where they differ by less than their own rounding, but that leaves no digit.

        `u` are the grad_outputs they were computed for, `only` the numbers of the inputs to look at.
        `rounding_of` is where they come from, if it rounds otherwise than the verified problem.
        """
        base = self.gradient if wanted is None else wanted
        flat = self.inputs.flatten(got)
        for position, block in enumerate(self.inputs.blocks):
            if only is not None and position not in only:
                flat[block.start : block.stop] = base[block.start : block.stop]

        def noise() -> Tensor:
            problems = [self.sample.problem, *([] if rounding_of is None else [rounding_of])]
            return torch.stack([self._noise(problem, u) for problem in problems]).sum(dim=0)

        found = self._held(flat, base, self.inputs, self.names, noise, or_unknown=or_unknown)
        return found and replace(found, missing=got[found.block] is None)

    def unrepeated(self, gradient: Tensor) -> Difference | None:
        """Where the gradient (flat) of the very same call differs by more than sums in another order do.

        Noise measured by calls that do not repeat themselves is no rounding: it excuses a small share of
        the largest values at most.
        """

        def noise() -> Tensor:
            return self._noise(self.sample.problem, None).clamp_max(self._rounding)

        return self._held(gradient, self.gradient, self.inputs, self.names, noise)

    def forward_difference(self, outputs: Sequence[Tensor], *, same: bool = False) -> Difference | None:
        """Where results of forward differ from those of the verified call.

        `same`: they are those of the very same call, and differ by more than sums in another order do.
        """
        layout, positions = self.sample.problem.outputs, self.sample.problem.output_positions
        if [t.shape for t in outputs] != [t.shape for t in layout.unflatten(self.values)]:
            return Difference("the shape of the result", "the output", torch.nan, torch.nan)
        names = [f"output {p}" if len(positions) > 1 else "y" for p in positions]
        largest = self.values.abs().nan_to_num(0.0, 0.0, 0.0).max().item() if len(self.values) else 0.0

        def noise() -> Tensor:
            return (ROUND_OFFS * self._forward_noise).clamp_max(ROUND_OFF * largest if same else math.inf)

        found = self._held(layout.flatten(outputs), self.values, layout, names, noise)
        return found and replace(found, entries=found.entries and _of_output(found.entries))

    def finding(self, code: str, message: str, **fields: Any) -> Finding:  # noqa: ANN401 - of Finding
        """A finding at this sample."""
        return self.sample.finding(code, message, **fields)

    def _held(
        self,
        got: Tensor,
        wanted: Tensor,
        layout: Layout,
        names: Sequence[str],
        noise: Callable[[], Tensor],
        *,
        or_unknown: bool = False,
    ) -> Difference | None:
        """Where flat values are off by more than the tolerance and by more than rounding, if anywhere."""
        if torch.equal(got, wanted):
            return None
        off, bound = _off(got, wanted), self._tolerance(wanted, layout)
        if not (off > bound).any():
            return None
        rounding = noise()
        wrong = off > torch.maximum(bound, rounding)
        is_known = bool(wrong.any())
        if not is_known:
            # What is that noisy excuses anything: nobody's own noise raises his bar without an end.
            # Rounding of the terms of a gradient that cancels is known to be no more than that.
            known = (KNOWN * _scale(wanted, layout)).clamp_min(self._rounding)
            wrong = off > torch.maximum(bound, rounding.minimum(known))
            if not (or_unknown and wrong.any()):
                return None
        bound = torch.maximum(bound, rounding)
        worst = int(torch.where(wrong, off, -1.0).argmax())
        position = layout.block_of(worst)
        block = layout.blocks[position]
        here = slice(block.start, block.stop)
        return Difference(
            indexed(names[position], block.index(worst)),
            names[position],
            got[worst].item(),
            wanted[worst].item(),
            block=position,
            entries=vector_entries(got[here], wanted[here], bound[here], wrong[here], block),
            noise=0.0 if is_known else rounding[worst].item(),
        )

    def _noise(self, problem: CallProblem, u: Tensor | None) -> Tensor:
        """How far rounding moves a gradient, times what counts beyond it: at least that of its terms.

        These are no larger than grad_output or the largest gradient: |f| / |x| is, where x is small.
        """
        flat = self.u if u is None else u
        noise = gradient_noise(VjpProblem(problem, problem.outputs.unflatten(flat)))
        terms = (flat.abs() * self._natural_slope).nan_to_num(0.0, 0.0, 0.0).max()
        largest = torch.maximum(flat.abs().max(), self.gradient.abs().max())
        return ROUND_OFFS * noise.maximum(self.inputs.rounding * terms.minimum(largest))

    @property
    def _rounding(self) -> float:
        """What sums in another order may move a gradient, by the size of its terms."""
        return ROUND_OFF * max(t.abs().max().item() for t in (self.gradient, self._natural_slope))

    @property
    def _natural_slope(self) -> Tensor:
        """|f| / |x|: the size of the terms of a gradient that cancels."""
        size = self.inputs.flatten(self.sample.problem.primals).abs()
        typical = size[size > 0].median() if (size > 0).any() else torch.ones((), dtype=torch.float64)
        return self.values.abs().nan_to_num(0.0, 0.0, 0.0) / typical

    def _tolerance(self, base: Tensor, layout: Layout) -> Tensor:
        settings = self.sample.subject.settings
        bound, scale = torch.full_like(base, settings.atol), _scale(base, layout)
        for block in layout.blocks:
            rtol = max(settings.rtol, _half_the_digits(block.dtype))
            bound[block.start : block.stop] += rtol * scale[block.start : block.stop]
        return bound

    @cached_property
    def _forward_noise(self) -> Tensor:
        """How far rounding moves forward: the spread at inputs moved by a few units in the last place."""
        problem, generator = self.sample.problem, torch.Generator().manual_seed(20_263)
        spread = own_noise(self.values, problem.outputs)
        flat = self.inputs.flatten(problem.primals)
        for _ in SCALES:
            moved = self.inputs.unflatten(nudged(flat, self.inputs, generator, most=4))
            result = problem.evaluate(moved)
            if not isinstance(result, Raised):
                off = _off(problem.outputs.flatten(result.value), self.values)
                spread = torch.maximum(spread, off.nan_to_num(0.0, 0.0, 0.0))
        return spread


def cotangents(sample: Sample) -> Tensor:
    """The grad_outputs of the verified gradient, flat: signed, never near zero, never all alike."""
    return random_signs(sample.problem.outputs.size, sample.case.seed + 31)


def verified(sample: Sample) -> Verified | None:
    """One gradient of a verified sample, at a random signed grad_output; None where it raises.

    None as well where it is not finite, or where there is nothing to differentiate.
    """
    problem = sample.problem
    if not sample.inputs.size or not problem.outputs.size:
        return None
    u = cotangents(sample)
    call = called(sample)
    forward_draws = not problem.random_states.untouched()
    if isinstance(call, Raised):
        return None
    values = problem.outputs.flatten(copies(call.value.outputs))
    result = backward(sample, call.value, problem.outputs.unflatten(u))
    backward_draws = not problem.random_states.untouched()
    if isinstance(result, Raised):
        return None
    gradient = sample.inputs.flatten(result.value)
    if not gradient.isfinite().all():
        return None
    return Verified(sample, u, gradient, values, forward_draws, backward_draws)


def _scale(values: Tensor, layout: Layout) -> Tensor:
    """The size of each entry with the median of its input or output."""
    size = values.abs().nan_to_num(0.0, 0.0, 0.0)
    for block in layout.blocks:
        if block.stop > block.start:
            size[block.start : block.stop] += size[block.start : block.stop].median().clone()
    return size


def _half_the_digits(dtype: torch.dtype) -> float:
    """What a dtype of fewer digits than float64 may be off where sums are taken in another order; else 0."""
    eps = float(torch.finfo(dtype).eps)
    return 0.0 if eps <= EPSILON else eps**0.5


def _off(got: Tensor, wanted: Tensor) -> Tensor:
    """Absolute differences: none where both are the same, infinite where one of them is not finite."""
    off = distance(got, wanted)
    off = torch.where(off.isfinite(), off, torch.inf)
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    return torch.where(same, 0.0, off)


def _of_output(entries: Entries) -> Entries:
    """The same of a result, which has no input."""
    worst = tuple(replace(e, output=e.input or (), input=None) for e in entries.worst)
    return replace(entries, worst=worst)
