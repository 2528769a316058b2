"""What the points of one case add up to, and how that is reported when its last point is judged.

Which comparisons of values in a target's source were true, and which were false, while it ran.

A branch for small or large values may hold a formula of its own. What no point has entered is verified
nowhere, and a pass says so. Comparisons of Python numbers (`x.item() > 20`) are not seen.
"""

from __future__ import annotations

import inspect
import itertools
import linecache
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch

from gradverify.events import CaseVerified
from gradverify.model import Case, Evaluations, Finding, Outcome, Point, Swept
from gradverify.rules import CHECK_FAMILIES, Family
from gradverify.source import compares, module_of
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.result import WORSE, CheckResult, Uncovered
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import family_of, not_verified, nothing_verified
from gradverify.verifier.dispatching import Dispatched
from gradverify.verifier.guard import Raised
from gradverify.verifier.interpreter.launches import interpreted

COMPARING = frozenset({"aten::lt", "aten::le", "aten::gt", "aten::ge"})
"""Operations of torch that compare sizes of numbers."""


def branches_seen(sample: Sample) -> Swept:
    """What forward and backward compare at a sample. Each is called once more where its source compares."""
    function, forward = sample.subject.function_class, sample.subject.own_forward
    if function is None or forward is None or not (compares(forward) or compares(own_backward(function))):
        return Swept()
    seen = _Seen(getattr(getattr(inspect.unwrap(forward), "__code__", None), "co_filename", ""))
    with seen:
        values = sample.problem.evaluate(sample.problem.primals)
        if not isinstance(values, Raised):
            sample.problem.pull_back(sample.problem.primals, [torch.ones_like(v) for v in values.value])
    return Swept(ever_true=tuple(seen.true), ever_false=tuple(seen.false))


class _Seen(Dispatched):  # type: ignore[no-untyped-call]
    """Notes the comparisons of floating tensors of one file, as `theta < 1e-4 (line 31)`."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file
        self.true: dict[str, None] = {}
        self.false: dict[str, None] = {}

    def operation(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        result = func(*args, **given)
        if func.name().partition(".")[0] in COMPARING and args[0].is_floating_point() and result.numel():
            written = self._written()
            self.true |= dict.fromkeys(written if bool(result.any()) else ())
            self.false |= dict.fromkeys(() if bool(result.all()) else written)
        return result

    def _written(self) -> tuple[str, ...]:
        """The comparison that is being computed; nothing where it is no code of the file."""
        frame = next(_callers(sys._getframe(), self.file), None)  # noqa: SLF001 - inspect's copies every frame
        if frame is None:
            return ()
        line, last, start, end = [*frame.f_code.co_positions()][frame.f_lasti // 2]
        if line is None or line != last:
            return ()
        lines = linecache.getlines(self.file)
        if (line, start, end) not in module_of("".join(lines)).comparisons:
            return ()
        # Columns of code are counted in bytes.
        return (f"{lines[line - 1].encode()[start:end].decode()} (line {line})",)


def _callers(frame: FrameType | None, file: str) -> Iterator[FrameType]:
    while frame is not None:
        if frame.f_code.co_filename == file:
            yield frame
        frame = frame.f_back


NEXT = 2.0**-12
"""How far values are moved, relative, to see whether forward has none but at one point."""

DECLARE = "Declare values at which forward has one (`range:`, `domain:`), or correct forward."

BAD = ("wrong", "no", "partial", "yes", "not-run")
"""What is known of a capability, the worst first: it is no better than at its worst point."""


def _worse(one: str, other: str) -> str:
    """Of two words for what a Function is capable of the worse one; an empty one says nothing."""
    return min((w for w in (one, other) if w), key=BAD.index, default="")


def _has_the_constants_of(one: Sample, other: Sample) -> bool:
    """Whether masks, indices and all else that is not differentiated are the same at two samples."""
    constants = zip(_constants(one), _constants(other), strict=True)
    return all(a.shape == b.shape and bool((a == b).all()) for a, b in constants)


def _constants(sample: Sample) -> list[torch.Tensor]:
    given = [a.value for a in sample.arguments if isinstance(a.value, torch.Tensor) and not a.differentiable]
    return [value for value in given if value.layout is torch.strided]


@dataclass
class CaseState:
    """What the points of one case add up to."""

    outcomes: dict[Family, Outcome] = field(
        default_factory=lambda: dict.fromkeys(CHECK_FAMILIES, Outcome.NOT_RUN)
    )
    evaluations: Evaluations = field(default_factory=Evaluations)
    points: int = 0
    visible: float | None = None
    not_judged: int = 0
    capability: str = ""
    """Of the double backward."""
    capabilities: dict[str, str] = field(default_factory=dict)
    """Others, by name."""
    uncovered: list[dict[tuple[int, str], Uncovered]] = field(default_factory=list)
    """For each typical draw."""
    entries: bool = False
    """Some Jacobian had entries."""
    remarks: dict[str, None] = field(default_factory=dict)
    last: Sample | None = None
    swept: Swept = field(default_factory=Swept)
    judged: dict[tuple[int, str], bool] = field(default_factory=dict)
    """By (output position, input name): whether some entry, if there is any, was judged at some point."""
    applied: set[tuple[str, str]] = field(default_factory=set)
    """(file, qualified name) of the Functions that its calls apply."""
    witnesses: set[str] = field(default_factory=set)
    """Those that spoke."""
    finite: list[tuple[Sample, torch.Tensor]] = field(default_factory=list)
    """Of each declared sample: whether forward has a value, for each entry of its outputs."""
    interpreted_before: int = field(default_factory=interpreted)

    def add(self, family: Family, result: CheckResult) -> None:
        """Add what one family of checks says of a point."""
        self.outcomes[family] = max(self.outcomes[family], result.outcome, key=WORSE.index)
        self.swept = self.swept.joined(result.swept)
        self.not_judged += result.not_judged
        self.witnesses |= result.witnesses

    def count_calls(self, sample: Sample) -> None:
        """Add the calls that were made of a sample."""
        counter = sample.problem.counter
        self.evaluations += Evaluations(counter.forward, counter.backward)
        self.entries |= bool(sample.inputs.size and sample.problem.outputs.size)

    def note_values(self, sample: Sample, values: torch.Tensor | None) -> None:
        """Note where forward has values (M)."""
        if values is not None:
            self.finite.append((sample, values.isfinite()))

    def without_value(self) -> Iterator[Finding]:
        """GV109 where forward is not finite at declared values, and next to them, and finite at others.

        An entry that has no value anywhere is a masked one, say; one that has a value next to these has none
        at a single point, as a quotient at a tie.
        """
        for sample, found in self.finite:
            alike = [other for one, other in self.finite if _has_the_constants_of(sample, one)]
            if len({len(other) for other in alike}) != 1:
                return
            ever = torch.stack(alike).any(dim=0)
            lost = ever & ~found
            if not bool(lost.any()):
                continue
            inputs = sample.inputs
            x = inputs.flatten(sample.problem.primals)
            beside = sample.problem.evaluate(inputs.unflatten(x * (1 + NEXT * torch.linspace(1, 2, len(x)))))
            if isinstance(beside, Raised):
                continue
            lost &= ~sample.problem.outputs.flatten(beside.value).isfinite()
            if bool(lost.any()):
                count = f"{int(lost.sum())} of {lost.numel()} entries of its output"
                said = (
                    f"forward has no value at {count} (nan or inf), as it has at other declared values: no "
                    "gradient is verified there"
                )
                self.outcomes[Family.GRADCHECK] = max(
                    self.outcomes[Family.GRADCHECK], Outcome.INCONCLUSIVE, key=WORSE.index
                )
                yield sample.finding("GV109", said, hint=DECLARE)
                return

    def add_point(self, sample: Sample, results: dict[Family, CheckResult]) -> None:
        """Add a judged point."""
        self.swept = self.swept.joined(branches_seen(sample))
        self.count_calls(sample)
        self.points += 1
        self._add_pairs(sample, results)
        for family in (Family.CONTRACT, Family.PRECISION):
            for name, said in results[family].capabilities:
                self.capabilities[name] = _worse(self.capabilities.get(name, ""), said)
        self.capability = _worse(self.capability, results[Family.GRADGRADCHECK].capability)
        if sample.point is not Point.TYPICAL:
            return
        self.uncovered.append({k: v for result in results.values() for k, v in result.uncovered.items()})
        visible = results[Family.GRADCHECK].smallest_visible_error
        self.visible = min((v for v in (visible, self.visible) if v is not None), default=None)

    def _add_pairs(self, sample: Sample, results: dict[Family, CheckResult]) -> None:
        ran = any(result.outcome is not Outcome.NOT_RUN for result in results.values())
        uncovered = results[Family.GRADCHECK].uncovered
        for pair in itertools.product(sample.problem.output_positions, sample.problem.input_names):
            unknown = uncovered.get(pair)
            judged = ran and (unknown is None or not (unknown.mask.numel() and unknown.mask.all()))
            self.judged[pair] = self.judged.get(pair, False) or judged

    def never_judged(self) -> list[Finding]:
        """GV109 for every pair some entry of which was judged at no typical draw."""
        if self.last is None or not self.uncovered:
            return []
        findings = []
        unknown: dict[tuple[int, str], Uncovered] = {}
        for position, name in sorted(set.intersection(*map(set, self.uncovered))):
            found = [u[position, name] for u in self.uncovered]
            mask = found[0].mask
            if len({f.mask.shape for f in found}) == 1:
                mask = torch.stack([f.mask for f in found]).all(dim=0)
            if not mask.any():
                continue
            unknown[position, name] = replace(found[-1], mask=mask)
            findings.append(not_verified(self.last, position, name, unknown[position, name]))
            family = family_of(name)
            if self.outcomes[family] is not Outcome.FAILED:
                self.outcomes[family] = Outcome.INCONCLUSIVE
        problem = self.last.problem
        every = set(itertools.product(problem.output_positions, problem.input_names))
        alike = len({one.reason for one in unknown.values()}) == 1 and all(
            o.mask.all() for o in unknown.values()
        )
        if len(every) > 1 and set(unknown) == every and alike:
            return [nothing_verified(self.last, next(iter(unknown.values())))]
        return findings

    def verified(self, case: Case, *, no_gradient: bool = False) -> CaseVerified:
        """Tell of a case whose last point is judged."""
        # An operator's backward may be no Python function that could be read inside.
        compiled = self.last and self.last.subject.operator is not None and self.last.subject.reader is None
        return CaseVerified(
            case_id=case.id,
            checks=tuple((family.value, self.outcomes[family]) for family in CHECK_FAMILIES),
            evaluations=self.evaluations,
            points=self.points,
            smallest_visible_error=self.visible,
            not_judged=self.not_judged,
            witnesses=tuple(sorted(self.witnesses)),
            capabilities=(
                ("double_backward", self.capability or "not-run"),
                *((("contract", "partial"),) if compiled else ()),
                *self.capabilities.items(),
            ),
            no_gradient=no_gradient,
            empty=self.last is not None and not self.entries,
            unjudged=tuple(pair for pair, judged in self.judged.items() if not judged),
            remarks=tuple(self.remarks),
            swept=replace(self.swept, interpreted=interpreted() > self.interpreted_before),
            applied=tuple(sorted(self.applied)),
        )
