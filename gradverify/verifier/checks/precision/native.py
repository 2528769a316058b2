"""One call in a native dtype beside the same call in float64, and what rounding may do to each of its values.

Inputs and grad_outputs are rounded first. What a formula's own operations round away explains what they
lose, and excuses it only up to a cap: half of the dtype's digits of the values beside it, what rounded
inputs do to the truth, and what vanishes beside numbers of order one. Beyond it the formula is unstable
(Higham, *Accuracy and Stability of Numerical Algorithms*, 2002: forward error against condition).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradverify.model import RaisedError
from gradverify.verifier import guard
from gradverify.verifier.checks.subject import first_line
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.inputs.native_values import Change, native_arguments
from gradverify.verifier.numerics.calling import Tensors, with_zeros
from gradverify.verifier.numerics.compare import UNSEEN
from gradverify.verifier.numerics.native_rounding import SINGLE_UNIT, Format, as_real, format_of
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.problem import CallProblem, Layout
from gradverify.verifier.numerics.round_off import RandomRounding, erring

AUTOCAST = ("bfloat16", "float16")
"""The dtypes to which `torch.autocast` casts."""


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


def under_autocast(kind: str, dtype: str) -> Arithmetic:
    """Inputs in float32 and `torch.autocast` of a kind of device to a dtype."""
    return Arithmetic("float32", dtype, kind)


@dataclass(frozen=True)
class Value:
    """One output, or the gradient of one input."""

    output: int | None
    """Its position, None for a gradient."""
    input: str | None
    form: Format
    """What it is rounded to: the coarser one of the dtype asked for and its own."""

    @property
    def name(self) -> str:
        """`output 0`, or the input's name."""
        return self.input if self.input is not None else f"output {self.output}"


@dataclass(frozen=True)
class NativeCall:
    """What the target gave in a native dtype, and how to ask for the same in float64."""

    problem: CallProblem
    """The target at the rounded inputs, in the native dtype."""
    exact: CallProblem
    """The same rounded values in float64."""
    cotangents: Tensors
    """Rounded, native."""
    values: tuple[Value, ...]
    """Outputs, then gradients."""
    got: tuple[Tensor, ...]
    """One for each value, as real float64."""
    arithmetic: Arithmetic

    @property
    def dtype(self) -> torch.dtype:
        """What its operations round to."""
        return self.arithmetic.dtype

    def as_called(self, problem: CallProblem) -> CallProblem:
        """Another problem over the same inputs, at the same native values and in the same arithmetic."""
        function = self.arithmetic.of(problem.function)
        arguments = self.problem.arguments
        return replace(problem, function=function, arguments=arguments, around=self.problem.around)

    @property
    def exact_cotangents(self) -> Tensors:
        """The same rounded values in float64."""
        return tuple(u.to(torch.complex128 if u.is_complex() else torch.float64) for u in self.cotangents)


@dataclass(frozen=True)
class NoCall:
    """There is no native call to judge."""

    why: str
    """The end of a sentence."""
    error: RaisedError | None = None
    """What was raised."""
    in_backward: bool = False
    """Forward ran and backward raised."""


def native_call(
    problem: CallProblem,
    arguments: Sequence[Argument],
    arithmetic: Arithmetic,
    change: Change,
    seed: int,
) -> NativeCall | NoCall:
    """Call the target in a native arithmetic, forward and backward."""
    pair = native_arguments(arguments, arithmetic.inputs, change)
    if pair is None:
        return NoCall("its inputs cannot be rounded to it")
    exact = replace(problem, arguments=pair[1])
    function = arithmetic.of(problem.function)
    native = replace(problem, arguments=pair[0], function=function, around=nullcontext)
    graph = native.graph(native.primals)
    if isinstance(graph, Raised):
        return _raised(graph.error)
    forward_draws = not native.random_states.untouched()
    if not all(o.is_floating_point() or o.is_complex() for o in graph.value.outputs):
        return NoCall("an output is not floating in this dtype")
    outputs = Layout.of(graph.value.outputs)
    values = tuple(as_real(o).clone() for o in graph.value.outputs)  # before backward can write into them
    cotangents = outputs.unflatten(random_signs(outputs.size, seed))
    back = native.back(graph.value, cotangents)
    if isinstance(back, Raised):
        return _raised(back.error, in_backward=True)
    if forward_draws or not native.random_states.untouched():
        return NoCall("it draws random numbers, which are others in another dtype")
    got = (*values, *map(as_real, _free(native, with_zeros(back.value, graph.value.leaves))))
    form = format_of(arithmetic.dtype)
    named = [Value(p, None, form) for p in problem.output_positions]
    named += [Value(None, name, form) for name in problem.input_names]
    return NativeCall(native, exact, cotangents, tuple(named), got, arithmetic)


def _raised(error: RaisedError, *, in_backward: bool = False) -> NoCall:
    return NoCall(f"{error.type}: {first_line(error.message)}", error, in_backward)


def values_of(problem: CallProblem, cotangents: Sequence[Tensor]) -> tuple[Tensor, ...] | Raised:
    """Outputs, then gradients, as real float64: of any problem over the same inputs."""
    return values_at(problem, problem.primals, cotangents)


def values_at(
    problem: CallProblem, primals: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> tuple[Tensor, ...] | Raised:
    """The same at other values of the inputs."""
    graph = problem.graph(primals)
    if isinstance(graph, Raised):
        return graph
    values = tuple(as_real(o).clone() for o in graph.value.outputs)  # before backward can write into them
    given = [u.to(o.dtype) for u, o in zip(cotangents, graph.value.outputs, strict=True)]
    back = problem.back(graph.value, given)
    if isinstance(back, Raised):
        return back
    gradients = _free(problem, with_zeros(back.value, graph.value.leaves))
    return (*values, *map(as_real, gradients))


def _free(problem: CallProblem, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Gradients without the entries that the spec holds constant."""
    differentiable = (a for a in problem.arguments if a.differentiable)
    return [
        g if a.held is None else g.masked_fill(a.held, 0)
        for g, a in zip(gradients, differentiable, strict=True)
    ]


MOVES = 64.0
"""Standard deviations of what rounded inputs do to the truth that are no mistake."""


def allowed_error(truth: Tensor, absorbed: Tensor, moved: Sequence[Tensor], form: Format) -> Tensor:
    """What is no mistake of any formula (absolute, the truth's shape); infinite or NaN where unknown.

    `moved` are the values in float64 at inputs that err by a rounding each; none leaves their part out.
    """
    allowed: Tensor = form.unit**0.5 * typical(truth) + absorbed + UNSEEN * _smallest(form)
    if moved:
        allowed = allowed + MOVES * torch.stack([run - truth for run in moved]).square().mean(dim=0).sqrt()
    return allowed


def typical(truth: Tensor) -> Tensor:
    """The size of each entry with those of its row and of the whole (the truth's shape)."""
    size = truth.abs() + truth.square().mean().sqrt()
    return size + truth.square().mean(dim=-1, keepdim=True).sqrt() if truth.dim() else size


def absorbed_by_ones(call: NativeCall, values: Sequence[Tensor], reach: float) -> list[Tensor]:
    """What vanishes beside numbers of order one, for each value of a call (absolute, its shape).

    `1 + erf(x)` is 0 below -6, and `1 - y * y` where tanh is saturated: right formulas are so, and no loss
    is large beside the outputs that they have elsewhere. `reach` is the largest magnitude that inputs may
    have: where they are all tiny, so are the numbers that count. Grad_outputs are of order one.
    """
    outputs = len(call.problem.output_positions)
    largest = [t.abs().nan_to_num(0.0, 0.0, 0.0).max().item() for t in values[:outputs] if t.numel()]
    one = min(1.0, reach)
    slope = max([one, *largest])
    found = [
        torch.full_like(t, UNSEEN * value.form.unit * one)
        for t, value in zip(values[:outputs], call.values[:outputs], strict=True)
    ]
    for x, t, value in zip(call.exact.primals, values[outputs:], call.values[outputs:], strict=True):
        size = x.detach().abs().to(device="cpu", dtype=torch.float64)
        size = torch.where(size > 0, size, size.square().mean().sqrt()) if size.numel() else size
        shaped = as_real(x.detach()).new_zeros(t.shape)
        size = size[..., None] if size.dim() < shaped.dim() else size
        found.append(UNSEEN * value.form.unit * slope / (shaped + size).clamp_min(_smallest(value.form)))
    return found


def largest_input(call: NativeCall) -> float:
    """The largest magnitude among the inputs of a call."""
    return max((x.detach().abs().max().item() for x in call.exact.primals if x.numel()), default=1.0)


def _smallest(form: Format) -> float:
    """Below which numbers may be flushed to zero: float32's normal ones; 16 bits are computed in float32."""
    return form.tiny if form.is_short else torch.finfo(form.dtype).tiny


INSIDE_DRAWS = 8
"""Runs of each kind for the noise of float32 inside."""

ROUNDING_DRAWS = 16
"""Runs of each kind for the noise of rounded intermediates."""


MOST_ELEMENTS = 1_000_000
"""Elements of the inputs up to which runs are kept: each draw holds a copy of every gradient."""

Runs = tuple[list[tuple[Tensor, ...]], list[tuple[Tensor, ...]]]
"""Runs in which operations err, and runs at moved inputs: all values of each."""


@dataclass(frozen=True)
class Source:
    """A computation of the truth in float64, on which noise can be measured."""

    name: str
    """In words: `the reference`, `forward itself`, `its own float64 path`."""
    problem: CallProblem
    cotangents: Sequence[Tensor]
    seed: int
    plain: bool = False
    """It is made of torch's operations alone: where none of them errs, what it gives is exact."""


@dataclass
class Scatter:
    """Runs of one source that err at random; each unit is measured once."""

    source: Source
    guessed: bool = False
    """Some of the noise is a guess: kernels ran whose steps are not seen."""
    draws: bool = False
    """It draws random numbers, with a generator of its own: native values are others."""
    _runs: dict[tuple[float, int], Runs | None] = field(default_factory=dict)
    _moves: dict[tuple[float, int], list[tuple[Tensor, ...]]] = field(default_factory=dict)

    def inside(self) -> Runs | None:
        """Runs with the noise of float32 inside; None where it cannot be measured."""
        return self._measured(SINGLE_UNIT, INSIDE_DRAWS)

    def rounding(self, form: Format) -> Runs | None:
        """Runs with intermediates rounded to a format; None where that cannot be measured."""
        return self._measured(form.unit, ROUNDING_DRAWS)

    def moved(self, unit: float, draws: int = INSIDE_DRAWS) -> list[tuple[Tensor, ...]]:
        """All values at inputs moved by up to a unit; empty where a run raises."""
        key = (unit, draws)
        if key not in self._moves:
            self._moves[key] = self._moved(unit, draws)
        return self._moves[key]

    def _moved(self, unit: float, draws: int) -> list[tuple[Tensor, ...]]:
        source = self.source
        generator = torch.Generator().manual_seed(source.seed % 2**63)
        runs = []
        for _ in range(draws):
            primals = [erring(p, unit, generator) for p in source.problem.primals]
            cotangents = [erring(u, unit, generator) for u in source.cotangents]
            values = values_at(source.problem, primals, cotangents)
            if isinstance(values, Raised):
                return []
            runs.append(values)
        return runs

    def _measured(self, unit: float, draws: int) -> Runs | None:
        key = (unit, draws)
        if key not in self._runs and sum(p.numel() for p in self.source.problem.primals) > MOST_ELEMENTS:
            self._runs[key] = None
        if key not in self._runs:
            erred = self._erred(unit, draws)
            moved = self.moved(unit, draws) if erred else []
            self._runs[key] = (erred, moved) if erred and moved else None
        return self._runs[key]

    def _erred(self, unit: float, draws: int) -> list[tuple[Tensor, ...]]:
        source = self.source
        generator = torch.Generator().manual_seed((source.seed + 1) % 2**63)
        runs = []
        for _ in range(draws):
            result = guard.call(_erring_run, source, unit, generator)
            if isinstance(result, Raised):
                return []
            values, mode = result.value
            self.draws |= mode.draws
            self.guessed |= mode.guessed
            if isinstance(values, Raised) or mode.foreign or mode.missed:
                return []
            runs.append(values)
        return runs


def _erring_run(
    source: Source, unit: float, generator: torch.Generator
) -> tuple[tuple[Tensor, ...] | Raised, RandomRounding]:
    """One run in which every operation errs, and what was seen; fused attention is written out."""
    with sdpa_kernel(SDPBackend.MATH), RandomRounding(unit, generator) as mode:
        values = values_at(source.problem, source.problem.primals, source.cotangents)
    return values, mode
