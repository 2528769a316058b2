"""What a diagnosis starts from: both Jacobians at several points, and when an explanation holds.

A cause: the name of a mistake, the sentence about it, and the change of backward that takes it back.

What the sentences about a cause are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from gradverify.model import LinePatch, Scalar
from gradverify.verifier.numerics.problem import Block, Layout
from gradverify.verifier.questions.findings import number

if TYPE_CHECKING:
    from gradverify.verifier.diagnose.edits.own_backward import OwnBackward


@dataclass(frozen=True)
class InBackward:
    """One change of backward's source after which its gradient is right."""

    file: str
    """Name of the file, without its folder."""
    line: int
    before: str
    """What is there."""
    after: str
    """What should; empty where nothing should."""
    helper: str = ""
    """The function that it stands in, where that is one that backward calls."""
    cause: str = ""
    """The name of the mistake that it takes back."""
    patch: LinePatch | None = None
    """The change as lines of the file; None where no lines say it alone."""


@dataclass(frozen=True)
class Cause:
    """One hypothesis that held at every entry of every point."""

    name: str
    """One of the names of `Finding.cause`."""
    what: str = ""
    """What is wrong, without a capital and a full stop; empty where the change alone is known."""
    advice: str = ""
    """What to try, as whole sentences."""
    is_weak: bool = False
    """Whether the numbers are merely consistent with it: another mistake may give the same ones."""
    factor: float | None = None
    """claimed / true, where it is one number."""
    change: InBackward | None = None
    """The change of backward that takes the mistake back."""


NEAR_ONE = 0.01
"""A factor this near to 1 is reported with all the digits that are known."""

WITH_FIX = "with the fix"
"""How a hint begins that has no more to say than the lines of the fix do."""

Options = tuple[tuple[str, Scalar], ...]
"""(name, value) pairs of a case."""


def of_gradient(pair: Pair) -> str:
    """Whose gradient a sentence is about."""
    if pair.point.order > 1:
        of = f"`{pair.output_name}` (the gradient of `{pair.output_name[2:]}`)"
        return f"the derivative of {of} by `{pair.name}`"
    # What is true of one output would spoil the gradient through the others.
    through = f" through output `{pair.output_name}`" if len(pair.point.outputs.blocks) > 1 else ""
    return f"the gradient of `{pair.name}`{through}"


def cotangent(pair: Pair) -> str:
    """What comes back: `grad_output`, and of second order what comes back to the gradient."""
    return "grad_output" if pair.point.order == 1 else f"grad_{pair.output_name}"


def times_too_large(c: float) -> str:
    """What a factor of claimed / true means."""
    if c == 0:
        return "is zero"
    if abs(c + 1) < 1e-9:
        return "has the wrong sign"
    if abs(c - 1) < NEAR_ONE:
        return f"is {c:.8g} times what it should be"
    if c > 1:
        return f"is {number(c)} times too large"
    if 0 < c < 1:
        return f"is {number(1 / c)} times too small"
    return f"is {number(c)} times what it should be"


def in_words(cause: Cause, pairs: Pairs, options: Options = ()) -> str:
    """One to four sentences: what holds, at how many points it was checked, what to try, and where.

    `options` are those of all these points, where others were verified besides.
    """
    what, advice = cause.what, cause.advice
    if cause.change is not None and cause.change.patch is not None:
        # The report shows its lines.
        what, advice = (what, "") if what else (f"{WITH_FIX}, {of_gradient(pairs[0])} is right", "")
    elif cause.change is not None:
        becomes_right = f"becomes right {with_change(cause.change)}"
        what, advice = (
            (what, f"It {becomes_right}.") if what else (f"{of_gradient(pairs[0])} {becomes_right}", "")
        )
    start = "Consistent with this: " if cause.is_weak and not what.startswith(WITH_FIX) else ""
    what = start + (what if start else what[0].upper() + what[1:])
    return f"{what} ({_checked(pairs, options if cause.what else ())}). {advice}".strip()


def with_change(change: InBackward) -> str:
    """``with `b` in place of `a` in backward (line 12 of f.py)``."""
    after = f"with `{change.after}` in place of" if change.after else "without"
    place = f" (line {change.line} of {change.file})" if change.line else ""
    return f"{after} `{change.before}` in {f'`{change.helper}`' if change.helper else 'backward'}{place}"


def _checked(pairs: Pairs, options: Options) -> str:
    sizes = sizes_seen(pairs)
    alone = f", all with `{', '.join(f'{k}={v!r}' for k, v in options)}`" if options else ""
    return f"checked at {len(pairs)} points of {'one size' if sizes == 1 else f'{sizes} sizes'}{alone}"


Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Every tensor of a call by its name in sentences, outputs last."""

RELATIVE = 1e-8
"""An explanation may miss an entry by this share of it: far above rounding, far below any mistake."""

ROUNDING = 1e-11
"""... and by this share of the largest entry: what cancels in backward has the rounding of its terms."""

KNOWN = 1e-5
"""An entry is evidence if it was measured to within this share of the largest of its block."""

LEAST_KNOWN = 0.9
"""Share of a block's entries that must be evidence, for a sentence that speaks of every entry."""


@dataclass(frozen=True)
class OfRanks:
    """What backward gives on each rank of a world."""

    claimed: tuple[Tensor, ...]
    """Matrices like `Point.claimed`: the gradient that one rank returned, where all return as much."""
    columns: tuple[tuple[Tensor, ...], ...]
    """For each input the columns of its block that each rank has; empty where all have the same."""
    rows: tuple[tuple[Tensor, ...], ...]
    """For each output the rows of its block, likewise."""


@dataclass(frozen=True)
class Point:
    """Both Jacobians at one point. Matrices are M × N, as in `gradverify.verifier.numerics.jacobian`."""

    claimed: Tensor
    """What backward gives."""
    true: Tensor
    """What forward has, measured."""
    bound: Tensor
    """How far `true` may be off; infinite where nothing is known."""
    inputs: Layout
    outputs: Layout
    x: Tensor
    y: Tensor
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    flat: Tensor
    """bool: where no step whatever changed the output."""
    shapes: Shapes = ()
    """What a factor may be a size of."""
    scalars: tuple[tuple[str, float], ...] = ()
    """Literal numbers of the call."""
    constants: tuple[tuple[str, Tensor], ...] = ()
    """Real tensors of the call that are not differentiated (targets, masks, indices), as float64."""
    forward: Callable[[Tensor], Tensor | None] = lambda _: None
    """f(x), laid out like the outputs, for another x; None where it cannot be evaluated."""
    own_backward: OwnBackward | None = None
    """Backward itself, to be run with a change in it."""
    raises: bool = False
    """Backward raised there: what it claims are the zeros of a None."""
    of_ranks: OfRanks | None = None
    """None in one process."""
    order: int = 1
    """2 where the inputs are those of backward, and the outputs are gradients."""

    @cached_property
    def _pairs(self) -> tuple[Pair, ...]:
        outputs, inputs = range(len(self.outputs.blocks)), range(len(self.inputs.blocks))
        return tuple(Pair(self, output, source) for output in outputs for source in inputs)

    def pairs(self, output: int | None = None) -> list[Pair]:
        """Every block, or those of one output."""
        return [pair for pair in self._pairs if output in {None, pair.output}]


@dataclass(frozen=True)
class Pair:
    """One (output, input) block of a point: what one finding is about. Matrices are m × n."""

    point: Point
    output: int
    """Number of the output's block."""
    source: int
    """Number of the input's block."""

    @cached_property
    def output_block(self) -> Block:
        """Where the output lies."""
        return self.point.outputs.blocks[self.output]

    @cached_property
    def source_block(self) -> Block:
        """Where the input lies."""
        return self.point.inputs.blocks[self.source]

    @cached_property
    def claimed(self) -> Tensor:
        """What backward gives."""
        return self.cut(self.point.claimed)

    @cached_property
    def true(self) -> Tensor:
        """What forward has."""
        return self.cut(self.point.true)

    @cached_property
    def bound(self) -> Tensor:
        """How far `true` may be off."""
        return self.cut(self.point.bound)

    @cached_property
    def name(self) -> str:
        """The input's name."""
        return self.point.input_names[self.source]

    @cached_property
    def output_name(self) -> str:
        """The output's name."""
        return self.point.output_names[self.output]

    @cached_property
    def x(self) -> Tensor:
        """The input's values, n."""
        return self.point.x[self.source_block.start : self.source_block.stop]

    @cached_property
    def y(self) -> Tensor:
        """The output's values, m."""
        return self.point.y[self.output_block.start : self.output_block.stop]

    @cached_property
    def scale(self) -> float:
        """The largest entry of both sides."""
        sizes = [t.abs()[t.isfinite()] for t in (self.claimed, self.true)]
        return max((t.max().item() for t in sizes if t.numel()), default=0.0)

    @cached_property
    def known(self) -> Tensor:
        """Entries that are evidence."""
        precise = self.bound <= KNOWN * self.scale
        return precise & self.claimed.isfinite() & self.true.isfinite()

    @cached_property
    def usable(self) -> bool:
        """Whether enough is known to speak of every entry."""
        return bool(self.known.numel()) and self.known.double().mean().item() >= LEAST_KNOWN

    @cached_property
    def wrong(self) -> Tensor:
        """Entries that differ by more than an explanation may miss."""
        return self.known & ~self.close(self.true, self.bound)

    @cached_property
    def is_wrong(self) -> bool:
        """Whether any entry is."""
        return bool(self.wrong.any())

    @cached_property
    def is_nothing(self) -> bool:
        """Whether backward gives zeros where forward has nothing but zeros: no evidence of anything."""
        return not bool(self.claimed.any()) and bool((self.true.abs() <= self.bound).all())

    @cached_property
    def informative(self) -> Tensor:
        """Known entries that are not zero on both sides."""
        least = 2 * self.bound + 1e-9 * self.scale
        return self.known & ((self.true.abs() > least) | (self.claimed.abs() > least))

    @cached_property
    def nonzero(self) -> Tensor:
        """Known entries where the function does depend on the input."""
        return self.known & (self.true.abs() > 2 * self.bound + 1e-9 * self.scale)

    def cut(self, matrix: Tensor) -> Tensor:
        """The same block of another matrix of the point."""
        rows, columns = self.output_block, self.source_block
        return matrix[rows.start : rows.stop, columns.start : columns.stop]

    def close(self, explained: Tensor, bound: Tensor) -> Tensor:
        """Entries that an explanation accounts for, with its own error."""
        allowed = bound + RELATIVE * (self.claimed.abs() + explained.abs()) + ROUNDING * self.scale
        return (self.claimed - explained).abs() <= allowed

    def explained_by(self, explained: Tensor, bound: Tensor) -> bool:
        """Whether an explanation holds at every entry that is evidence, and these are nearly all."""
        evidence = self.known & (bound <= KNOWN * self.scale)
        if not evidence.numel() or evidence.double().mean().item() < LEAST_KNOWN:
            return False
        return bool(self.close(explained, bound)[evidence].all())

    @cached_property
    def source_shape(self) -> tuple[int, ...]:
        """The input's dimensions; of a complex one those of its view as real numbers, but for the last."""
        return self.source_block.shape[:-1] if self.source_block.is_complex else self.source_block.shape

    @cached_property
    def output_shape(self) -> tuple[int, ...]:
        """The output's dimensions, likewise."""
        return self.output_block.shape[:-1] if self.output_block.is_complex else self.output_block.shape


Pairs = Sequence[Pair]
"""The same block at every point: those that are wrong first, then those that passed."""


def wrong_ones(pairs: Pairs) -> list[Pair]:
    """Those with wrong entries."""
    return [pair for pair in pairs if pair.is_wrong]


def sizes_seen(pairs: Pairs) -> int:
    """How many sizes there are among the points."""
    return len({pair.point.shapes for pair in pairs})


def has_other_sizes(pairs: Pairs) -> bool:
    """Whether wrong entries were seen at more than one size."""
    return sizes_seen(wrong_ones(pairs)) > 1


def same_everywhere(values: Sequence[float], tolerance: float = 1e-6) -> bool:
    """Whether numbers that were measured apart are one number."""
    return all(abs(v - values[0]) <= tolerance * max(abs(values[0]), abs(v)) for v in values)


Explanation = tuple[Tensor, Tensor]
"""What a hypothesis says that backward gives, m × n, and how far that may be off."""


@dataclass(frozen=True)
class Hypothesis:
    """A cause, and what backward gives if it is the cause."""

    cause: Cause
    explain: Callable[[Pair], Explanation | None]
    """None where it cannot be the cause at a point."""

    def holds(self, pairs: Pairs) -> bool:
        """Whether it explains every entry of every point."""
        explained = (self.explain(pair) for pair in pairs)
        return all(
            found is not None and pair.explained_by(*found)
            for pair, found in zip(pairs, explained, strict=True)
        )


def first_that_holds(hypotheses: Iterable[Hypothesis], pairs: Pairs) -> Cause | None:
    """The cause of the first hypothesis that explains everything."""
    return next((one.cause for one in hypotheses if one.holds(pairs)), None)
