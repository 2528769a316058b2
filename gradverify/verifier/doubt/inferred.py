"""The guard on inferred inputs: a mismatch is a failure only if the guess cannot have made it.

It is none where its author shows that no derivative is meant (`intent.py`), for another value of an argument
that was invented (`invented.py`), where backward is right at a neighbour, inputs that may have been meant
instead (`FAMILIES`), or along a manifold that inputs may lie on (`manifolds.py`). Then it is an inconclusive
finding that names the doubt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

from gradverify.model import Doubt, Finding, Outcome, Severity
from gradverify.rules import Family as Checks
from gradverify.verifier.checks.handed_on import asks_of_what_is_handed_on
from gradverify.verifier.checks.inconclusive import deliberate, invented
from gradverify.verifier.checks.result import CheckResult
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.intent import OF_THE_DERIVATIVE, signs_of
from gradverify.verifier.doubt.invented import inventions_of, whatever_invented
from gradverify.verifier.doubt.manifolds import right_on_manifold
from gradverify.verifier.doubt.neighbours import Family, right_at
from gradverify.verifier.doubt.nothing_seen import unseen
from gradverify.verifier.doubt.shapes import (
    as_returned,
    complex_inputs,
    equal_sizes,
    even_sizes,
    fewer_dimensions,
    more_dimensions,
)
from gradverify.verifier.doubt.values import constants, without_minus_signs

CERTAIN = ("GV105", "GV4", "GV502", "GV503", "GV505")
"""Codes that do not hang on the values of the inputs: no guess can have made them."""

OF_GRAD_OUTPUT = "GV106"
"""Of what backward makes of grad_output, whatever forward is."""

OF_A_SHAPE = "GV103"
"""A gradient in another shape than its input has."""

RAISED = "GV102"
"""Backward raises."""

ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "ValueError", "TypeError"}
)
"""Exceptions in backward that inferred inputs do not explain: forward accepted them."""

_NO_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute '(\w+)'")

OF_A_SLOPE = frozenset({"GV101", "GV107", "GV110"})
"""Codes that rest on a derivative of forward as it was measured."""

OF_SHAPES = OF_A_SLOPE | {"GV103", "GV108"}
"""Codes that a wrong guess of a shape can have made."""

ON_NO_MANIFOLD = ("GV102", "GV104", "GV2", "GV501")
"""Codes that say nothing of the first derivative, or that it is right: the inputs lie on no manifold."""

LARGEST = 50_000
"""Entries of a Jacobian up to which other shapes are tried, each of which has one of its own."""

FAMILIES = (
    Family(frozenset({"GV104"}), complex_inputs),
    Family(OF_SHAPES, as_returned, judged=24, largest=LARGEST),
    Family(OF_SHAPES | {RAISED}, even_sizes),
    Family(OF_SHAPES | {RAISED}, more_dimensions, judged=12, largest=LARGEST, whole=True),
    Family(OF_SHAPES | {RAISED}, fewer_dimensions, judged=16, largest=LARGEST, whole=True),
    Family(OF_SHAPES | {RAISED}, equal_sizes, judged=24, largest=LARGEST, whole=True),
    Family(OF_A_SLOPE | {RAISED}, without_minus_signs),
    Family(OF_THE_DERIVATIVE, constants, judged=40),
)
"""Neighbours of inferred inputs, in the order in which they are tried."""


def guarded(
    sample: Sample, results: dict[Checks, CheckResult], told: Iterable[Finding] = ()
) -> dict[Checks, CheckResult]:
    """On inferred inputs, turn errors that the guess may have made into inconclusive findings.

    What was `told` as an error at another point of the target stands: no guess has made it there, and the
    target fails by it whatever is found here.
    """
    if not sample.subject.inferred:
        return results
    guard = Guard(sample, inventions_of(sample))
    standing = {_mistake(f) for f in told if f.severity is Severity.ERROR}

    def judged(finding: Finding) -> Finding:
        stands = finding.severity is not Severity.ERROR or _mistake(finding) in standing
        return finding if stands or guard.is_certain(finding) else guard.judged(finding)

    kept = {family: with_findings(result, map(judged, result.findings)) for family, result in results.items()}
    first = kept.get(Checks.GRADCHECK)
    if first is not None and first.outcome is Outcome.PASSED and guard.invented:
        nothing = unseen(sample, guard.invented)
        if nothing is not None:
            findings = (*first.findings, nothing)
            kept[Checks.GRADCHECK] = replace(first, findings=findings, outcome=Outcome.INCONCLUSIVE)
    return kept


def with_findings(result: CheckResult, findings: Iterable[Finding]) -> CheckResult:
    """The result with these findings: inconclusive where it has failed and none of them is an error."""
    told = tuple(findings)
    failed = any(f.severity is Severity.ERROR for f in told)
    excused = result.outcome is Outcome.FAILED and not failed
    return replace(result, findings=told, outcome=Outcome.INCONCLUSIVE if excused else result.outcome)


def _mistake(finding: Finding) -> tuple[str, str | None, int | None]:
    return finding.code, finding.input, finding.output


@dataclass
class Guard:
    """The guard at one sample; what it measures there is measured once."""

    sample: Sample
    invented: tuple[Doubt, ...]
    settled: dict[tuple[str | None, str], bool] = field(default_factory=dict)
    """By input and kind of finding: whether the mismatch is there whatever was invented."""
    found: dict[tuple[Family, str | None, bool], tuple[str, ...]] = field(default_factory=dict)
    """By family of neighbours, input and order: what was guessed, in words, where backward is right."""

    def is_certain(self, finding: Finding) -> bool:
        """Whether no guess can have made it: what raises may do so because of what was invented.

        Where two sizes were guessed to differ nothing is certain: what backward does not write of the longer
        one holds anything. Another case has them equal, and shows what hangs on neither. A gradient for what
        is no tensor may be for what was meant to be one, and LAPACK gives anything for a singular matrix.
        """
        if not finding.code.startswith(CERTAIN) or self._is_of_a_buffer(finding):
            return False
        another_count = finding.code == "GV105" and any(
            d.name == finding.input or d.what.endswith(("(callable)", "(object)")) for d in self.invented
        )
        hangs_on_them = finding.raised is not None or finding.code == "GV410"
        return not (another_count or any(d.differ or hangs_on_them for d in self.invented))

    def _is_of_a_buffer(self, finding: Finding) -> bool:
        """Whether something is written into a constant, which its author may keep for that."""
        differentiated = self.sample.problem.input_names
        return finding.code == "GV402" and finding.input not in {None, *differentiated}

    @cached_property
    def _manifold(self) -> str:
        return right_on_manifold(self.sample)

    def judged(self, finding: Finding) -> Finding:
        """The finding if the inputs cannot have made it, else an inconclusive one that says why not."""
        reader = self.sample.subject.reader
        # What backward returns at inputs that are tried here is no news of the sample's own.
        with nullcontext() if reader is None else reader.without_new_remarks():
            return next(self._reasons(finding), finding)

    def _reasons(self, finding: Finding) -> Iterator[Finding]:
        """The finding as inconclusive, for each reason that there is; the next is looked for when asked."""
        signs = signs_of(self.sample, finding)
        if signs:
            yield deliberate(finding, signs)
        if self._is_of_a_buffer(finding):
            yield invented(finding, [f"that `{finding.input}` is no buffer to be written into"])
        doubts = self._in_doubt(finding)
        if doubts and not self._whatever_invented(finding, doubts):
            yield invented(finding, [d.what for d in doubts])
        yield from (invented(finding, words) for words in self._right_at(finding))
        if finding.code == OF_A_SHAPE:  # autograd compares shapes alone: nothing need be right there
            words = (near.words for near in as_returned(self.sample))
            yield from (invented(finding, w) for w in words if f"`{finding.input}`" in " ".join(w))
        if finding.code == RAISED and not _is_accident(self.sample, finding):
            yield invented(finding, ["that such inputs, which forward takes, are valid"])
        if not finding.code.startswith(ON_NO_MANIFOLD) and self._manifold:
            yield invented(finding, [self._manifold])

    def _in_doubt(self, finding: Finding) -> tuple[Doubt, ...]:
        """What was invented that can have made it: no shape makes a backward that is not linear.

        But what is never written, where two sizes differ, is not linear either.
        """
        if finding.code != OF_GRAD_OUTPUT:
            return self.invented
        return tuple(d for d in self.invented if d.differ or not d.of_shape)

    def _whatever_invented(self, finding: Finding, doubts: Sequence[Doubt]) -> bool:
        key = (finding.input, finding.code if finding.code == OF_GRAD_OUTPUT else finding.code[:3])
        if key not in self.settled:
            names = [d.name for d in doubts if d.of_values]
            self.settled[key] = len(names) == len(doubts) and whatever_invented(self.sample, finding, names)
        return self.settled[key]

    def _right_at(self, finding: Finding) -> Iterator[tuple[str, ...]]:
        """What was guessed, in words, for each family with a neighbour at which backward is right."""
        second_order = finding.code.startswith("GV2")
        for family in (f for f in FAMILIES if finding.code in f.codes):
            key = (family, None if family.whole else finding.input, second_order)
            if key not in self.found:
                self.found[key] = right_at(self.sample, family, key[1], second_order=second_order)
            if self.found[key]:
                yield self.found[key]


def _is_accident(sample: Sample, finding: Finding) -> bool:
    """Whether backward raised what no choice of inputs explains."""
    raised = finding.raised
    if raised is None or raised.deliberate or raised.type not in ACCIDENTS:
        return False
    return not _lacks_an_attribute(sample, raised.message)


def _lacks_an_attribute(sample: Sample, message: str) -> bool:
    """Whether what backward asks in vain may be a constant, which was guessed to be a tensor or a number.

    One that forward hands on through ctx without a look is often an object, of which nothing else tells; and
    where backward's source does not say what gets a gradient, it was guessed to be a tensor that gets one.
    """
    named = _NO_ATTRIBUTE.match(message)
    if named is None:
        return False
    constants = {type(a.value).__name__ for a in sample.arguments if not a.differentiable}
    function = sample.subject.function_class
    return named[1] in constants or (function is not None and asks_of_what_is_handed_on(function, named[2]))
