"""Grad_outputs of a certain structure: what a loss sends, where a test of grad_output takes another path.

Backward is linear in grad_output. So its gradient for one that is zero, balanced, constant or of a single
row is that for the sum with a random one less the latter's, and for a random one that is scaled it is scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gradverify.model import Finding, Severity
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import Layout
from gradverify.verifier.numerics.tracing import operations
from gradverify.verifier.questions.first_order import backward_raised
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.wording import apart, count_of, vector_entries
from gradverify.verifier.witnesses.answers import Asked
from gradverify.verifier.witnesses.claim import spread_of_rows
from gradverify.verifier.witnesses.proof import OF_FLOAT32
from gradverify.verifier.witnesses.rounding import FACTOR, has_digits_of_float32
from gradverify.verifier.witnesses.values import EPSILON, probe

LINEAR = 1e-9
"""Relative deviation from a sum that a dozen roundings make."""

OF_LARGEST = FACTOR * EPSILON
"""The same as a share of the largest entry of the gradient: numbers of that size may cancel inside."""

FEW_BITS = 10
"""Powers of two by which a grad_output is scaled: a derivative that iterates takes these alone."""

MANY_BITS = 40
"""The same for thresholds: those in use lie between 1e-12 and 1e12."""

GRADUAL = 1e-4
"""Share of a deviation that there may be half way to it: a path of its own is taken or it is not."""

OF_ROWS = torch.tensor([1.0, 2.0**-20, 0.0, 2.0**10], dtype=torch.float64)
"""Sizes of rows beside others."""

OF_AN_ITERATION = (
    "Backward repeats a step, and takes fewer of them here. If it stops at an absolute tolerance, gradients "
    "below that are lost: compare with the norm of grad_output."
)
OF_A_TEST = (
    "Look for a test of grad_output (its sum, its largest entry, how many are not zero), a clamp, a "
    "threshold or a division by its size: backward must multiply it by the derivative, whatever it is."
)


@dataclass(frozen=True)
class Structure:
    """A kind of grad_output."""

    said: str
    make: Callable[[Tensor], Tensor]
    """From random numbers of an output's shape."""
    bits: int = 0
    """It is scaled by this power of two, and its gradient scaled back."""


def _balanced(w: Tensor, *dims: int) -> Tensor:
    """Numbers whose sum along some dimensions is exactly zero; along all of them where none is given."""
    return w - w.flip(dims or tuple(range(w.dim()))) if w.dim() else torch.zeros_like(w)


def _one_of_each_row(w: Tensor) -> Tensor:
    if not w.dim() or not w.numel():
        return w
    rows = w.reshape(-1, w.shape[-1])
    chosen = torch.arange(len(rows)) % w.shape[-1]
    here = chosen[:, None] == torch.arange(w.shape[-1])
    return torch.where(here, -rows.abs(), 0.0).reshape(w.shape)


def _one_entry(w: Tensor) -> Tensor:
    return (torch.arange(w.numel()) == w.numel() // 2).to(w.dtype).reshape(w.shape)


def _rows_of_different_size(w: Tensor) -> Tensor:
    if not w.dim():
        return w
    return w * OF_ROWS[torch.arange(len(w)) % len(OF_ROWS)].reshape(-1, *[1] * (w.dim() - 1))


STRUCTURES = (
    Structure("of zeros", torch.zeros_like),
    Structure("of ones, as y.sum().backward() sends it", torch.ones_like),
    Structure("of one value, as y.mean().backward() sends it", lambda w: torch.ones_like(w) / w.numel()),
    Structure("whose rows sum to zero", lambda w: _balanced(w, -1)),
    Structure("whose columns sum to zero", lambda w: _balanced(w, 0)),
    Structure("that sums to zero", _balanced),
    Structure("with one entry in each row", _one_of_each_row),
    Structure("with a single entry", _one_entry),
    Structure("of negative numbers alone", lambda w: -w.abs()),
    Structure("of positive numbers alone", torch.abs),
    Structure("whose rows differ in size, some of them zero", _rows_of_different_size),
    *(
        Structure(f"multiplied by 2^{bits}", torch.clone, bits)
        for bits in (FEW_BITS, -FEW_BITS, MANY_BITS, -MANY_BITS)
    ),
)


@dataclass(frozen=True)
class _Row:
    """A structure with grad_outputs of it, and what is known of their gradients."""

    structure: Structure
    given: Tensor
    """The grad_output (M)."""
    beside: Tensor
    """Another one, without that structure, whose gradient tells what is right."""
    got: Tensor
    """The gradient, scaled back (N)."""
    expected: Tensor
    wrong: Tensor
    """Entries that differ (bool, N)."""


def wrong_with_structure(sample: Sample, asked: Asked) -> Iterator[Finding]:
    """The first structure for which the gradient is another; `asked` has a gradient that is right."""
    outputs = sample.problem.outputs
    if not outputs.size or not sample.inputs.size or asked.sixteen:
        return
    w = probe(outputs.size, asked.key + 29)
    made = _distinct(w, outputs)
    beside = [w if s.bits else u + w for s, u in made.items()]
    derived = _derived(asked, made) if sample.is_first_draw else None
    found = asked.claim.rows(torch.stack([w, *made.values(), *(beside if derived is None else ())]))
    if isinstance(found, Raised):
        yield from _refused(sample, asked, made)
        return
    usual, *rows = found
    expected = rows[len(made) :] if derived is None else [d + usual * (not s.bits) for s, d in derived]
    every = zip(made.items(), beside, rows[: len(made)], expected, strict=True)
    for (s, given), other, got, theirs in every:
        row = _compared(asked, s, (given, other), (got, theirs, usual))
        if bool(row.wrong.any()):
            row = _again(asked, row, w)
        if bool(row.wrong.any()) and not (s.bits and _sets_in_gradually(asked, row)):
            told = _finding(sample, row)
            fewer = s.bits < 0 and asked.iterates and _takes_fewer_steps(asked, row)
            yield replace(told, severity=Severity.WARNING, hint=OF_AN_ITERATION) if fewer else told
            return


def _derived(asked: Asked, made: dict[Structure, Tensor]) -> list[tuple[Structure, Tensor]] | None:
    """What derived gives for each, scaled back, which takes no call; None where it is not to be trusted."""
    is_trusted = asked.trust.confirmed and not asked.hides
    found = asked.witness.rows(torch.stack([*made.values()])) if asked.witness and is_trusted else None
    if found is None or isinstance(found, Raised):
        return None
    return [(s, row * 2.0**-s.bits) for s, row in zip(made, found, strict=True)]


def _distinct(w: Tensor, outputs: Layout) -> dict[Structure, Tensor]:
    """Each structure with a grad_output of it, unless that is as another one, or of zeros as the first."""
    parts = [part.view(block.shape) for part, block in zip(outputs.cut(w), outputs.blocks, strict=True)]
    made: dict[Structure, Tensor] = {}
    for s in STRUCTURES:
        given = torch.cat([s.make(part).reshape(-1) for part in parts]) * 2.0**s.bits
        if not any(torch.equal(given, one) for one in made.values()) and (not made or bool(given.any())):
            made[s] = given
    return made


def _compared(asked: Asked, s: Structure, given: tuple[Tensor, Tensor], rows: Sequence[Tensor]) -> _Row:
    """The row of a structure; `rows` are the gradients for what is given, for that beside it, and for w.

    `atol` is that of one entry of the Jacobian, and numbers as large as any of these may have cancelled.
    """
    scale, usual = 2.0**-s.bits, rows[2]
    got, expected = rows[0] * scale, rows[1] if s.bits else rows[1] - usual
    is_short = asked.values.steps.is_short or has_digits_of_float32(usual)
    short = OF_FLOAT32 if is_short else 0.0
    largest = max(float(one.abs().nan_to_num(0.0, 0.0, 0.0).max()) for one in (expected, rows[1], usual))
    size = expected.abs() + got.abs().nan_to_num(0.0, 0.0, 0.0)
    bar = max(LINEAR, short, asked.rtol) * size + max(OF_LARGEST, short) * largest
    bar = bar + asked.atol * given[0].abs().sum() * scale + asked.values.steps.smallest
    return _Row(s, *given, got, expected, ~((got - expected).abs() <= bar) & expected.isfinite())


def _again(asked: Asked, row: _Row, w: Tensor) -> _Row:
    """The same from forwards of their own, without what the rounding of backward explains."""
    rows = [asked.claim.afresh().row(u) for u in (row.given, row.beside, w)]
    known = [one for one in rows if not isinstance(one, Raised)]
    if len(known) < len(rows):
        return replace(row, wrong=torch.zeros_like(row.wrong))
    again = _compared(asked, row.structure, (row.given, row.beside), known)
    moved = spread_of_rows(asked.problem, torch.stack([row.given, row.beside]), asked.values.steps.epsilon)
    wrong = row.wrong & again.wrong
    if moved is not None:
        rounding = FACTOR * (moved[0] * 2.0**-row.structure.bits + moved[1])
        wrong &= ~((row.got - row.expected).abs() <= rounding)
    return replace(again, wrong=wrong)


def _sets_in_gradually(asked: Asked, row: _Row) -> bool:
    """Whether half as many binary orders lose digits already, and far fewer: no threshold does so.

    To multiply by a power of two is exact.
    """
    bits, half = row.structure.bits, row.structure.bits // 2
    found = asked.claim.row(row.given * 2.0 ** (half - bits))
    if isinstance(found, Raised):
        return False
    before, now = (
        (one - row.expected).abs().nan_to_num(torch.inf).max() for one in (found * 2.0**-half, row.got)
    )
    return bool(0 < before < GRADUAL * now)


def _takes_fewer_steps(asked: Asked, row: _Row) -> bool:
    """Whether backward runs fewer operations for a grad_output that is scaled down."""
    usual, now = (operations(partial(asked.claim.row, u)) for u in (row.beside, row.given))
    return usual is not None and now is not None and now < usual


def _finding(sample: Sample, row: _Row) -> Finding:
    off = torch.where(row.wrong, (row.got - row.expected).abs().nan_to_num(torch.inf), -1.0)
    number_of = sample.inputs.block_of(int(off.argmax()))
    name, block = sample.problem.input_names[number_of], sample.inputs.blocks[number_of]
    own, nothing = block.span, torch.zeros_like(off[block.span])
    entries = vector_entries(row.got[own], row.expected[own], nothing, row.wrong[own], block)
    got, wanted = apart(entries.worst[0].actual, entries.worst[0].expected)
    return sample.finding(
        "GV106",
        f"for a grad_output {row.structure.said}, the gradient with respect to `{name}` is wrong at "
        f"{count_of(entries.wrong, entries.checked)}: {got}, where {wanted} follows from other grad_outputs",
        hint=OF_A_TEST,
        input=name,
        entries=entries,
        badness=float(off.max().nan_to_num(1e300, 1e300)),
    )


def _refused(sample: Sample, asked: Asked, made: dict[Structure, Tensor]) -> Iterator[Finding]:
    """GV102; a warning where backward refuses it on purpose or for its size."""
    zeros, *others = made.items()  # what refuses others as well is not about zeros
    for s, u in (*others, zeros):
        found = asked.claim.afresh().row(u)
        if isinstance(found, Raised):
            finding = backward_raised(sample, found.error, f" for a grad_output {s.said}")
            certain = finding.severity is Severity.ERROR and not (found.error.deliberate or s.bits)
            yield finding if certain else replace(finding, severity=Severity.WARNING)
            return
