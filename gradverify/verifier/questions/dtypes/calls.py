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
from torch.utils import _pytree

from gradverify.model import RaisedError
from gradverify.verifier.guard import Raised, own_default_dtype
from gradverify.verifier.guard.dispatching import Dispatched
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.inputs.native_values import native_arguments
from gradverify.verifier.numerics.calling import Tensors, with_zeros
from gradverify.verifier.numerics.problem import CallProblem, Counter, Layout
from gradverify.verifier.questions.subject import Sample, Subject, UserCode, first_line, longest, places_of
from gradverify.verifier.witnesses.derived import Derived, derive
from gradverify.verifier.witnesses.rounding import DRAWS, STILL
from gradverify.verifier.witnesses.rounding import Arithmetic as Erring
from gradverify.verifier.witnesses.values import probe

TRIED = 2.0**-40
"""By how much operations err, relative, where rounding is measured in float64: its own is far below, and
curvature does not matter."""

MOST_ELEMENTS = 1_000_000
"""Elements of the inputs up to which rounding is measured: each draw holds a copy of every gradient."""


SINGLE_UNIT = 2.0**-24
"""Unit roundoff of float32 (IEEE 754): what careful kernels compute with inside."""


@dataclass(frozen=True)
class Format:
    """One floating dtype; a complex one is judged by its parts."""

    dtype: torch.dtype
    """Real."""
    unit: float
    """Unit roundoff u, relative: half the distance from 1 to the next larger number."""
    tiny: float
    """Half the spacing of subnormal numbers, absolute."""
    largest: float

    @property
    def is_short(self) -> bool:
        """Whether it has 16 bits or fewer: then float32 inside is far more exact than the result."""
        return self.unit > SINGLE_UNIT

    @property
    def smallest(self) -> float:
        """Below it numbers may be flushed to zero: 16 bits are computed in float32."""
        return self.tiny if self.is_short else torch.finfo(self.dtype).tiny


def format_of(dtype: torch.dtype) -> Format:
    """The format of a floating dtype, or of the parts of a complex one."""
    real = dtype.to_real()
    info = torch.finfo(real)
    return Format(real, info.eps / 2, info.smallest_normal * info.eps / 2, info.max)


def as_real(x: Tensor) -> Tensor:
    """The values in float64 on the CPU, the parts of complex ones along a last dimension of 2."""
    plain = x.detach().resolve_conj().resolve_neg()
    plain = plain.to_dense() if plain.layout is not torch.strided else plain
    real = torch.view_as_real(plain) if plain.is_complex() else plain
    return real.to(device="cpu", dtype=torch.float64)


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

    def of(self, function: UserCode) -> UserCode:
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
    formats = filter(None, (dtype, inside))
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
    hides: bool
    """Numbers come from where no operation was seen to make them: NumPy, a kernel."""

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


class _Seen(Dispatched):  # type: ignore[no-untyped-call]
    """Notes whether an operation draws random numbers, and whether one reads what no operation has made."""

    def __init__(self, given: object) -> None:
        super().__init__()
        self.draws = self.hides = False
        self.made: dict[int, object] = {}
        self.make(given)

    def make(self, values: object) -> None:
        """These come from an operation, or are given; what is kept leaves its memory to no other."""
        self.made.update({t.untyped_storage().data_ptr(): t for t in _dense(values)})

    def read(self, values: object) -> None:
        """These are read."""
        self.hides |= any(t.untyped_storage().data_ptr() not in self.made for t in _dense(values))

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one operation."""
        self.draws |= torch.Tag.nondeterministic_seeded in func.tags
        if func is not torch.ops.aten.lift_fresh.default or args[0].dim():  # as of `torch.tensor(2.0)`
            self.read((args, dict(given)))
        result = func(*args, **given)
        self.make(result)
        return result


def _dense(values: object) -> list[Tensor]:
    tensors = (t for t in _pytree.tree_leaves(values) if isinstance(t, Tensor))
    return [t for t in tensors if t.layout is torch.strided and t.numel()]


class _Erring(Erring):  # type: ignore[no-untyped-call]
    """Errs by its unit whatever the dtype."""

    def unit_of(self, dtype: torch.dtype) -> float:  # noqa: ARG002 - what it overrides
        """The unit."""
        return self.unit


def native_call(
    problem: CallProblem, arguments: Sequence[Argument], arithmetic: Arithmetic, seed: int
) -> NativeCall | NoCall:
    """Call the target in a native arithmetic, forward and backward."""
    pair = native_arguments(arguments, arithmetic.inputs)
    if pair is None:
        return NoCall("its inputs cannot be rounded to it")
    function = arithmetic.of(problem.function)
    native = replace(problem, arguments=pair[0], function=function, around=own_default_dtype)
    given: list[Tensor] = []

    def drawn(outputs: Tensors) -> Tensors:
        layout, before = Layout.of(outputs), seen.draws
        given.extend(layout.unflatten(probe(layout.size, seed % 4096)))
        seen.draws = before  # which these are not
        return tuple(given)

    with _Seen([a.value for a in pair[0]]) as seen:
        got = values_of(native, drawn)  # which reads all that comes back
    if not all(u.is_floating_point() or u.is_complex() for u in given):
        return NoCall("an output is not floating in this dtype")
    if isinstance(got, Raised):
        why = f"{got.error.type}: {first_line(got.error.message)}"
        return NoCall(why, got.error, in_backward=bool(given))
    if seen.draws:
        return NoCall(DRAWS_NUMBERS)
    return NativeCall(native, replace(problem, arguments=pair[1]), tuple(given), got, arithmetic, seen.hides)


def values_of(
    problem: CallProblem,
    cotangents: Sequence[Tensor] | Callable[[Tensors], Sequence[Tensor]],
    primals: Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...] | Raised:
    """Outputs, then gradients without the entries that are held constant, as real float64.

    Of any problem over the same inputs; grad_outputs may be made from its outputs.
    """
    graph = problem.graph(problem.primals if primals is None else primals)
    if isinstance(graph, Raised):
        return graph
    outputs = graph.value.outputs
    values = tuple(as_real(o).clone() for o in outputs)  # before backward can write into them
    given = cotangents(outputs) if callable(cotangents) else cotangents
    back = problem.back(graph.value, [u.to(o.dtype) for u, o in zip(given, outputs, strict=True)])
    if isinstance(back, Raised):
        return back
    gradients = with_zeros(back.value, graph.value.leaves)
    differentiable = (a for a in problem.arguments if a.differentiable)
    pairs = zip(gradients, differentiable, strict=True)
    return (*values, *(as_real(g if a.held is None else g.masked_fill(a.held, 0)) for g, a in pairs))


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
        wide = tuple(u.to(longest(u.dtype)) for u in call.cotangents)
        values = values_of(problem, wide)
        return values if isinstance(values, Raised) else Truth(problem, wide, values)

    @functools.cached_property
    def noise(self) -> tuple[Tensor | None, ...]:
        """Deviations of each value (draws × shape) where operations and inputs err, in units of the roundoff.

        None where no operation was seen to err: what it computes with is not known.
        """
        small = sum(p.numel() for p in self.problem.primals) <= MOST_ELEMENTS
        # Operations err by up to twice the unit that they are given.
        off = self.moved(TRIED, erring=TRIED / 2, still=STILL) if small else None
        each = off or [torch.zeros(STILL, 1)] * len(self.values)
        return tuple(one / TRIED if bool(one[:STILL].any()) else None for one in each)

    def moved(self, unit: float, *, erring: float = 0.0, still: int = 0) -> list[Tensor]:
        """Deviations of each value (draws × shape) at inputs moved by up to a unit at random, or still.

        Empty where a run raises.
        """
        runs = []
        for draw in range(DRAWS):
            generator, size = torch.Generator().manual_seed(draw), unit if draw >= still else 0.0
            primals = []
            for p in self.problem.primals:
                share = torch.rand(p.shape, generator=generator, dtype=torch.float64).to(p.device)
                primals.append(p * (1 + size * (2 * share - 1)))
            with _Erring(draw, erring):
                made = values_of(self.problem, self.cotangents, primals)
            if isinstance(made, Raised):
                return []
            runs.append(made)
        each = zip(self.values, *runs, strict=True)
        return [torch.stack(of_draws) - value for value, *of_draws in each]


def composite(
    subject: Subject, problem: CallProblem, outputs: Sequence[Tensor], arithmetic: Arithmetic | None = None
) -> CallProblem | None:
    """The reference; without one, the operations that forward ran to give its `outputs`.

    Over the inputs of a call, in float64 or in an arithmetic; None where there is neither.
    """
    under = arithmetic.of if arithmetic is not None else lambda function: function
    reference = subject.reference_by_name(places_of(problem.arguments))
    if reference is not None:
        around = nullcontext if arithmetic is None else problem.around
        return replace(problem, function=under(reference), around=around, counter=Counter())
    form, wide = ("recorded", True) if arithmetic is None else ("eager", False)
    found = derive(problem, under(subject.call), outputs, first=form, wide=wide)
    return found.problem if isinstance(found, Derived) else None


def in_float64(
    subject: Subject, native: CallProblem, exact: Sequence[Argument], outputs: Sequence[Tensor]
) -> CallProblem | None:
    """The map in float64 that a call without a float64 path is held against, at the same inputs (`exact`)."""
    made = composite(subject, native, outputs)
    wide = tuple(replace(b, dtype=longest(b.dtype)) for b in native.outputs.blocks)
    return None if made is None else replace(made, arguments=tuple(exact), outputs=Layout(wide))


NO_TRUTH = "it has no float64 path and no composite in plain torch operations"


def truth_of(sample: Sample, call: NativeCall) -> Truth | str:
    """The truth of a native call, or why there is none, as the end of a sentence.

    The target's own float64 values, verified before; where it has none, its reference or what its operations
    give in float64.
    """
    exact: CallProblem | None = call.exact
    if sample.is_native:
        exact = in_float64(sample.subject, call.problem, call.exact.arguments, call.outputs)
    found = NO_TRUTH if exact is None else Truth.of(exact, call)
    return f"in float64 it raises {found.error.type}" if isinstance(found, Raised) else found


def exact_arguments(sample: Sample) -> Sequence[Argument]:
    """The values that a native sample is called with, in float64."""
    pair = native_arguments(sample.exact, sample.subject.native)
    return sample.arguments if pair is None else pair[1]


def as_plain_operations(subject: Subject, call: NativeCall) -> tuple[Tensor, ...] | None:
    """What torch's operations give in the native dtype in place of the target; None where nothing tells."""
    made = composite(subject, call.problem, call.outputs, call.arithmetic)
    values = None if made is None else values_of(made, call.cotangents)
    return None if isinstance(values, Raised) else values
