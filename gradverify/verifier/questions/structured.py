"""Grad_outputs of a certain structure: what a loss sends, where a test of grad_output takes another path.

Backward is linear in grad_output. So its gradient for one that is zero, balanced, constant, tiny, large or of
a single row must be derived's; without derived, that for the sum with a random one less the latter's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gradverify.model import Finding, Severity
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.tracing import operations
from gradverify.verifier.questions.first_order import backward_raised
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.wording import apart, count_of, vector_entries
from gradverify.verifier.witnesses.answers import Asked
from gradverify.verifier.witnesses.claim import spread_of_rows
from gradverify.verifier.witnesses.proof import OF_FLOAT32
from gradverify.verifier.witnesses.rounding import FACTOR
from gradverify.verifier.witnesses.values import EPSILON, probe

LINEAR = 1e-9
"""Relative deviation from derived, or from a sum, that a dozen roundings make."""

OF_LARGEST = FACTOR * EPSILON
"""The same as a share of the largest entry of the gradient: numbers of that size may cancel inside."""

FEW_BITS = 10
"""Powers of two by which a grad_output is scaled: a derivative that iterates takes these alone."""

MANY_BITS = 40
"""The same for thresholds: those in use lie between 1e-12 and 1e12."""

GRADUAL = 1e-4
"""Share of the largest entry: where a deviation begins with less, no path of its own begins there."""

MOST_COMPARED = 64
"""Entries of a grad_output up to which it is compared with the others."""

OF_ROWS = torch.tensor([1.0, 2.0**-20, 0.0, 2.0**10], dtype=torch.float64)
"""Sizes of rows beside others."""

OF_AN_ITERATION = (
    "Backward repeats a step, and takes fewer of them here. If it stops at an absolute tolerance, gradients "
    "below that are lost: compare with the norm of grad_output."
)
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


@dataclass(frozen=True)
class Structure:
    """A kind of grad_output."""

    said: str
    hint: str
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
    Structure("of zeros", ZEROS, torch.zeros_like),
    Structure("of ones, as y.sum().backward() sends it", ONE_VALUE, torch.ones_like),
    Structure(
        "of one value, as y.mean().backward() sends it", ONE_VALUE, lambda w: torch.ones_like(w) / w.numel()
    ),
    Structure("whose rows sum to zero", SUM, lambda w: _balanced(w, -1)),
    Structure("whose columns sum to zero", SUM, lambda w: _balanced(w, 0)),
    Structure("that sums to zero", SUM, _balanced),
    Structure("with one entry in each row", ONE_ENTRY, _one_of_each_row),
    Structure("with a single entry", ONE_ENTRY, _one_entry),
    Structure("of negative numbers alone", SIGN, lambda w: -w.abs()),
    Structure("of positive numbers alone", SIGN, torch.abs),
    Structure("whose rows differ in size, some of them zero", SKIPPED, _rows_of_different_size),
    *(
        Structure(f"multiplied by 2^{bits}", THRESHOLD, torch.clone, bits)
        for bits in (FEW_BITS, -FEW_BITS, MANY_BITS, -MANY_BITS)
    ),
)


@dataclass(frozen=True)
class _Trial:
    """A structure with a grad_output of it, and what backward gave for that."""

    structure: Structure
    u: Tensor
    """The grad_output before it is scaled (M)."""
    claim: Tensor
    """Scaled back (N)."""
    floor: Tensor
    """Numbers as large as this may have cancelled."""

    @property
    def given(self) -> Tensor:
        """What backward gets."""
        return self.u * 2.0**self.structure.bits


def wrong_with_structure(sample: Sample, asked: Asked, *, smooth: bool = True) -> Iterator[Finding]:
    """The first structure for which the gradient is another; `asked` has a gradient that is right.

    Unless `smooth`, derived may have taken another side of a kink.
    """
    outputs = sample.problem.outputs
    if not outputs.size or not sample.inputs.size or asked.sixteen:
        return
    w = probe(outputs.size, asked.key + 29)
    parts = [part.view(block.shape) for part, block in zip(outputs.cut(w), outputs.blocks, strict=True)]
    made = _distinct({s: torch.cat([s.make(part).reshape(-1) for part in parts]) for s in STRUCTURES})
    found = asked.claim.rows(torch.stack([w, *(u * 2.0**s.bits for s, u in made.items())]))
    if isinstance(found, Raised):
        yield from _refused(sample, asked, made)
        return
    usual = found[0].abs().nan_to_num(0.0, 0.0, 0.0).max()
    trials = [
        _Trial(s, u, row * 2.0**-s.bits, usual * u.abs().max())
        for (s, u), row in zip(made.items(), found[1:], strict=True)
    ]
    for trial, expected in zip(trials, _truths(asked, trials, w, smooth=smooth), strict=True):
        wrong = _wrong(asked, trial, expected, w)
        if bool(wrong.any()):
            told = _finding(sample, trial.structure, trial.claim, expected, wrong)
            if not trial.structure.bits and _is_linear(asked, trial, w, wrong):
                yield _of_every_grad_output(told)
                return
            fewer = trial.structure.bits < 0 and asked.iterates and _takes_fewer_steps(asked, trial)
            yield replace(told, severity=Severity.WARNING, hint=OF_AN_ITERATION) if fewer else told
            return


def _distinct(made: dict[Structure, Tensor]) -> dict[Structure, Tensor]:
    """Without grad_outputs that are the same as another one of a small output."""
    met: dict[object, Structure] = {}
    for s, u in made.items():
        met.setdefault(tuple((u * 2.0**s.bits).tolist()) if len(u) <= MOST_COMPARED else s, s)
    return {s: made[s] for s in met.values() if bool(made[s].any()) or s is STRUCTURES[0]}


def _truths(asked: Asked, trials: list[_Trial], w: Tensor, *, smooth: bool) -> list[Tensor]:
    """The gradients that are right, derived's or sums of those for random ones; NaN where none is known."""
    witness = asked.witness
    if smooth and witness is not None and asked.trust.confirmed and not asked.hides:
        found = witness.rows(torch.stack([t.u for t in trials]))
        if not isinstance(found, Raised):
            return list(found)
    summed = [t for t in trials if not t.structure.bits]
    found = asked.claim.rows(torch.stack([w, *(t.u + w for t in summed)]))
    if isinstance(found, Raised):
        return [torch.full_like(t.claim, torch.nan) for t in trials]
    sums = iter(found[1:] - found[0])
    return [found[0] if t.structure.bits else next(sums) for t in trials]


def _wrong(asked: Asked, trial: _Trial, expected: Tensor, w: Tensor) -> Tensor:
    """Entries that are another twice, and not by rounding, nor by what grows with the size (bool, N)."""
    wrong, bits = _off(asked, trial.claim, expected, trial), trial.structure.bits
    if not bool(wrong.any()):
        return wrong
    again = asked.claim.afresh().row(trial.given)
    if isinstance(again, Raised):
        return torch.zeros_like(wrong)
    wrong &= _off(asked, again * 2.0**-bits, expected, trial)
    if bool(wrong.any()):
        wrong &= ~_rounding(asked, trial, expected, w)
    if bool(wrong.any()) and abs(bits) == MANY_BITS and _sets_in_gradually(asked, trial, expected):
        return torch.zeros_like(wrong)
    return wrong


def _off(asked: Asked, claim: Tensor, expected: Tensor, trial: _Trial) -> Tensor:
    """Entries that differ (bool, N); `atol` is that of one entry of the Jacobian."""
    short = OF_FLOAT32 if asked.values.steps.is_short else 0.0
    size = expected.abs() + claim.abs().nan_to_num(0.0, 0.0, 0.0)
    largest = torch.maximum(expected.abs().nan_to_num(0.0, 0.0, 0.0).max(), trial.floor)
    bar = max(LINEAR, short, asked.rtol) * size + max(OF_LARGEST, short) * largest
    bar = bar + asked.atol * trial.u.abs().sum() + asked.values.steps.smallest
    return ~((claim - expected).abs() <= bar) & expected.isfinite()


def _rounding(asked: Asked, trial: _Trial, expected: Tensor, w: Tensor) -> Tensor:
    """Entries that the rounding of backward explains, for it and for the sum it is held against (bool, N)."""
    bits, epsilon = trial.structure.bits, asked.values.steps.epsilon
    moved = spread_of_rows(asked.problem, trial.given[None], epsilon)
    beside = spread_of_rows(asked.problem, (w if bits else trial.u + w)[None], epsilon)
    if moved is None or beside is None:
        return torch.zeros_like(trial.claim, dtype=torch.bool)
    return (trial.claim - expected).abs() <= FACTOR * (moved[0] * 2.0**-bits + beside[0])


def _sets_in_gradually(asked: Asked, trial: _Trial, expected: Tensor) -> bool:
    """Whether the deviation grows with the size of grad_output: digits that are lost, and no threshold."""
    bits = trial.structure.bits
    right, wrong = (FEW_BITS, bits) if bits > 0 else (-FEW_BITS, bits)
    deviation, largest = torch.inf, expected.abs().nan_to_num(0.0).max()
    while abs(wrong - right) > 2:
        middle = (right + wrong) // 2
        row = asked.claim.row(trial.u * 2.0**middle)
        if isinstance(row, Raised):
            return False
        row = row * 2.0**-middle
        if bool(_off(asked, row, expected, trial).any()):
            wrong, deviation = middle, float((row - expected).abs().nan_to_num(torch.inf).max())
        else:
            right = middle
    return bool(deviation < GRADUAL * largest)


def _takes_fewer_steps(asked: Asked, trial: _Trial) -> bool:
    """Whether backward runs fewer operations for a grad_output that is scaled down."""
    usual, now = (operations(partial(asked.claim.row, u)) for u in (trial.u, trial.given))
    return usual is not None and now is not None and now < usual


def _is_linear(asked: Asked, trial: _Trial, w: Tensor, wrong: Tensor) -> bool:
    """Whether the gradient is the one that follows from others: then those are wrong as well."""
    found = asked.claim.afresh().rows(torch.stack([w, trial.u + w]))
    if isinstance(found, Raised):
        return False
    return not bool((_off(asked, trial.claim, found[1] - found[0], trial) & wrong).any())


def _finding(sample: Sample, s: Structure, claim: Tensor, expected: Tensor, wrong: Tensor) -> Finding:
    off = torch.where(wrong, (claim - expected).abs().nan_to_num(torch.inf), -1.0)
    number_of = sample.inputs.block_of(int(off.argmax()))
    block, name = sample.inputs.blocks[number_of], sample.problem.input_names[number_of]
    own = slice(block.start, block.stop)
    entries = vector_entries(claim[own], expected[own], torch.zeros_like(off[own]), wrong[own], block)
    got, wanted = apart(entries.worst[0].actual, entries.worst[0].expected)
    return sample.finding(
        "GV106",
        f"for a grad_output {s.said}, the gradient with respect to `{name}` is wrong at "
        f"{count_of(entries.wrong, entries.checked)}: {got}, where {wanted} follows from other grad_outputs",
        hint=s.hint,
        input=name,
        entries=entries,
        badness=float(off.max().nan_to_num(1e300, 1e300)),
    )


def _of_every_grad_output(finding: Finding) -> Finding:
    """The same where no path of its own begins: other grad_outputs bury the mistake in larger numbers."""
    said = finding.message.replace("follows from other grad_outputs", "is the derivative of forward")
    hint = (
        "It is wrong for every grad_output, and by less than the tolerance for those with larger gradients."
    )
    return replace(finding, code="GV101", message=said, hint=hint)


def _refused(sample: Sample, asked: Asked, made: dict[Structure, Tensor]) -> Iterator[Finding]:
    """GV102; a warning where backward refuses it on purpose or for its size."""
    zeros, *others = made.items()  # what refuses others as well is not about zeros
    for s, u in (*others, zeros):
        found = asked.claim.afresh().row(u * 2.0**s.bits)
        if isinstance(found, Raised):
            finding = backward_raised(sample, found.error, f" for a grad_output {s.said}")
            certain = finding.severity is Severity.ERROR and not (found.error.deliberate or s.bits)
            yield finding if certain else replace(finding, severity=Severity.WARNING)
            return
