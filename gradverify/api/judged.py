"""The judge's answer to a drop-in, entry by entry, and held to torch's tolerance.

Forward's values alone decide, as in torch's own check. Where they refute a gradient, derived says by how much
each entry is off, if the same values confirm it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gradverify.api.orders import Options
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import CallProblem, Graph, Layout, VjpProblem
from gradverify.verifier.questions.findings import WHY
from gradverify.verifier.questions.orders import how_it_bends
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.witnessing import Options as Known
from gradverify.verifier.questions.witnessing import other_values
from gradverify.verifier.witnesses.answers import (
    Asked,
    Budget,
    Entry,
    Judgement,
    NotJudged,
    Reason,
    Trust,
    Unknown,
    Wrong,
)
from gradverify.verifier.witnesses.claim import Claim, Map, units
from gradverify.verifier.witnesses.derived import Derived, derive
from gradverify.verifier.witnesses.judge import judge
from gradverify.verifier.witnesses.proof import Proof, differing, proved
from gradverify.verifier.witnesses.values import FLOAT32, FLOAT64, Steps, Values, probe

FINEST = 1e-7
"""Relative difference from which on an entry is looked at twice; coarser tolerances choose from these."""

CALLS = 600
"""Calls that a gradient may cost that no proof closes: twice what torch's slow mode makes for 150 entries. A
value of backward is two."""

FAINT = 1e-2
"""Share of `atol` below which nothing is said of a row that is all but noise."""

LARGEST_JACOBIAN = 4_000_000
"""Entries of two Jacobians that are still built: with what is worked out of them they take 200 MB."""

MOST_ROWS = 2000
"""Rows up to which a grad_output for each is made: 32 MB."""

BESIDE = 2.0**-12
"""How far beside x forward is compared with itself, with a graph and without: as far as a proof steps."""

ROUNDINGS = 64 * 2.0**-52
"""Relative difference of two calls that rounding makes."""

TOO_LARGE = "its Jacobian is too large to build, and differences below the tolerance were found"
UNDECIDED = "forward's values refute it, and what torch derives from forward does not"
STOCHASTIC = "forward gives other values at each call, random states replayed"

Pair = tuple[int, int]
"""Numbers of an output and of an input."""


class Held(NamedTuple):
    """What the judge says of each (output, input), held to a tolerance; all is right where this is empty."""

    wrong: dict[Pair, Wrong]
    """Beyond the tolerance."""
    finer: dict[Pair, Wrong]
    """Within it."""
    unsure: str = ""
    """Where nothing is known, in words."""


def finest(options: Options) -> float:
    """The relative difference from which on something is said."""
    return min(FINEST, options.rtol or FINEST)


def asked_of(sample: Sample, problem: Map, graph: Graph, options: Options) -> Asked | str:
    """What the judge needs, with values as the only witness; why it cannot be asked, in words."""
    first = graph if isinstance(problem, CallProblem) else None
    if first is None:
        made = sample.problem.graph(sample.problem.primals)
        if isinstance(made, Raised):
            return f"the function raises {made.error.type} on copies of its inputs"
        first = made.value
    known = Known()
    if other_values(sample, first, known):
        return STOCHASTIC
    return Asked(
        problem=problem,
        claim=Claim(problem, graph),
        values=Values(problem, steps=FLOAT32 if known.is_short else _steps(problem, finest(options))),
        derived=None,
        hides=True,
        trust=Trust(),
        rtol=finest(options),
        atol=FAINT * options.atol / max(1, problem.outputs.size),  # a grad_output may be of all rows
        declared=True,
        budget=Budget(CALLS, CALLS),
        counter=problem.counter,
        formats=known.formats or frozenset(),
    )


def _steps(problem: Map, rtol: float) -> Steps:
    """With a proof that shows an error of `rtol` in one entry of ordinary size, and need not show less."""
    (step, least), (shorter, most) = FLOAT64.proofs
    entries = max(1, problem.outputs.size * Layout.of(problem.primals).size)
    return replace(FLOAT64, proofs=((step, max(least, min(most, rtol / entries**0.5))), (shorter, most)))


def is_another_with_a_graph(problem: CallProblem) -> bool:
    """Whether forward gives other values where inputs require grad, a little beside these.

    As where they are made symmetric only then. Two forwards; False where they raise.
    """
    inputs = Layout.of(problem.primals)
    x = inputs.flatten(problem.primals)
    beside = inputs.unflatten(x + BESIDE * x.abs().clamp_min(BESIDE) * probe(len(x), 0))
    plain, graph = problem.evaluate(beside), problem.graph(beside)
    if isinstance(plain, Raised) or isinstance(graph, Raised):
        return False
    one, other = (problem.outputs.flatten(found) for found in (plain.value, graph.value.outputs))
    return not torch.allclose(one, other, rtol=ROUNDINGS, atol=0.0, equal_nan=True)


def held_to(asked: Asked, sample: Sample, options: Options) -> Held | Raised:
    """Judge, and compare what differs with the tolerance. What backward raises is handed back."""
    found = judge(asked, prove=True)
    if isinstance(found, Raised):
        return found
    if found.closed:
        return Held({}, {})
    wrong = {pair: a for pair, a in found.answers.items() if isinstance(a, Wrong)}
    unsure = _not_known(asked, found)
    derived = _derived_rows(asked, sample, [e for answer in wrong.values() for e in answer.entries])
    if derived is None:
        located = {pair: _of_single_rows(asked, answer) for pair, answer in wrong.items()}
        beyond = {pair: a for pair, a in located.items() if _any_beyond(a, options)}
        return Held(beyond, {}) if beyond else Held({}, located, unsure or (TOO_LARGE if wrong else ""))
    beyond, finer = _held(asked, derived, options)
    if beyond:
        return Held(beyond, {})
    if wrong and not finer:  # it is off for a mixture of rows alone
        return Held(wrong, {}) if how_it_bends(asked) else Held({}, {}, unsure or UNDECIDED)
    if not bool(derived.expected.isfinite().all()):
        unsure = unsure or _at(asked, (~derived.expected.isfinite()).nonzero()[0].tolist())
    return Held({}, finer, "" if derived.proved else unsure)


def _not_known(asked: Asked, found: Judgement) -> str:
    """Where nothing is known, or forward has a kink, in words."""
    said = []
    for (o, i), answer in found.answers.items():
        if isinstance(answer, NotJudged | Unknown):
            place = _named(asked, o, i)
            said.append(f"{place}: {WHY[answer.reason][0]}")
    if found.kink and not said:
        return WHY[Reason.KINK][0]
    return "; ".join(said)


def _named(asked: Asked, output: int, source: int) -> str:
    problem = asked.problem
    return f"output {problem.output_positions[output]} by {problem.input_names[source]}"


def _at(asked: Asked, entry: list[int]) -> str:
    output, source = asked.problem.outputs.block_of(entry[0]), asked.values.inputs.block_of(entry[1])
    return f"{_named(asked, output, source)}: {WHY[Reason.DIVERGES][0]}"


class Rows(NamedTuple):
    """Claim and derived, row by row (M × N each)."""

    claimed: Tensor
    expected: Tensor
    proved: bool
    """Forward's values prove derived; else they confirm it where they refute the claim."""


def _derived_rows(asked: Asked, sample: Sample, measured: Sequence[Entry]) -> Rows | None:
    """None where values do not confirm derived, or it hides."""
    rows, columns = asked.problem.outputs.size, len(asked.values.x)
    if rows > MOST_ROWS or rows * columns > LARGEST_JACOBIAN or asked.values.steps.is_short:
        return None
    made = sample.problem.evaluate(sample.problem.primals)
    if isinstance(made, Raised):
        return None
    found = derive(sample.problem, sample.subject.call, made.value, first="eager", wide=False)
    if not isinstance(found, Derived) or found.hides:
        return None
    second = asked.problem
    problem = (
        VjpProblem(found.problem, second.cotangents) if isinstance(second, VjpProblem) else found.problem
    )
    proof = proved(replace(asked, problem=problem, claim=Claim(problem), trust=Trust()))
    closed = isinstance(proof, Proof) and proof.closed
    if not closed and not measured:
        return None
    mine, theirs = asked.claim.rows(units(rows)), Claim(problem).rows(units(rows))
    if isinstance(mine, Raised) or isinstance(theirs, Raised):
        return None
    return Rows(mine, theirs, closed) if closed or _confirmed(asked, theirs, measured) else None


def _confirmed(asked: Asked, derived: Tensor, measured: Sequence[Entry]) -> bool:
    """Whether derived (M × N) is what was measured at every entry that refutes the claim."""
    return all(
        e.row is not None
        and abs(float(derived[e.row, e.column]) - e.expected) <= e.bound + asked.rtol * abs(e.expected)
        for e in measured
    )


def _held(asked: Asked, rows_of: Rows, options: Options) -> tuple[dict[Pair, Wrong], dict[Pair, Wrong]]:
    """What is off beyond the tolerance, and below it, of each (output, input)."""
    claimed, expected, _ = rows_of
    different, exact = differing(asked, claimed, expected, units(len(claimed))), torch.zeros_like(expected)
    inputs = asked.values.inputs
    off = _sizes(claimed - expected, inputs)
    beyond = different & ~(off <= options.atol + options.rtol * _sizes(expected, inputs))
    finer = different & ~beyond
    found: tuple[dict[Pair, Wrong], dict[Pair, Wrong]] = ({}, {})
    for o, output in enumerate(asked.problem.outputs.blocks):
        for i, source in enumerate(inputs.blocks):
            rows, columns = slice(output.start, output.stop), slice(source.start, source.stop)
            matrices = claimed[rows, columns], expected[rows, columns], exact[rows, columns]
            for kind, at in zip(found, (beyond[rows, columns], finer[rows, columns]), strict=True):
                if bool(at.any()):
                    kind[o, i] = Wrong.of(*matrices, at, output.start, source.start)
    return found


def _sizes(matrix: Tensor, inputs: Layout) -> Tensor:
    """|entry|; the derivatives by the two parts of a complex input make one number.

    The parts of a complex output are compared apart from each other, as torch does.
    """
    sizes = matrix.abs()
    for block in inputs.blocks:
        if block.is_complex and block.stop > block.start:
            columns = slice(block.start, block.stop)
            parts = matrix[:, columns].reshape(matrix.shape[0], -1, 2)
            sizes[:, columns] = torch.linalg.vector_norm(parts, dim=-1).repeat_interleave(2, dim=1)
    return sizes


def _any_beyond(answer: Wrong, options: Options) -> bool:
    """Whether an entry that is known is off by more than the tolerance, or is no number."""
    known = [e for e in answer.entries if e.row is not None]
    return any(
        not abs(e.claimed - e.expected) <= options.atol + options.rtol * abs(e.expected) for e in known
    )


def _of_single_rows(asked: Asked, answer: Wrong) -> Wrong:
    """The same with an entry for each sum over rows: the one in which it is off the most, by halving."""
    return replace(
        answer, entries=tuple(_of_one_row(asked, e) if e.row is None else e for e in answer.entries)
    )


def _of_one_row(asked: Asked, entry: Entry) -> Entry:
    """The row in which a column is off the most (one backward for each halving)."""
    v = asked.values.unit(entry.column)
    size = float(v[entry.column].abs())
    slope = asked.values.slope(v).times(1 / size) if size else None
    if slope is None:
        return entry
    sign = float(v[entry.column].sign())
    known = slope.error.isfinite()
    weights = torch.where(known, probe(asked.problem.outputs.size, asked.key + 83), 0.0)
    value = torch.where(known, sign * slope.value, 0.0)
    start, stop = 0, len(weights)
    while stop - start > 1:
        middle = (start + stop) // 2
        halves = torch.zeros(2, len(weights), dtype=torch.float64)
        halves[0, start:middle], halves[1, middle:stop] = weights[start:middle], weights[middle:stop]
        rows = asked.claim.rows(halves)
        if isinstance(rows, Raised):
            return entry
        first, second = (rows[:, entry.column] - halves @ value).abs().nan_to_num(torch.inf).tolist()
        start, stop = (start, middle) if first >= second else (middle, stop)
    unit = torch.zeros_like(weights)
    unit[start] = 1.0
    row = asked.claim.row(unit)
    if isinstance(row, Raised):
        return entry
    return Entry(
        start, entry.column, float(row[entry.column]), float(value[start]), float(slope.error[start])
    )
