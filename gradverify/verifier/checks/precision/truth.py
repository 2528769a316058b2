"""The truth in float64 for a native call: the strongest there is, and others that agree with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from gradverify.model import Case, Point
from gradverify.verifier import guard
from gradverify.verifier.checks.composite import (
    Composite,
    NoComposite,
    composite_of,
    of_tensors,
    recorded_forward,
)
from gradverify.verifier.checks.precision.judging import Truth
from gradverify.verifier.checks.precision.messages import OWN_FLOAT32
from gradverify.verifier.checks.precision.native import NativeCall, native_call, values_of
from gradverify.verifier.checks.precision.scatter import Scatter, Source
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import Sample, Subject
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.native_values import drawn_value
from gradverify.verifier.numerics.calling import returned_tensors
from gradverify.verifier.numerics.precision.formats import as_real
from gradverify.verifier.numerics.precision.random_rounding import erring
from gradverify.verifier.numerics.problem import CallProblem
from gradverify.verifier.numerics.tolerance import is_known
from gradverify.verifier.numerics.tracing import promoted

AGREE = 1e-6
"""Relative difference, beside a value or its typical size, within which two float64 computations agree."""

FOLLOW = 16.0
"""Times half of a dtype's digits by which inputs move to see whether a recording follows them."""

FOLLOW_AT_MOST = 0.25
"""Relative: further away, branches may be others."""

CHANGE_ROUNDINGS = 4.0
"""Roundings of a value by which its change may be off: two of the outputs, and some of what is inside."""

SAME_CHANGE = 1e-2
"""Share of a change within which another one is the same: both are of the same map, so only rounding is
between them."""

OWN = "its own verified float64 path"


class Strategy(Protocol):
    """Where the truth comes from."""

    @property
    def name(self) -> str:
        """What native values are held against, in words."""

    def of(self, call: NativeCall, seed: int) -> Truth | str:
        """The truth for one native call, or why there is none, as the end of a sentence."""

    def plain(self, call: NativeCall, *, for_gradients: bool = False) -> Composite | None:
        """A composite that can be run in the native dtype, where there is one.

        What torch derives of forward's own operations says something of gradients alone.
        """

    def alone(self) -> Strategy:
        """The same without what is needed to measure rounding alone."""


@dataclass(frozen=True)
class Verified:
    """The target's own float64 values, verified just before; a composite that agrees gives the noise."""

    sample: Sample
    composite: Composite | NoComposite

    @property
    def name(self) -> str:
        """The composite, where there is one."""
        return self.composite.source if isinstance(self.composite, Composite) else OWN

    def of(self, call: NativeCall, seed: int) -> Truth | str:
        """Both computations, the composite first."""
        cotangents = call.exact_cotangents
        own = values_of(call.exact, cotangents)
        if isinstance(own, Raised):
            return f"in float64 it raises {own.error.type} at the rounded inputs"
        sources = [Source(OWN, call.exact, cotangents, seed)]
        if isinstance(self.composite, Composite):
            other = replace(self.composite.problem, arguments=call.exact.arguments)
            theirs = values_of(other, cotangents)
            if not isinstance(theirs, Raised) and agree(own, theirs):
                sources.insert(0, Source(self.composite.source, other, cotangents, seed, plain=True))
        return Truth(own, tuple(Scatter(source) for source in sources))

    def plain(self, call: NativeCall, *, for_gradients: bool = False) -> Composite | None:  # noqa: ARG002 - the protocol's signature
        """The confirmed composite, or any that gives the target's values."""
        composite = self.composite if isinstance(self.composite, Composite) else composite_of(self.sample)
        return composite if isinstance(composite, Composite) else None

    def alone(self) -> Strategy:
        """Its own values."""
        return replace(self, composite=NoComposite("its own values are enough"))


@dataclass(frozen=True)
class FromNative:
    """The truth for a target without a float64 path: the reference, or forward's operations in float64."""

    subject: Subject
    case: Case | None = None
    """Given at values that are no typical ones: there nothing may change, as where all is saturated."""
    followed: bool = False
    """Forward's operations were seen to follow it at the values beside which these lie."""

    @property
    def name(self) -> str:
        """Which of them."""
        return "the reference" if self.subject.reference is not None else "forward's operations in float64"

    def of(self, call: NativeCall, seed: int) -> Truth | str:
        """The values of the composite at the rounded inputs."""
        composite = self.composite(call)
        if composite is None:
            return "it has no float64 path and no composite in plain torch operations"
        other = replace(composite.problem, arguments=call.exact.arguments)
        values = values_of(other, call.exact_cotangents)
        if isinstance(values, Raised):
            return f"{self.name} cannot be differentiated in float64: {values.error.type}"
        if self.subject.reference is None and not self._is_followed(call, other, seed):
            return "it has no float64 path, and its forward is not made of torch operations alone"
        source = Source(self.name, other, call.exact_cotangents, seed, plain=True)
        return Truth(values, (Scatter(source),))

    def alone(self) -> Strategy:
        """The composite, which was seen to follow forward at typical values."""
        return replace(self, followed=True)

    def _is_followed(self, call: NativeCall, composite: CallProblem, seed: int) -> bool:
        """Whether forward's operations follow it here; where nothing changes, at typical values."""
        if self.followed:
            return True
        found = _follows(call, composite, seed)
        if found is not None or self.case is None:
            return bool(found)
        typical = prepare(self.subject, self.case, Point.TYPICAL, 0)
        if not isinstance(typical, Sample):
            return False
        there = native_call(
            typical.problem, typical.exact or typical.arguments, call.arithmetic, drawn_value, seed
        )
        other = replace(self, case=None).composite(there) if isinstance(there, NativeCall) else None
        if other is None or not isinstance(there, NativeCall):
            return False
        return bool(_follows(there, replace(other.problem, arguments=there.exact.arguments), seed))

    def composite(self, call: NativeCall) -> Composite | None:
        """The reference; without one, what forward's operations are."""
        return self._reference(call) if self.subject.reference is not None else self._recorded(call)

    def plain(self, call: NativeCall, *, for_gradients: bool = False) -> Composite | None:
        """The reference; forward's own operations are what is judged, but for their derivative."""
        return self.composite(call) if for_gradients else self._reference(call)

    def _recorded(self, call: NativeCall) -> Composite | None:
        """The operations that forward ran on the native inputs."""
        subject = self.subject
        if subject.own_forward is None:
            return None
        recorded = guard.call(recorded_forward, call.problem, subject.own_forward)
        if isinstance(recorded, Raised):
            return None
        run = guard.call(promoted, recorded.value)
        if isinstance(run, Raised):
            return None
        return Composite(replace(call.exact, function=of_tensors(run.value)), self.name)

    def _reference(self, call: NativeCall) -> Composite | None:
        names = [a.name for a in call.exact.arguments]
        reference = self.subject.reference_by_name(names)
        return None if reference is None else Composite(replace(call.exact, function=reference), self.name)


@dataclass(frozen=True)
class OwnFloat32:
    """The target in 16 bits against itself in float32: where there is neither float64 nor a composite.

    What is rounded too often shows. A formula that is wrong in both dtypes does not: that is left to the
    slope of forward in float32.
    """

    name: str = OWN_FLOAT32

    def of(self, call: NativeCall, seed: int) -> Truth | str:
        """The values in float32; the noise inside is not seen, what moved inputs do is."""
        problem = replace(call.exact, function=_through_float32(call.exact.function))
        values = values_of(problem, call.exact_cotangents)
        if isinstance(values, Raised):
            return f"in float32 it raises {values.error.type}"
        return Truth(values, (Scatter(Source(self.name, problem, call.exact_cotangents, seed)),))

    def plain(self, call: NativeCall, *, for_gradients: bool = False) -> Composite | None:  # noqa: ARG002 - the protocol's signature
        """There is none."""
        return None

    def alone(self) -> Strategy:
        """It is alone."""
        return self


def _through_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of float64 tensors that computes in float32."""

    def called(*arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401 - user code's arguments and result
        given = [_cast(a, torch.float64, torch.float32) for a in arguments]
        return tuple(_cast(r, torch.float32, torch.float64) for r in returned_tensors(function(*given)))

    return called


def _cast(value: Any, of: torch.dtype, to: torch.dtype) -> Any:  # noqa: ANN401 - any argument
    return value.to(to) if isinstance(value, Tensor) and value.dtype is of else value


def _follows(call: NativeCall, composite: CallProblem, seed: int) -> bool | None:
    """Whether a recorded forward gives forward's values, and changes as forward does where inputs move.

    None where nothing changes.

    NumPy, `.item()` and kernels leave no operation behind, only the number that they gave: that has forward's
    value and none of its changes. What does not change by more than rounding shows neither.
    """
    eps = float(torch.finfo(call.dtype).eps)
    generator = torch.Generator().manual_seed(seed % 2**63)
    moved = [erring(p, min(FOLLOW * eps**0.5, FOLLOW_AT_MOST), generator) for p in call.exact.primals]
    pairs = [_both(call, composite, primals) for primals in (call.exact.primals, moved)]
    if not all(pairs):
        return False
    seen = False
    for here, there in zip(*pairs, strict=True):
        size = here[1].abs() + here[1].square().mean().sqrt()
        if not ((here[0] - here[1]).abs() <= eps**0.5 * size).all():
            return False  # NaN and infinities show no agreement
        own, recorded = (after - before for before, after in zip(here, there, strict=True))
        off, whole = own - recorded, recorded.norm()
        # What cancels inside leaves single entries few digits, and all of them together more.
        near = off.abs() <= SAME_CHANGE * recorded.abs() + eps**0.5 * size
        rounding = eps * size.max() if size.numel() else torch.zeros(())
        along = (off * recorded).sum().abs() <= whole * (SAME_CHANGE * whole + CHANGE_ROUNDINGS * rounding)
        if not near.all() or not along:
            return False
        seen |= bool(is_known(whole, whole, rounding))
    return seen or None


def _both(call: NativeCall, composite: CallProblem, primals: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """What the target and the composite give at values that are rounded for both; empty where one raises."""
    short = [p.to(native.dtype) for p, native in zip(primals, call.problem.primals, strict=True)]
    native = call.problem.evaluate(short)
    exact = composite.evaluate([s.to(p.dtype) for s, p in zip(short, primals, strict=True)])
    if isinstance(native, Raised) or isinstance(exact, Raised):
        return []
    return list(zip(map(as_real, native.value), map(as_real, exact.value), strict=True))


def agree(mine: Sequence[Tensor], theirs: Sequence[Tensor], within: float = AGREE) -> bool:
    """Whether two computations give the same values."""
    for a, b in zip(mine, theirs, strict=True):
        if a.shape != b.shape:
            return False
        size = a.abs() + a.square().mean().sqrt() if a.numel() else a
        near = (a - b).abs() <= within * size
        if not (near | (a == b) | (a.isnan() & b.isnan())).all():
            return False
    return True
