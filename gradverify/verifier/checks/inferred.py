"""The guard on inferred inputs: a mismatch is a failure only if the guess cannot have made it.

It is none where backward is right along a manifold that inputs may lie on (`manifolds.py`), where it is right
for another value of an argument that was invented (`alternatives.py`) or for constants of some kind
(`constants.py`), or where its author shows that no derivative is meant (`deliberate.py`). Then it is an
inconclusive finding that says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gradverify.model import Doubt, Finding, Outcome, Severity
from gradverify.rules import Family, rule
from gradverify.verifier.checks.alternatives import whatever_invented
from gradverify.verifier.checks.constants import right_for_some
from gradverify.verifier.checks.deliberate import looks_deliberate
from gradverify.verifier.checks.manifolds import persists, unread_slice
from gradverify.verifier.checks.reading import Irregularity
from gradverify.verifier.checks.result import CheckResult
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised

MOST_NAMED = 3
"""Guesses that one sentence names."""

OF_THE_DERIVATIVE = frozenset({"GV101", "GV106", "GV107", "GV108", "GV110", "GV201", "GV202"})
"""Codes that say nothing of a gradient which is not meant to be the derivative."""

CERTAIN = ("GV105", "GV4", "GV502", "GV503", "GV505")
"""Codes that do not hang on the values of the inputs: no guess can have made them."""

OF_THE_MATRIX = frozenset({"GV410"})
"""Codes that are certain no more where something was invented: LAPACK gives anything for singular ones."""

OF_SHAPES = frozenset({"GV101", "GV103", "GV107", "GV108", "GV110"})
"""Codes that a wrong guess of a shape can have made."""

ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "ValueError", "TypeError"}
)
"""Exceptions in backward that inferred inputs do not explain: forward accepted them."""


def guarded(sample: Sample, results: dict[Family, CheckResult]) -> dict[Family, CheckResult]:
    """On inferred inputs, turn errors that the guess may have made into inconclusive findings."""
    if not sample.subject.inferred:
        return results
    guard = _Guard(sample, _inventions(sample))
    kept_results = {}
    for family, result in results.items():
        findings = tuple(
            guard.judged(f) if f.severity is Severity.ERROR and not guard.is_certain(f) else f
            for f in result.findings
        )
        failed = any(f.severity is Severity.ERROR for f in findings)
        outcome = result.outcome
        if outcome is Outcome.FAILED and not failed:
            outcome = Outcome.INCONCLUSIVE
        kept_results[family] = replace(result, findings=findings, outcome=outcome)
    return kept_results


def with_given_options(sample: Sample, result: CheckResult) -> CheckResult:
    """What is told at values nobody declared, inconclusive where an option has an invented value.

    Where backward is right at moderate values, extreme ones need no guard of their own. But an exponent of
    the author's may be one at which the limit exists, and an invented one not.
    """
    options = dict(sample.case.options)
    doubts = [d for d in sample.subject.doubts if d.certain and d.name in options]
    invented = [d.what for d in doubts if options[d.name] not in d.certain]
    if not invented or result.outcome is not Outcome.FAILED:
        return result
    findings = tuple(_invented(f, invented) if f.severity is Severity.ERROR else f for f in result.findings)
    return replace(result, findings=findings, outcome=Outcome.INCONCLUSIVE)


@dataclass
class _Guard:
    """The guard at one sample; what it measures there is measured once."""

    sample: Sample
    invented: tuple[Doubt, ...]
    persistent: bool | None = None
    settled: dict[tuple[str | None, bool], bool] = field(default_factory=dict)
    """By input and order: whether the mismatch is there whatever was invented."""
    kinds: dict[tuple[str | None, bool], str] = field(default_factory=dict)
    """By input and order: the constants, and their kind, for which it is not there."""
    unread: dict[bool, str] = field(default_factory=dict)
    """By order: what forward does not read where that makes the mismatch."""

    def is_certain(self, finding: Finding) -> bool:
        """Whether no guess can have made it: what raises may do so because of what was invented."""
        hangs_on_them = finding.raised is not None or finding.code in OF_THE_MATRIX
        return finding.code.startswith(CERTAIN) and not (hangs_on_them and self.invented)

    def judged(self, finding: Finding) -> Finding:
        """The finding if the inputs cannot have made it, else an inconclusive one that says why not."""
        sample = self.sample
        if finding.code in OF_THE_DERIVATIVE:
            signs = [d.what for d in sample.subject.doubts if d.intent][:1]
            signs += filter(None, [looks_deliberate(sample, finding)])
            if signs:
                return _deliberate(finding, _joined(signs))
        if self.invented and not self._whatever_invented(finding):
            return _invented(finding, tuple(d.what for d in self.invented))
        other_shapes = _other_shapes(sample)
        if other_shapes and finding.code in OF_SHAPES:
            return _invented(finding, tuple(f"the shape of `{name}`" for name in other_shapes))
        if finding.code == "GV102" and not _is_accident(finding):
            return _refused(finding)
        if not self._persists(finding):
            return _doubted(finding)
        doubt = self._kind(finding) or self._unread(finding)
        return _invented(finding, (doubt,)) if doubt else finding

    def _whatever_invented(self, finding: Finding) -> bool:
        key = (finding.input, _is_second_order(finding))
        if key not in self.settled:
            names = [d.name for d in self.invented]
            testable = all(d.of_values for d in self.invented)
            self.settled[key] = testable and whatever_invented(self.sample, finding, names)
        return self.settled[key]

    def _kind(self, finding: Finding) -> str:
        if finding.code not in OF_THE_DERIVATIVE:
            return ""
        key = (finding.input, _is_second_order(finding))
        if key not in self.kinds:
            self.kinds[key] = right_for_some(self.sample, *key)
        return self.kinds[key]

    def _unread(self, finding: Finding) -> str:
        second_order = _is_second_order(finding)
        if second_order not in self.unread:
            self.unread[second_order] = unread_slice(self.sample, second_order=second_order)
        return self.unread[second_order]

    def _persists(self, finding: Finding) -> bool:
        # Where the first derivative is right in every direction, the inputs lie on no manifold.
        if finding.code.startswith(("GV102", "GV104", "GV2", "GV501")):
            return True
        if self.persistent is None:
            self.persistent = persists(self.sample)
        return self.persistent


def _other_shapes(sample: Sample) -> tuple[str, ...]:
    """Inputs whose gradient came back in another shape that they might just as well have.

    Forward broadcasts what it is given, so a wrong guess of a shape shows in backward alone: as a gradient
    with more dimensions, or with fewer, of a shape that gives the same output.
    """
    reader = sample.subject.reader
    if reader is None:
        return ()
    names = []
    for (kind, _), remark in reader.remarks.items():
        if kind not in {Irregularity.SHAPE_SUMMED, Irregularity.SHAPE_REFUSED}:
            continue
        name = sample.arguments[remark.position].name
        shape = tuple(int(n) for n in remark.got.strip("[]").split(",") if n.strip())
        if kind is Irregularity.SHAPE_SUMMED or _takes(sample, name, shape):
            names.append(name)
    return tuple(names)


def _takes(sample: Sample, name: str, shape: tuple[int, ...]) -> bool:
    """Whether forward gives outputs of the same shapes for an input that has fewer dimensions."""
    problem = sample.problem
    if name not in problem.input_names:
        return False
    place = problem.input_names.index(name)
    value = problem.primals[place]
    if len(shape) >= value.dim() or tuple(value.shape[value.dim() - len(shape) :]) != shape:
        return False
    fewer = value[(0,) * (value.dim() - len(shape))]
    moved = (*problem.primals[:place], fewer, *problem.primals[place + 1 :])
    before, after = problem.evaluate(problem.primals), problem.evaluate(moved)
    if isinstance(before, Raised) or isinstance(after, Raised):
        return False
    return [t.shape for t in before.value] == [t.shape for t in after.value]


def _inventions(sample: Sample) -> tuple[Doubt, ...]:
    """What of the inputs of this case was invented."""
    options = dict(sample.case.options)
    return tuple(
        d
        for d in sample.subject.doubts
        if not d.intent
        and not (d.certain and options.get(d.name) in d.certain)
        and not (d.optional and options.get(d.name, ...) is None)
    )


def _invented(finding: Finding, invented: Sequence[str]) -> Finding:
    named = list(invented)
    if len(named) > MOST_NAMED:  # `gradverify init` writes them all
        named = [*named[: MOST_NAMED - 1], f"{len(named) - MOST_NAMED + 1} others"]
    what = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
    were = "were" if len(named) > 1 else "was"
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=f"inputs inferred: {finding.message}; but {what} {were} guessed",
        hint="If such inputs are valid, this is a mistake: confirm them in a spec, which "
        "`gradverify init` drafts.",
    )


def _joined(signs: Sequence[str]) -> str:
    """`that ... (one sign; another)` of several `that ... (a sign)`."""
    first, *others = signs
    more = "".join(f"; {one.partition('(')[2].removesuffix(')')}" for one in others)
    return f"{first.removesuffix(')')}{more})" if others else first


def _deliberate(finding: Finding, meant: str) -> Finding:
    said = f"inputs inferred: {finding.message}; but {meant} was guessed"
    hint = (
        "If it is meant, say so in a spec: `surrogate: {reason: ...}`, or `surrogate:` with a composite "
        "whose gradient it is; else this is a mistake."
    )
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=said,
        hint=hint,
        cause="looks-surrogate",
    )


def _is_second_order(finding: Finding) -> bool:
    return finding.code.startswith("GV2")


def _is_accident(finding: Finding) -> bool:
    return finding.raised is not None and finding.raised.type in ACCIDENTS and not finding.raised.deliberate


def _refused(finding: Finding) -> Finding:
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=f"on inferred inputs {finding.message}; forward took them, but they may not be what is meant",
        hint="Write a spec with valid inputs (shapes, domain, range) and run again.",
    )


def _doubted(finding: Finding) -> Finding:
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=f"on inferred inputs {finding.message}; at inputs of another kind it is not, "
        "so these inputs may not be valid",
        hint="Write a spec with valid inputs (domain, range) and run again.",
    )
