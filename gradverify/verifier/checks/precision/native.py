"""One call in a native dtype beside the same call in float64: inputs and grad_outputs rounded first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.model import RaisedError
from gradverify.verifier.checks.precision.arithmetic import Arithmetic
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.subject import first_line
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.inputs.native_values import Change, native_arguments
from gradverify.verifier.numerics.calling import Tensors, with_zeros
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.precision.formats import Format, as_real, format_of
from gradverify.verifier.numerics.problem import CallProblem


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
