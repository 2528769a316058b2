"""One call in a native dtype beside the same map in float64, whose values are the truth.

Inputs and grad_outputs are rounded first, and the truth is taken at the rounded ones. What rounding does to
it is measured on the map in float64: operations that err by a rounding each, scaled to another format.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradverify.model import RaisedError
from gradverify.verifier.checks.dtypes.formats import Format, as_real, format_of
from gradverify.verifier.checks.subject import Sample, Subject, first_line
from gradverify.verifier.dispatching import Dispatched
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.inputs.native_values import Change, drawn_value, native_arguments
from gradverify.verifier.numerics.calling import Tensors, with_zeros
from gradverify.verifier.numerics.problem import CallProblem, Counter, Layout
from gradverify.verifier.witnesses.derived import Derived, derive
from gradverify.verifier.witnesses.rounding import DRAWS, STILL
from gradverify.verifier.witnesses.rounding import Arithmetic as Erring
from gradverify.verifier.witnesses.values import probe

TRIED = 2.0**-40
"""By how much operations err, relative, where rounding is measured in float64: its own is far below, and
curvature does not matter."""

MOST_ELEMENTS = 1_000_000
"""Elements of the inputs up to which rounding is measured: each draw holds a copy of every gradient."""


@dataclass(frozen=True)
class Arithmetic:
    """Inputs in one dtype, operations in one that is as short or shorter."""

    inputs: str
    rounds_to: str
    autocast_on: str = ""
    """The kind of device whose autocast is on during forward; empty for none."""

    @property
    def name(self) -> str:
        """`bfloat16`, or `autocast bfloat16`."""
        return f"autocast {self.rounds_to}" if self.autocast_on else self.rounds_to

    @property
    def said(self) -> str:
        """`in bfloat16`, or `under autocast to bfloat16`."""
        return f"under autocast to {self.rounds_to}" if self.autocast_on else f"in {self.rounds_to}"

    @property
    def dtype(self) -> torch.dtype:
        """What operations round to."""
        made: torch.dtype = getattr(torch, self.rounds_to)
        return made

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as this arithmetic calls it: backward comes after autocast, as in training."""
        if not self.autocast_on:
            return function

        @functools.wraps(function)
        def called(*arguments: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
            with torch.autocast(self.autocast_on, dtype=self.dtype):
                return function(*arguments)

        return called


def plainly(dtype: str, inside: str = "") -> Arithmetic:
    """Inputs and operations in one dtype; those inside in a shorter format, if it is one."""
    formats = (dtype, inside) if inside else (dtype,)
    return Arithmetic(dtype, max(formats, key=lambda name: torch.finfo(getattr(torch, name)).eps))


@dataclass(frozen=True)
class Value:
    """One output, or the gradient of one input."""

    output: int | None
    """Its position, None for a gradient."""
    input: str | None

    @property
    def name(self) -> str:
        """`output 0`, or the input's name."""
        return self.input if self.input is not None else f"output {self.output}"


@dataclass(frozen=True)
class NativeCall:
    """What the target gave in a native dtype."""

    problem: CallProblem
    """The target at the rounded inputs, in the native dtype."""
    exact: CallProblem
    """The same rounded values in float64."""
    cotangents: Tensors
    """Rounded, native."""
    got: tuple[Tensor, ...]
    """Outputs, then gradients, as real float64."""
    arithmetic: Arithmetic

    @property
    def values(self) -> tuple[Value, ...]:
        """Outputs, then gradients."""
        outputs = (Value(p, None) for p in self.problem.output_positions)
        return (*outputs, *(Value(None, name) for name in self.problem.input_names))

    @property
    def outputs(self) -> Tensors:
        """What forward gave."""
        count = len(self.problem.output_positions)
        return self.problem.outputs.unflatten(torch.cat([g.reshape(-1) for g in self.got[:count]]))

    @property
    def form(self) -> Format:
        """What its values are rounded to."""
        return format_of(self.arithmetic.dtype)


class NoCall(NamedTuple):
    """There is no native call to judge."""

    why: str
    """The end of a sentence."""
    error: RaisedError | None = None
    """What was raised."""
    in_backward: bool = False
    """Forward ran and backward raised."""


DRAWS_NUMBERS = "it draws random numbers, which are others in another dtype"


class _Draws(Dispatched):  # type: ignore[no-untyped-call]
    """Notes whether an operation draws random numbers, of whatever generator."""

    seen = False

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one operation."""
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **given)


class _Erring(Erring):  # type: ignore[no-untyped-call]
    """Errs by its unit whatever the dtype."""

    def unit_of(self, dtype: torch.dtype) -> float:  # noqa: ARG002 - what it overrides
        """The unit."""
        return self.unit


def native_call(
    problem: CallProblem, arguments: Sequence[Argument], arithmetic: Arithmetic, change: Change, seed: int
) -> NativeCall | NoCall:
    """Call the target in a native arithmetic, forward and backward."""
    pair = native_arguments(arguments, arithmetic.inputs, change)
    if pair is None:
        return NoCall("its inputs cannot be rounded to it")
    function = arithmetic.of(problem.function)
    native = replace(problem, arguments=pair[0], function=function, around=nullcontext)
    with _Draws() as draws:
        graph = native.graph(native.primals)
    if isinstance(graph, Raised):
        return _raised(graph.error)
    forward_draws = not native.random_states.untouched()
    if not all(o.is_floating_point() or o.is_complex() for o in graph.value.outputs):
        return NoCall("an output is not floating in this dtype")
    outputs = Layout.of(graph.value.outputs)
    values = tuple(as_real(o).clone() for o in graph.value.outputs)  # before backward can write into them
    cotangents = outputs.unflatten(probe(outputs.size, seed % 4096))
    with draws:
        back = native.back(graph.value, cotangents)
    if isinstance(back, Raised):
        return _raised(back.error, in_backward=True)
    if forward_draws or draws.seen or not native.random_states.untouched():
        return NoCall(DRAWS_NUMBERS)
    got = (*values, *_gradients(native, with_zeros(back.value, graph.value.leaves)))
    return NativeCall(native, replace(problem, arguments=pair[1]), cotangents, got, arithmetic)


def _raised(error: RaisedError, *, in_backward: bool = False) -> NoCall:
    return NoCall(f"{error.type}: {first_line(error.message)}", error, in_backward)


def values_of(
    problem: CallProblem, cotangents: Sequence[Tensor], primals: Sequence[Tensor] | None = None
) -> tuple[Tensor, ...] | Raised:
    """Outputs, then gradients, as real float64, of any problem over the same inputs."""
    graph = problem.graph(problem.primals if primals is None else primals)
    if isinstance(graph, Raised):
        return graph
    values = tuple(as_real(o).clone() for o in graph.value.outputs)
    given = [u.to(o.dtype) for u, o in zip(cotangents, graph.value.outputs, strict=True)]
    back = problem.back(graph.value, given)
    if isinstance(back, Raised):
        return back
    return (*values, *_gradients(problem, with_zeros(back.value, graph.value.leaves)))


def _gradients(problem: CallProblem, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Without the entries that the spec holds constant."""
    differentiable = (a for a in problem.arguments if a.differentiable)
    pairs = zip(gradients, differentiable, strict=True)
    return [as_real(g if a.held is None else g.masked_fill(a.held, 0)) for g, a in pairs]


@dataclass
class Truth:
    """The map in float64 at the rounded inputs, its values, and what rounding does to them."""

    problem: CallProblem
    cotangents: Tensors
    values: tuple[Tensor, ...]
    """Outputs, then gradients."""

    @staticmethod
    def of(problem: CallProblem, call: NativeCall) -> Truth | Raised:
        """That of a map over the inputs of a call."""
        wide = tuple(u.to(_wide(u.dtype)) for u in call.cotangents)
        values = values_of(problem, wide)
        return values if isinstance(values, Raised) else Truth(problem, wide, values)

    @functools.cached_property
    def noise(self) -> tuple[Tensor | None, ...]:
        """Deviations of each value (draws × shape) where operations and inputs err, in units of the roundoff.

        None where no operation was seen to err: what it computes with is not known.
        """
        unknown = tuple(None for _ in self.values)
        if sum(p.numel() for p in self.problem.primals) > MOST_ELEMENTS:
            return unknown
        runs = []
        for draw in range(DRAWS):
            primals = self.problem.primals if draw < STILL else self._moved(TRIED, draw)
            with _Erring(draw, TRIED / 2):  # which gives up to twice its unit
                made = values_of(self.problem, self.cotangents, primals)
            if isinstance(made, Raised):
                return unknown
            runs.append(made)
        off = (torch.stack([run[k] - value for run in runs]) / TRIED for k, value in enumerate(self.values))
        return tuple(one if bool(one[:STILL].any()) else None for one in off)

    def moved(self, unit: float) -> list[tuple[Tensor, ...]]:
        """All values at inputs moved by up to a unit at random; empty where a run raises."""
        runs = [values_of(self.problem, self.cotangents, self._moved(unit, draw)) for draw in range(DRAWS)]
        return [] if any(isinstance(run, Raised) for run in runs) else runs  # type: ignore[return-value]

    def _moved(self, unit: float, seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [p * (1 + unit * _uniform(p, generator)) for p in self.problem.primals]


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return (2 * torch.rand(like.shape, generator=generator, dtype=torch.float64) - 1).to(like.device)


def in_float64(
    subject: Subject, native: CallProblem, exact: Sequence[Argument], outputs: Sequence[Tensor]
) -> CallProblem | None:
    """The map in float64 that a call without a float64 path is held against; None where there is none.

    The reference, over the same inputs (`exact`); without one, the operations that forward ran to give its
    `outputs`, carried out in float64.
    """
    reference = subject.reference_by_name([a.name for a in exact])
    if reference is not None:
        made = replace(native, function=reference, around=nullcontext, counter=Counter())
    else:
        found = derive(native, subject.call, outputs, first="recorded", wide=True)
        if not isinstance(found, Derived):
            return None
        made = found.problem
    wide = tuple(replace(b, dtype=_wide(b.dtype)) for b in native.outputs.blocks)
    return replace(made, arguments=tuple(exact), outputs=Layout(wide))


def exact_arguments(sample: Sample) -> Sequence[Argument]:
    """The values that a native sample is called with, in float64."""
    pair = native_arguments(sample.exact, sample.subject.native, drawn_value)
    return sample.arguments if pair is None else pair[1]


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


def as_plain_operations(subject: Subject, call: NativeCall) -> tuple[Tensor, ...] | None:
    """What torch's operations give in the native dtype in place of the target; None where nothing tells.

    The reference; without one, forward's own operations as torch differentiates them.
    """
    reference = subject.reference_by_name([a.name for a in call.exact.arguments])
    if reference is None:
        found = derive(
            call.problem, call.arithmetic.of(subject.call), call.outputs, first="eager", wide=False
        )
        if not isinstance(found, Derived):
            return None
        problem = found.problem
    else:
        problem = replace(call.problem, function=call.arithmetic.of(reference), counter=Counter())
    values = values_of(problem, call.cotangents)
    return None if isinstance(values, Raised) else values
