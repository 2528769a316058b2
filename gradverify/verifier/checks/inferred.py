"""The guard on inferred inputs: a mismatch is a failure only if the guess cannot have made it.

It is none where backward is right along a manifold that inputs may lie on (`manifolds.py`), for another
value of an argument that was invented (`alternatives.py`), for constants of some kind (`constants.py`), at
other sizes or shapes (`other_sizes.py`, `written_sizes.py`, `equal_sizes.py`), for complex inputs
(`complex_inputs.py`), or where its author shows
that no derivative is meant (`deliberate.py`). Then it is an inconclusive finding that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from gradverify.model import Doubt, Finding, Outcome, Severity
from gradverify.rules import Family
from gradverify.verifier.checks.accidents import is_accident
from gradverify.verifier.checks.alternatives import whatever_invented
from gradverify.verifier.checks.complex_inputs import at_complex_inputs
from gradverify.verifier.checks.constants import right_for_some
from gradverify.verifier.checks.equal_sizes import at_equal_sizes
from gradverify.verifier.checks.inconclusive import deliberate, doubted, invented, joined, refused, unsteady
from gradverify.verifier.checks.inventions import (
    OF_A_SLOPE,
    OF_THE_COUNT,
    OF_THE_DERIVATIVE,
    count_in_doubt,
    inventions_of,
    signs_of,
    write_in_doubt,
)
from gradverify.verifier.checks.manifolds import (
    persists,
    right_at_definite,
    unread_slice,
    with_minus_signs,
    wrong_without_negative,
)
from gradverify.verifier.checks.nothing_seen import HIDDEN, NOTHING, depends_on_nothing, hidden_inputs
from gradverify.verifier.checks.other_sizes import (
    at_even_sizes,
    at_other_shapes,
    odd_sizes_alone,
    right_at,
)
from gradverify.verifier.checks.repeatable import is_repeatable
from gradverify.verifier.checks.result import CheckResult
from gradverify.verifier.checks.returned_shapes import of_returned_ranks
from gradverify.verifier.checks.steadiness import is_steady
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.written_sizes import at_written_sizes

CERTAIN = ("GV105", "GV4", "GV502", "GV503", "GV505")
"""Codes that do not hang on the values of the inputs: no guess can have made them."""

OF_THE_MATRIX = frozenset({"GV410"})
"""Codes that are certain no more where something was invented: LAPACK gives anything for singular ones."""

OF_THE_DTYPE = "GV104"
"""A gradient in another dtype: a complex one may be right for complex inputs."""

OF_GRAD_OUTPUT = "GV106"
"""Of what backward makes of grad_output, whatever forward is."""

OF_A_SHAPE = "GV103"
"""A gradient in another shape than its input has."""

OF_SHAPES = frozenset({"GV101", "GV103", "GV107", "GV108", "GV110"})
"""Codes that a wrong guess of a shape can have made."""


def guarded(
    sample: Sample, results: dict[Family, CheckResult], told: Iterable[Finding] = ()
) -> dict[Family, CheckResult]:
    """On inferred inputs, turn errors that the guess may have made into inconclusive findings.

    What was `told` as an error at another point of the target stands: no guess has made it there, and the
    target fails by it whatever is found here.
    """
    if not sample.subject.inferred:
        return results
    guard = _Guard(sample, inventions_of(sample))
    standing = {_mistake(f) for f in told if f.severity is Severity.ERROR}

    def judged(finding: Finding) -> Finding:
        stands = finding.severity is not Severity.ERROR or _mistake(finding) in standing
        return finding if stands or guard.is_certain(finding) else guard.judged(finding)

    kept_results = {}
    for family, result in results.items():
        findings = tuple(map(judged, result.findings))
        failed = any(f.severity is Severity.ERROR for f in findings)
        outcome = result.outcome
        if outcome is Outcome.FAILED and not failed:
            outcome = Outcome.INCONCLUSIVE
        kept_results[family] = replace(result, findings=findings, outcome=outcome)
    first = kept_results.get(Family.GRADCHECK)
    if first is not None and first.outcome is Outcome.PASSED and guard.invented:
        unseen = _unseen(sample, guard.invented)
        if unseen is not None:
            kept_results[Family.GRADCHECK] = replace(
                first, findings=(*first.findings, unseen), outcome=Outcome.INCONCLUSIVE
            )
    return kept_results


def _unseen(sample: Sample, doubts: Sequence[Doubt]) -> Finding | None:
    """What keeps a gradient that is right from saying anything: zeros, by what was made up."""
    what = tuple(d.what for d in doubts)
    if depends_on_nothing(sample):
        return invented(sample.finding("GV109", NOTHING), what)
    hidden = hidden_inputs(sample, [d.name for d in doubts])
    if not hidden:
        return None
    message = f"{HIDDEN.format(', '.join(f'`{name}`' for name in hidden))}"
    return invented(sample.finding("GV109", message, input=hidden[0]), what)


def _mistake(finding: Finding) -> tuple[str, str | None, int | None]:
    return finding.code, finding.input, finding.output


@dataclass
class _Guard:
    """The guard at one sample; what it measures there is measured once."""

    sample: Sample
    invented: tuple[Doubt, ...]
    persistent: bool | None = None
    steady: bool | None = None
    settled: dict[tuple[str | None, str], bool] = field(default_factory=dict)
    """By input and kind of finding: whether the mismatch is there whatever was invented."""
    kinds: dict[tuple[str | None, bool], str] = field(default_factory=dict)
    """By input and order: the constants, and their kind, for which it is not there."""
    unread: dict[tuple[str | None, bool], str] = field(default_factory=dict)
    """By input and order: what forward does not read where that makes the mismatch."""
    too_small: tuple[str, ...] | None = None
    """Inputs past whose ends forward seems to read."""
    reshaped: tuple[str, ...] | None = None
    """Inputs with other shapes of which backward is right."""
    written: tuple[str, ...] | None = None
    """Sizes, in words, without those that backward names instead."""
    unequal: tuple[str, ...] | None = None
    """Sizes, in words, without which differing backward is right."""
    odd: dict[str | None, tuple[str, ...]] = field(default_factory=dict)
    """By input: odd sizes without which the mismatch is not there."""
    signless: dict[str, frozenset[str] | None] = field(default_factory=dict)
    """By input: those whose gradient is wrong without its minus signs; None where they cannot be left out."""

    def is_certain(self, finding: Finding) -> bool:
        """Whether no guess can have made it: what raises may do so because of what was invented.

        Where two sizes were guessed to differ nothing is certain: what backward does not write of the longer
        one holds anything. Another case has them equal, and shows what hangs on neither.
        """
        if any(d.differ for d in self.invented):
            return False
        hangs_on_them = finding.raised is not None or finding.code in OF_THE_MATRIX
        if finding.code == OF_THE_COUNT and any(
            self._may_make_another_count(d, finding) for d in self.invented
        ):
            return False
        if _guess_behind(self.sample, finding) or self._past_an_end():
            return False
        return finding.code.startswith(CERTAIN) and not (hangs_on_them and self.invented)

    def _may_make_another_count(self, doubt: Doubt, finding: Finding) -> bool:
        """Whether an input was meant to be something else, or an invented module lacks parameters."""
        return doubt.name == finding.input or doubt.what.endswith(("(callable)", "(object)"))

    def _past_an_end(self) -> tuple[str, ...]:
        """Inputs whose shape was guessed too small where forward seems to read whatever lies in memory."""
        if self.too_small is None:
            summed = tuple(of_returned_ranks(self.sample))
            self.too_small = summed if summed and not is_repeatable(self.sample) else ()
        return self.too_small

    def judged(self, finding: Finding) -> Finding:
        """The finding if the inputs cannot have made it, else an inconclusive one that says why not."""
        reader = self.sample.subject.reader
        # What backward returns at inputs that are tried here is no news of the sample's own.
        with nullcontext() if reader is None else reader.without_new_remarks():
            return next(self._reasons(finding), finding)

    def _reasons(self, finding: Finding) -> Iterator[Finding]:
        """The finding as inconclusive, for each reason that there is; the next is looked for when asked."""
        sample = self.sample
        signs = signs_of(sample, finding)
        if signs:
            yield deliberate(finding, joined(signs))
        if self._past_an_end():
            yield invented(finding, tuple(f"the shape of `{name}`" for name in self._past_an_end()))
        if guess := _guess_behind(self.sample, finding):
            yield invented(finding, (guess,))
        doubts = self._in_doubt(finding)
        if doubts and not self._whatever_invented(finding, doubts):
            yield invented(finding, tuple(d.what for d in doubts))
        yield from self._of_real_inputs(finding)
        yield from self._of_other_shapes(finding)
        yield from self._of_signs(finding)
        if finding.code == "GV102" and not is_accident(self.sample, finding):
            yield refused(finding)
        if not self._persists(finding) or (finding.code == "GV108" and right_at_definite(self.sample)):
            yield doubted(finding)
        if finding.code in OF_A_SLOPE and not self._is_steady():
            yield unsteady(finding)
        doubt = self._kind(finding) or (self._unread(finding) if finding.code != OF_GRAD_OUTPUT else "")
        if doubt:
            yield invented(finding, (doubt,))

    def _of_real_inputs(self, finding: Finding) -> Iterator[Finding]:
        real = at_complex_inputs(self.sample, finding) if finding.code == OF_THE_DTYPE else ()
        if real:
            yield invented(finding, tuple(f"that `{name}` is real" for name in real))

    def _of_signs(self, finding: Finding) -> Iterator[Finding]:
        """Inconclusive where it is not there without the minus signs of what acts on the first input.

        An index that is read off a negative number counts from the end in forward, and not in backward.
        """
        if finding.code not in OF_A_SLOPE | {"GV102"}:
            return
        for name in with_minus_signs(self.sample):
            if name == self.sample.problem.input_names[0]:
                continue
            if name not in self.signless:
                self.signless[name] = wrong_without_negative(self.sample, name)
            wrong = self.signless[name]
            if wrong is not None and not (wrong if finding.input is None else finding.input in wrong):
                yield invented(finding, (f"that negative values of `{name}` are valid",))

    def _of_other_shapes(self, finding: Finding) -> Iterator[Finding]:
        if finding.code not in OF_SHAPES | {"GV102"}:
            return
        summed = of_returned_ranks(self.sample) if finding.code in OF_SHAPES else {}
        if summed and (finding.code == OF_A_SHAPE or right_at(self.sample, summed, finding.input)):
            yield invented(finding, tuple(f"the shape of `{name}`" for name in summed))
        if finding.input not in self.odd:
            self.odd[finding.input] = odd_sizes_alone(self.sample, finding.input)
        if self.odd[finding.input]:
            yield invented(finding, tuple(f"the odd size of `{n}`" for n in self.odd[finding.input]))
        yield from self._where_right(finding)

    def _where_right(self, finding: Finding) -> Iterator[Finding]:
        """Inconclusive where backward as a whole is right at other shapes: measured once a sample."""
        if self.reshaped is None:
            self.reshaped = at_other_shapes(self.sample)
        if self.reshaped:
            yield invented(finding, tuple(f"the shape of `{name}`" for name in self.reshaped))
        if self.written is None:
            self.written = at_written_sizes(self.sample)
        if self.written:
            yield invented(finding, self.written)
        if self.unequal is None:
            self.unequal = at_equal_sizes(self.sample)
        if self.unequal:
            yield invented(finding, self.unequal)

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
            names = [d.name for d in doubts]
            testable = all(d.of_values for d in doubts)
            self.settled[key] = testable and whatever_invented(self.sample, finding, names)
        return self.settled[key]

    def _kind(self, finding: Finding) -> str:
        if finding.code not in OF_THE_DERIVATIVE:
            return ""
        name, second_order = key = (finding.input, _is_second_order(finding))
        if key not in self.kinds:
            samples = filter(None, (at_even_sizes(self.sample), self.sample))
            found = (right_for_some(s, name, second_order=second_order) for s in samples)
            self.kinds[key] = next(filter(None, found), "")
        return self.kinds[key]

    def _unread(self, finding: Finding) -> str:
        key = (finding.input, _is_second_order(finding))
        if key not in self.unread:
            self.unread[key] = unread_slice(self.sample, key[0], second_order=key[1])
        return self.unread[key]

    def _is_steady(self) -> bool:
        if self.steady is None:
            self.steady = is_steady(self.sample)
        return self.steady

    def _persists(self, finding: Finding) -> bool:
        # Where the first derivative is right in every direction, the inputs lie on no manifold.
        if finding.code.startswith(("GV102", "GV104", "GV2", "GV501")):
            return True
        if self.persistent is None:
            self.persistent = persists(self.sample)
        return self.persistent


def _guess_behind(sample: Sample, finding: Finding) -> str:
    """What was guessed if this very finding is meant; else empty."""
    return write_in_doubt(sample, finding) or count_in_doubt(sample, finding)


def _is_second_order(finding: Finding) -> bool:
    return finding.code.startswith("GV2")
