"""Grad_outputs of a certain structure: what a loss sends, where a test of grad_output takes another path.

Backward is linear in grad_output. So its gradient for one that is zero, balanced, constant or of a single
row is that for the sum with a random one less the latter's, and for a random one that is scaled it is scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gradverify.model import Finding, Severity
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import Layout
from gradverify.verifier.questions.findings import apart, count_of, vector_entries
from gradverify.verifier.questions.orders import backward_raised
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.witnessing import largest
from gradverify.verifier.witnesses.answers import Asked
from gradverify.verifier.witnesses.claim import Claim, spread_of_rows
from gradverify.verifier.witnesses.proof import differing
from gradverify.verifier.witnesses.rounding import FACTOR, operations
from gradverify.verifier.witnesses.values import probe

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
    """A structure with a grad_output of it, and what is known of the gradient."""

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
    made, usual = _distinct(w, outputs), asked.claim.row(w)
    derived = asked.witness if sample.is_first_draw and asked.is_trusted else None
    for s, u in made.items():  # one after another: the rows of all of them would be many times the inputs
        found = usual if isinstance(usual, Raised) else _both(asked, s, u, w, usual, derived)
        if isinstance(usual, Raised) or isinstance(found, Raised):
            yield from _refused(sample, asked, made)
            return
        row = _again(asked, s, u, w) if _is_more_than_rounding(asked, s, u, usual, *found) else None
        if row is not None and not (s.bits and _sets_in_gradually(asked, row)):
            fewer = s.bits < 0 and asked.iterates and _takes_fewer_steps(asked, row)
            yield _finding(sample, row, Severity.WARNING if fewer else Severity.ERROR)
            return


def _both(
    asked: Asked, s: Structure, u: Tensor, w: Tensor, usual: Tensor, derived: Claim | None
) -> tuple[Tensor, Tensor] | Raised:
    """The gradient for a grad_output, scaled back, and what derived or `usual`, that of `w`, says it is."""
    theirs = None if derived is None else derived.row(u)
    alone = s.bits or isinstance(theirs, Tensor)
    found = asked.claim.rows(torch.stack([u] if alone else [u, u + w]))
    if isinstance(found, Raised):
        return found
    mine = found[0] * 2.0**-s.bits
    if isinstance(theirs, Tensor):
        return mine, theirs * 2.0**-s.bits
    return (mine, usual) if s.bits else (mine + usual, found[1])


def _is_more_than_rounding(
    asked: Asked, s: Structure, u: Tensor, usual: Tensor, mine: Tensor, theirs: Tensor
) -> bool:
    """Whether two gradients differ by more than tolerance, and more than is left of terms that cancel."""
    plain = u * 2.0**-s.bits
    least = FACTOR * asked.values.steps.epsilon * largest(usual)
    is_more = ~((mine - theirs).abs() <= least * max(1.0, float(plain.abs().max())))
    return bool((_differ(asked, plain, mine, theirs) & is_more).any())


def _differ(asked: Asked, plain: Tensor, mine: Tensor, theirs: Tensor) -> Tensor:
    """Entries of two gradients that differ by more than the judge lets claim and derived: all scaled back."""
    return differing(asked, mine[None], theirs[None], plain[None])[0] & theirs.isfinite()


def _distinct(w: Tensor, outputs: Layout) -> dict[Structure, Tensor]:
    """Each structure with a grad_output of it, unless that is as another one, or of zeros as the first."""
    parts = [w[block.span].view(block.shape) for block in outputs.blocks]
    made: dict[Structure, Tensor] = {}
    for s in STRUCTURES:
        given = torch.cat([s.make(part).reshape(-1) for part in parts]) * 2.0**s.bits
        if not any(torch.equal(given, one) for one in made.values()) and (not made or bool(given.any())):
            made[s] = given
    return made


def _again(asked: Asked, s: Structure, u: Tensor, w: Tensor) -> _Row | None:
    """What differs in forwards of their own as well, by more than the rounding of backward explains."""
    beside, scale = (w if s.bits else u + w), 2.0**-s.bits
    rows = [asked.claim.afresh().row(one) for one in (u, beside, w)]
    known = [one for one in rows if not isinstance(one, Raised)]
    if len(known) < len(rows):
        return None
    other = known[2] * (not s.bits)
    got = known[0] * scale
    wrong = _differ(asked, u * scale, got + other, known[1])
    moved = spread_of_rows(asked.problem, torch.stack([u, beside]), asked.values.steps.epsilon)
    if moved is not None:
        rounding = FACTOR * (moved[0] * scale + moved[1])
        wrong &= ~((got + other - known[1]).abs() <= rounding)
    return _Row(s, u, beside, got, known[1] - other, wrong) if bool(wrong.any()) else None


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


def _finding(sample: Sample, row: _Row, severity: Severity) -> Finding:
    off = torch.where(row.wrong, (row.got - row.expected).abs().nan_to_num(torch.inf), -1.0)
    number_of = sample.inputs.block_of(int(off.argmax()))
    name, block = sample.problem.input_names[number_of], sample.inputs.blocks[number_of]
    entries = vector_entries(row.got, row.expected, row.wrong, block)
    got, wanted = apart(entries.worst[0].actual, entries.worst[0].expected)
    return sample.finding(
        "GV106",
        f"for a grad_output {row.structure.said}, the gradient with respect to `{name}` is wrong at "
        f"{count_of(entries.wrong, entries.checked)}: {got}, where {wanted} follows from other grad_outputs",
        hint=OF_A_TEST if severity is Severity.ERROR else OF_AN_ITERATION,
        severity=severity,
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
