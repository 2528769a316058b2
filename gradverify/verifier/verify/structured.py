"""Grad_outputs of a certain structure: what a loss sends, where a test of grad_output takes another path.

Backward is linear in grad_output. So its gradient for one that is balanced, constant, tiny, large or of a
single row must be derived's; without derived, that for the sum with a random one less that for the random one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Entries, Entry, Finding, RaisedError, Severity
from gradverify.verifier.checks.first_order import backward_raised
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import apart, count_of
from gradverify.verifier.dispatching import Dispatched
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import Block
from gradverify.verifier.witnesses.answers import Asked
from gradverify.verifier.witnesses.rounding import FACTOR, spread
from gradverify.verifier.witnesses.values import EPSILON, probe

LINEAR = 1e-9
"""Relative deviation from derived, or from a sum, that a dozen roundings make."""

OF_LARGEST = 64 * EPSILON
"""The same as a share of the largest entry of the gradient: numbers of that size may cancel inside."""

FEW_BITS, MANY_BITS = 10, 40
"""Powers of two by which a grad_output is scaled: a derivative that iterates takes the first alone, and
thresholds in use lie between 1e-12 and 1e12."""

GRADUAL = 1e-4
"""Share of the largest entry: where a deviation begins with less, no path of its own begins there."""

OF_AN_ITERATION = (
    "Backward repeats a step, and takes fewer of them here. If it stops at an absolute tolerance, gradients "
    "below that are lost: compare with the norm of grad_output."
)

FAINT_ROWS = 2.0**-20
"""Of rows beside others."""


@dataclass(frozen=True)
class Structure:
    """A kind of grad_output."""

    said: str
    hint: str
    make: Callable[[Block, Tensor], Tensor]
    """From an output and random numbers of its shape."""
    bits: int = 0
    """It is scaled by this power of two, and its gradient scaled back."""


ZEROS = "Where no gradient arrives, none may leave: look for a division by the size of grad_output."
ONE_VALUE = "Look for a path that backward takes where all entries of grad_output are equal."
SUM = "Look for a test of a sum of grad_output: a sum of zero does not mean that nothing arrives."
ONE_ENTRY = "Look for a test of how many entries of grad_output are not zero, or for its largest entry."
SIGN = "Look for a test of the largest or smallest entry of grad_output: the size is that of `abs()`."
SKIPPED = "Is something skipped by a test of grad_output, as rows whose first entry is zero?"
THRESHOLD = (
    "Look for a clamp, a threshold or a small constant that grad_output, or its largest entry, is compared "
    "with or divided by."
)


def _ones(_: Block, w: Tensor) -> Tensor:
    return torch.ones_like(w)


def _mean(_: Block, w: Tensor) -> Tensor:
    return torch.full_like(w, 1.0 / max(1, w.numel()))


def _balanced_rows(_: Block, w: Tensor) -> Tensor:
    return w - w.mean(-1, keepdim=True) if w.dim() else w


def _balanced_columns(_: Block, w: Tensor) -> Tensor:
    return w - w.mean(0, keepdim=True) if w.dim() else w


def _balanced(_: Block, w: Tensor) -> Tensor:
    return w - w.mean()


def _one_of_each_row(_: Block, w: Tensor) -> Tensor:
    if not w.dim() or not w.numel():
        return w
    rows = w.reshape(-1, w.shape[-1])
    chosen = torch.arange(len(rows)) % w.shape[-1]
    made = torch.zeros_like(rows)
    made[torch.arange(len(rows)), chosen] = -rows[torch.arange(len(rows)), chosen].abs()
    return made.reshape(w.shape)


def _one_entry(_: Block, w: Tensor) -> Tensor:
    made = torch.zeros_like(w)
    if w.numel():
        made.view(-1)[w.numel() // 2] = 1.0
    return made


def _negative(_: Block, w: Tensor) -> Tensor:
    return -w.abs()


def _rows_of_different_size(_: Block, w: Tensor) -> Tensor:
    if not w.dim() or not w.numel():
        return w
    sizes = torch.tensor([1.0, FAINT_ROWS, 0.0, 2.0**10], dtype=w.dtype)
    if w.dim() == 1:
        return w * sizes[torch.arange(len(w)) % len(sizes)]
    return w * sizes[torch.arange(w.shape[0]) % len(sizes)].reshape(-1, *[1] * (w.dim() - 1))


def _dense(_: Block, w: Tensor) -> Tensor:
    return w


STRUCTURES = (
    Structure("of ones, as y.sum().backward() sends it", ONE_VALUE, _ones),
    Structure("of one value, as y.mean().backward() sends it", ONE_VALUE, _mean),
    Structure("whose rows sum to zero", SUM, _balanced_rows),
    Structure("whose columns sum to zero", SUM, _balanced_columns),
    Structure("that sums to zero", SUM, _balanced),
    Structure("with one entry in each row", ONE_ENTRY, _one_of_each_row),
    Structure("with a single entry", ONE_ENTRY, _one_entry),
    Structure("of negative numbers alone", SIGN, _negative),
    Structure("whose rows differ in size, some of them zero", SKIPPED, _rows_of_different_size),
    Structure(f"multiplied by 2^{FEW_BITS}", THRESHOLD, _dense, FEW_BITS),
    Structure(f"multiplied by 2^{-FEW_BITS}", THRESHOLD, _dense, -FEW_BITS),
    Structure(f"multiplied by 2^{MANY_BITS}", THRESHOLD, _dense, MANY_BITS),
    Structure(f"multiplied by 2^{-MANY_BITS}", THRESHOLD, _dense, -MANY_BITS),
)


def wrong_with_structure(sample: Sample, asked: Asked, *, smooth: bool = True) -> Iterator[Finding]:
    """The first structure for which the gradient is another; `asked` has a gradient that is right.

    Unless `smooth`, derived may have taken another side of a kink.
    """
    outputs = sample.problem.outputs
    if not outputs.size or not sample.inputs.size:
        return
    w = probe(outputs.size, asked.key + 29)
    made = {s.said: _of(s, sample, w) for s in STRUCTURES}
    distinct: dict[tuple[float, ...], Structure] = {}
    for s in STRUCTURES:
        distinct.setdefault(
            tuple((made[s.said] * 2.0**s.bits).tolist()) if outputs.size <= 64 else (id(s),), s
        )
    structures = [s for s in distinct.values() if bool(made[s.said].any())]
    found = asked.claim.rows(torch.stack([w, *(made[s.said] * 2.0**s.bits for s in structures)]))
    if isinstance(found, Raised):
        yield from _refused(sample, asked, structures, made)
        return
    usual, found = found[0].abs().nan_to_num(0.0, 0.0, 0.0).max(), found[1:]
    floors = {s.said: usual * made[s.said].abs().max() for s in structures}
    claims = {s.said: row * 2.0**-s.bits for s, row in zip(structures, found, strict=True)}
    nothing = asked.claim.row(torch.zeros_like(w))
    if not isinstance(nothing, Raised) and bool((nothing != 0).any()):
        zeros = Structure("of zeros", ZEROS, _dense)
        yield _finding(sample, zeros, nothing, torch.zeros_like(nothing), nothing != 0)
        return
    truth = _truths(asked, structures, made, w, smooth=smooth)
    short = asked.rtol if asked.values.steps.epsilon > EPSILON else 0.0
    for s in structures:
        expected = truth.get(s.said)
        if expected is None:
            continue
        wrong = _off(asked, claims[s.said], expected, short, floors[s.said])
        if not bool(wrong.any()):
            continue
        again = asked.claim.afresh().row(made[s.said] * 2.0**s.bits)
        if isinstance(again, Raised):
            continue
        wrong &= _off(asked, again * 2.0**-s.bits, expected, short, floors[s.said])
        if bool(wrong.any()):
            wrong &= ~_rounding(asked, made[s.said] * 2.0**s.bits, 2.0**-s.bits, claims[s.said], expected)
        if not bool(wrong.any()) or (
            abs(s.bits) == MANY_BITS and _sets_in_gradually(asked, made[s.said], expected, s.bits)
        ):
            continue
        found_wrong = _finding(sample, s, claims[s.said], expected, wrong)
        if s.bits < 0 and asked.iterates and _takes_fewer_steps(asked, made[s.said], s.bits):
            found_wrong = replace(found_wrong, severity=Severity.WARNING, hint=OF_AN_ITERATION)
        yield found_wrong
        return


def _of(s: Structure, sample: Sample, w: Tensor) -> Tensor:
    """The grad_output (M)."""
    parts = []
    for block in sample.problem.outputs.blocks:
        shape = block.shape
        parts.append(s.make(block, w[block.start : block.stop].view(shape).clone()).reshape(-1))
    return torch.cat(parts)


def _truths(
    asked: Asked, structures: list[Structure], made: dict[str, Tensor], w: Tensor, *, smooth: bool
) -> dict[str, Tensor]:
    """The gradients that are right: derived's, or sums of those for random ones."""
    witness = asked.witness
    if smooth and witness is not None and asked.trust.confirmed and not asked.hides:
        found = witness.rows(torch.stack([made[s.said] for s in structures]))
        if not isinstance(found, Raised):
            return {s.said: row for s, row in zip(structures, found, strict=True)}
    rows = [w, *(made[s.said] + w for s in structures if not s.bits)]
    found = asked.claim.rows(torch.stack(rows))
    if isinstance(found, Raised):
        return {}
    sums = dict(zip((s.said for s in structures if not s.bits), found[1:] - found[0], strict=True))
    return {s.said: found[0] if s.bits else sums[s.said] for s in structures}


def _sets_in_gradually(asked: Asked, u: Tensor, expected: Tensor, bits: int) -> bool:
    """Whether the deviation grows with the size of grad_output: digits that are lost, and no threshold."""
    right, wrong = (FEW_BITS, bits) if bits > 0 else (-FEW_BITS, bits)
    deviation = torch.inf
    largest = float(expected.abs().nan_to_num(0.0).max())
    while abs(wrong - right) > 2:
        middle = (right + wrong) // 2
        row = asked.claim.row(u * 2.0**middle)
        if isinstance(row, Raised):
            return False
        row = row * 2.0**-middle
        if bool(_off(asked, row, expected, 0.0, expected.abs().nan_to_num(0.0).max()).any()):
            wrong, deviation = middle, float((row - expected).abs().nan_to_num(torch.inf).max())
        else:
            right = middle
    return deviation < GRADUAL * largest


class _Counted(Dispatched):  # type: ignore[no-untyped-call]
    """Counts operations."""

    count = 0

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one, and count it."""
        self.count += 1
        return func(*args, **given)


def _takes_fewer_steps(asked: Asked, u: Tensor, bits: int) -> bool:
    """Whether backward runs fewer operations for a grad_output that is scaled down."""
    counts = []
    for scale in (1.0, 2.0**bits):
        with _Counted() as counted:
            asked.claim.row(u * scale)
        counts.append(counted.count)
    return counts[1] < counts[0]


def _off(asked: Asked, claim: Tensor, expected: Tensor, short: float, floor: Tensor) -> Tensor:
    """Entries that differ; numbers as large as `floor` may have cancelled (bool, N)."""
    size = expected.abs() + claim.abs().nan_to_num(0.0, 0.0, 0.0)
    largest = torch.maximum(expected.abs().nan_to_num(0.0, 0.0, 0.0).max(), floor)
    bar = max(LINEAR, short, asked.rtol) * size + max(OF_LARGEST, short) * largest
    return ~((claim - expected).abs() <= bar) & expected.isfinite()


def _rounding(asked: Asked, u: Tensor, share: float, claim: Tensor, expected: Tensor) -> Tensor:
    """Entries that the rounding of backward explains (bool, N)."""
    layout, problem = asked.values.inputs, asked.problem

    def call(x: Tensor) -> Tensor | None:
        found = problem.pull_back(layout.unflatten(x), problem.outputs.unflatten(u))
        return None if isinstance(found, Raised) else layout.flatten(found.value) * share

    moved = spread(call, asked.values.x, asked.values.steps.epsilon)
    if moved is None:
        return torch.zeros_like(claim, dtype=torch.bool)
    return (claim - expected).abs() <= FACTOR * moved


def _finding(sample: Sample, s: Structure, claim: Tensor, expected: Tensor, wrong: Tensor) -> Finding:
    off = torch.where(wrong, (claim - expected).abs().nan_to_num(torch.inf), -1.0)
    worst = int(off.argmax())
    number_of = sample.inputs.block_of(worst)
    block, name = sample.inputs.blocks[number_of], sample.problem.input_names[number_of]
    here = wrong[block.start : block.stop]
    got, wanted = apart(float(claim[worst]), float(expected[worst]))
    entry = Entry((), block.index(worst), float(claim[worst]), float(expected[worst]), 0.0)
    return sample.finding(
        "GV106",
        f"for a grad_output {s.said}, the gradient with respect to `{name}` is wrong at "
        f"{count_of(int(here.sum()), len(here))}: {got}, where {wanted} follows from other grad_outputs",
        hint=s.hint,
        input=name,
        entries=Entries(int(here.sum()), len(here), (entry,), compared_with="reference"),
        badness=float(off.max().nan_to_num(1e300, 1e300)),
    )


def _refused(
    sample: Sample, asked: Asked, structures: list[Structure], made: dict[str, Tensor]
) -> Iterator[Finding]:
    """GV102; a warning where backward refuses it on purpose or for its size."""
    for s in structures:
        found = asked.claim.afresh().row(made[s.said] * 2.0**s.bits)
        if isinstance(found, Raised):
            error: RaisedError = found.error
            finding = backward_raised(sample, error, f" for a grad_output {s.said}")
            certain = finding.severity is Severity.ERROR and not (error.deliberate or s.bits)
            yield finding if certain else replace(finding, severity=Severity.WARNING)
            return
