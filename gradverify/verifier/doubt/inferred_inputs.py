"""The verdict at guessed or undeclared values: a mismatch fails only if the guess cannot explain it.

All of inferred inputs is a guess; of a spec, the values that it does not declare.

Whether a gradient that is right says anything: a loop of no rounds has a backward of any kind.

Why a guess may have made a mismatch: it is gone for another guess that forward accepts, or is meant.

Each reason takes a finding and gives it as an inconclusive one that says what was guessed, or None. They are
asked in the order of `AT_DECLARED`, or of `AT_UNDECLARED` where backward is right at moderate values: extreme
ones need few reasons of their own. But an exponent of the author's may be one at which the limit exists, and
an invented one not; and labels, masks and factors are other ones there, which hide all of a row, or name one
entry twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

from torch import Tensor

from gradverify.model import Doubt, Finding, Outcome, Point, Severity, TensorInput
from gradverify.model.case import is_floating, is_free
from gradverify.rules import Family
from gradverify.verifier.checks.equal_entries import BETWEEN_INPUTS
from gradverify.verifier.checks.reading import Irregularity
from gradverify.verifier.checks.result import NOT_REPEATED, CheckResult
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import (
    declare,
    deliberate,
    doubted,
    invented,
    joined,
    refused,
    undeclared,
    unsteady,
)
from gradverify.verifier.doubt.deliberate import (
    OF_A_SLOPE,
    OF_THE_COUNT,
    OF_THE_DERIVATIVE,
    count_in_doubt,
    hangs_on_no_guess,
    inventions_of,
    is_accident,
    signs_of,
    size_in_doubt,
    write_in_doubt,
)
from gradverify.verifier.doubt.neighbours import (
    Excuses,
    Mistake,
    Neighbours,
    Reason,
    declares_values,
    forward_iterates,
    is_locally_constant,
    is_steady,
    iterates_alone,
    mismatched,
    needless_minus_signs,
    padded_inputs,
    right_inside,
    right_where_converged,
    without,
    wrong_inputs,
)
from gradverify.verifier.doubt.other_sizes import (
    at_equal_sizes,
    at_even_sizes,
    at_other_shapes,
    at_structured_shapes,
    names_of_other_shapes,
    odd_sizes_alone,
    of_returned_ranks,
    right_at,
)
from gradverify.verifier.doubt.other_values import (
    MEASURED,
    at_other_numbers,
    right_for_some,
    whatever_invented,
)
from gradverify.verifier.doubt.structures import linear_at_definite, right_along, right_at_definite
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.probes import random_signs

NOTHING = "no output depends on any input, so that no gradient was seen"
"""What is said of a gradient that is zero, rightly, where something was invented."""

HIDDEN = "no output depends on {} here, and the gradient is wrong at other values of what was guessed"
"""What is said where the invented numbers hide what is wrong."""

REDRAWN = tuple(range(101, 909, 101))
"""Offsets from a case's seed to those of other masks, labels and dropped entries: one draw may hide all."""

ALIKE = (1, 2)
"""Draws of special values: half of an integer tensor is the same number, and then all."""


def depends_on_nothing(sample: Sample) -> bool:
    """Whether the gradient at a sample where it is verified is zero in every entry.

    Not where other draws, or other sizes, have a gradient, which is right there.
    """
    if not _is_zero(sample):
        return False
    redrawn = (replace(sample.case, seed=sample.case.seed + offset) for offset in REDRAWN)
    # Of integers every second draw may have some twice, and the last ones do.
    cases = enumerate((*redrawn, *sample.subject.spares))
    places = [(case, sample.point, (sample.draw + number) % 2) for number, case in cases]
    for place in (*places, *((sample.case, Point.SPECIAL, draw) for draw in ALIKE)):
        other = prepare(sample.subject, *place)
        if isinstance(other, Sample) and not _is_zero(other) and mismatched(other) is False:
            return False
    return True


def hidden_inputs(sample: Sample, invented: Iterable[str]) -> tuple[str, ...]:
    """Inputs whose gradient is zero, rightly, and wrong at other values of the invented numbers.

    A window of less than one leaves attention its diagonal: no score counts, and none that is wrong is seen.
    """
    zero = _of_no_effect(sample)
    wrong: set[str] = set()
    for other in at_other_numbers(sample, invented) if zero else ():
        shown = zero - _of_no_effect(other)
        if shown:
            wrong |= shown & (wrong_inputs(other) or set())
    return tuple(name for name in sample.problem.input_names if name in wrong)


def _is_zero(sample: Sample) -> bool:
    return _of_no_effect(sample) == set(sample.problem.input_names)


def _of_no_effect(sample: Sample) -> set[str]:
    """Inputs to which a random grad_output gives zeros; none where backward raises."""
    problem = sample.problem
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.key))
    result = problem.pull_back(problem.primals, u)
    if isinstance(result, Raised):
        return set()
    given = zip(problem.input_names, result.value, strict=True)
    return {name for name, gradient in given if gradient is None or not gradient.any()}


OF_AN_EXCEPTION = "GV102"
"""Backward raises."""

OF_A_SHAPE = "GV103"
"""A gradient in another shape than its input has."""

OF_THE_DTYPE = "GV104"
"""A gradient in another dtype: a complex one may be right for complex inputs."""

OF_GRAD_OUTPUT = "GV106"
"""Of what backward makes of grad_output, whatever forward is."""

OF_NO_VALUE = "GV108"
"""A gradient that is NaN or infinite: its author may divide by what is never zero, or never alike."""

OF_SHAPES = frozenset({"GV101", "GV103", "GV107", "GV108", "GV110"})
"""Codes that a wrong guess of a shape can have made."""

ON_NO_MANIFOLD = ("GV102", "GV104", "GV106", "GV2", "GV501")
"""Codes that no manifold explains. Where the first derivative is right in every direction, there is none; and
a backward is linear in grad_output wherever the inputs lie, but for an iteration that does not converge."""

SLIGHT = 1e-3
"""Share of a derivative, the tolerance of torch's gradcheck: where backward is right at moderate values,
one that protects a division by zero is off by so much at tiny ones, and only a spec says that they count."""

NOT_CONVERGED = "that forward's iteration converges at such values"
CONVERGES_ELSEWHERE = "forward repeats a step, which need not converge at such values"
CONSTANT = "forward is constant wherever it is wrong, as outside of a domain"
SOME_RANGE = "a narrower `range:`"

OF_A_DOMAIN = OF_A_SLOPE | {OF_NO_VALUE}
"""Codes that values outside of a domain can have made."""


def guess_behind(sample: Sample, finding: Finding) -> str:
    """What was guessed if this very finding is meant; else empty."""
    return size_in_doubt(sample) or write_in_doubt(sample, finding) or count_in_doubt(sample, finding)


def _if_guessed(finding: Finding, what: Iterable[str]) -> Finding | None:
    """The finding as one that hangs on what was guessed; None where that is nothing."""
    named = tuple(filter(None, what))
    return invented(finding, named) if named else None


def _shapes_of(finding: Finding, names: Iterable[str]) -> Finding | None:
    return _if_guessed(finding, (f"the shape of `{name}`" for name in names))


def _no_derivative_meant(near: Neighbours, finding: Finding) -> Finding | None:
    signs = signs_of(near.sample, finding)
    return deliberate(finding, joined(signs)) if signs else None


def _meant(near: Neighbours, finding: Finding) -> Finding | None:
    return _if_guessed(finding, [guess_behind(near.sample, finding)])


def _invented_values(near: Neighbours, finding: Finding) -> Finding | None:
    """No shape makes a backward that is not linear, but what is never written where two sizes differ.

    Other values settle nothing where the shape of the gradient shows that another shape may be meant. What is
    None where the mismatch is there as well had no shape that could have made it.
    """
    linear = finding.code != OF_GRAD_OUTPUT
    doubts = [d for d in inventions_of(near.sample) if linear or d.differ or not d.of_shape]
    given = tuple(d.name for d in doubts if d.optional)
    bare = near.once(without, given) if given and finding.input not in given else None
    left = doubts if bare is None else [d for d in doubts if not d.optional]
    testable = bool(doubts) and all(d.of_values for d in left)
    fits = testable and finding.input not in near.once(names_of_other_shapes)
    settled = fits and _is_there_whatever(bare or near, finding, left)
    return None if settled else _if_guessed(finding, (d.what for d in doubts))


def _is_there_whatever(near: Neighbours, finding: Finding, doubts: Iterable[Doubt]) -> bool:
    """Whether it is there for all other values of what was invented."""
    names, second_order = tuple(d.name for d in doubts), _is_second_order(finding)
    return finding.code in MEASURED and near.once(
        whatever_invented, names, finding.input, second_order=second_order
    )


def _real_inputs(near: Neighbours, finding: Finding) -> Finding | None:
    """A Fourier transform takes real inputs, too; its complex gradients are right for complex ones."""
    if finding.code != OF_THE_DTYPE or finding.input not in _of_complex_gradients(near.sample):
        return None
    return _if_guessed(finding, [f"that `{finding.input}` is real"])


def _of_complex_gradients(sample: Sample) -> set[str]:
    """Real inputs for which backward returned a complex gradient."""
    reader = sample.subject.reader
    return {
        sample.arguments[remark.position].name
        for (kind, _), remark in (reader.remarks.items() if reader is not None else ())
        if kind is Irregularity.DTYPE and "complex" in remark.got and "complex" not in remark.expected
    }


def _given_dtype(near: Neighbours, finding: Finding) -> Finding | None:
    """A gradient in the one dtype that its author calls it with is of that of the input there."""
    problem = near.sample.problem
    if finding.code != OF_THE_DTYPE or finding.input not in problem.input_names:
        return None
    dtype = problem.primals[problem.input_names.index(finding.input)].dtype
    return _if_guessed(finding, [f"that `{finding.input}` is {str(dtype).removeprefix('torch.')}"])


def _returned_shapes(near: Neighbours, finding: Finding) -> Finding | None:
    summed = of_returned_ranks(near.sample) if finding.code in OF_SHAPES else {}
    right = summed and (finding.code == OF_A_SHAPE or right_at(near.sample, summed, finding.input))
    return _shapes_of(finding, summed if right else ())


def _odd_sizes(near: Neighbours, finding: Finding) -> Finding | None:
    odd = near.once(odd_sizes_alone, finding.input) if _is_of_shapes(finding) else ()
    return _if_guessed(finding, (f"the odd size of `{name}`" for name in odd))


def _other_shapes(near: Neighbours, finding: Finding) -> Finding | None:
    return _shapes_of(finding, near.once(at_other_shapes) if _is_of_shapes(finding) else ())


def _other_sizes(near: Neighbours, finding: Finding) -> Finding | None:
    return _if_guessed(finding, near.once(at_equal_sizes) if _is_of_shapes(finding) else ())


def _iterations(near: Neighbours, finding: Finding) -> Finding | None:
    """Where forward stops before it converges, its derivative is another one than that of the fixed point.

    A spec without a range for any input does not say that it converges, either.
    """
    sample = near.sample
    if finding.code not in OF_A_SLOPE or (declares_values(sample) and not sample.subject.inferred):
        return None
    right = near.once(iterates_alone) and near.once(right_where_converged)
    return _not_converged(near, finding, right) if right else None


def _any_iterations(near: Neighbours, finding: Finding) -> Finding | None:
    """At undeclared values forward need not converge, whether or not backward repeats a step, too."""
    iterates = finding.code in OF_A_SLOPE and near.once(forward_iterates)
    return _not_converged(near, finding, SOME_RANGE) if iterates else None


def _not_converged(near: Neighbours, finding: Finding, declared: str) -> Finding:
    if near.sample.subject.inferred:
        return invented(finding, [NOT_CONVERGED], declare(declared))
    return undeclared(finding, CONVERGES_ELSEWHERE, declared)


def _outside_domain(near: Neighbours, finding: Finding) -> Finding | None:
    inside = right_inside(near, finding) if finding.code in OF_A_DOMAIN else ""
    what = f"that `{finding.input}` has other values (forward is constant wherever backward is wrong)"
    return invented(finding, [what], declare(inside)) if inside else None


def _constant_there(near: Neighbours, finding: Finding) -> Finding | None:
    """At undeclared values, beside those at which backward is right."""
    if finding.code not in OF_A_DOMAIN or not is_locally_constant(near.sample, finding):
        return None
    declared = _of_undeclared(near.sample, finding.input)
    if near.sample.subject.inferred:
        what = f"that `{finding.input}` has such values (forward is constant wherever backward is wrong)"
        return invented(finding, [what], declare(declared))
    return undeclared(finding, CONSTANT, declared)


def _of_undeclared(sample: Sample, name: str | None) -> str:
    """What declares the values of an input, or those of others where its own are declared, and theirs not."""
    tensors = [i for i in sample.case.inputs if isinstance(i, TensorInput)]
    others = [f"`{i.name}`" for i in tensors if not is_floating(i) and i.name != name and i.value is None]
    own = next((i for i in tensors if i.name == name), None)
    if own is None or is_free(own) or not others:
        return f"a `range:` of `{name}`"
    return f"a `make:` function for {' and '.join(others)}"


def _padding(near: Neighbours, finding: Finding) -> Finding | None:
    padded = near.once(padded_inputs, finding.input) if finding.code in OF_A_SLOPE else ()
    names = " and ".join(f"`{name}`" for name in padded)
    what = f"that {names} may hold values where forward and backward give zeros"
    hint = declare(f"a `make:` function for {names} that leaves zeros there")
    return invented(finding, [what], hint) if padded else None


def _minus_signs(near: Neighbours, finding: Finding) -> Finding | None:
    """Of what acts on the first input."""
    if finding.code not in OF_A_SLOPE | {OF_AN_EXCEPTION}:
        return None
    return _if_guessed(
        finding, needless_minus_signs(near, finding.input, near.sample.problem.input_names[1:])
    )


def _refused(near: Neighbours, finding: Finding) -> Finding | None:
    by_guess = finding.code == OF_AN_EXCEPTION and not is_accident(near.sample, finding)
    return refused(finding) if by_guess else None


def _manifold(near: Neighbours, finding: Finding) -> Finding | None:
    along = ""
    if not finding.code.startswith(ON_NO_MANIFOLD):
        along = near.once(right_along) or near.once(right_at_definite)
    if finding.code == OF_GRAD_OUTPUT:
        along = near.once(linear_at_definite)
    return doubted(finding, along) if along else None


def _structured_shapes(near: Neighbours, finding: Finding) -> Finding | None:
    """Both were guessed: a shape, and that any matrix of it is valid."""
    return _if_guessed(finding, [near.once(at_structured_shapes)] if finding.code in OF_SHAPES else ())


def _unsteady(near: Neighbours, finding: Finding) -> Finding | None:
    steady = finding.code not in OF_A_SLOPE or is_steady(near, finding.input)
    return None if steady else unsteady(finding)


def _constants(near: Neighbours, finding: Finding) -> Finding | None:
    """First at even sizes: a table may be one of halves, or of pairs."""
    if finding.code not in OF_THE_DERIVATIVE:
        return None
    return _if_guessed(finding, [near.once(_kind, finding.input, second_order=_is_second_order(finding))])


def _kind(sample: Sample, name: str | None, *, second_order: bool) -> str:
    samples = filter(None, (at_even_sizes(sample), sample))
    return next(filter(None, (right_for_some(s, name, second_order=second_order) for s in samples)), "")


def _anything_invented(near: Neighbours, finding: Finding) -> Finding | None:
    """Options and factors are swept; other values are drawn again."""
    sample = near.sample
    inventions = inventions_of(sample)
    what = [d.what for d in inventions if d.certain or d.differ]
    redrawn = [d for d in inventions if d.of_values and not d.certain]
    if redrawn and not _is_there_whatever(near, finding, redrawn):
        what += [d.what for d in redrawn]
    what += [d.what for d in sample.subject.doubts if d.extreme]
    if _lost_entries(sample, finding.input):
        what.append(f"that zeros of `{finding.input}` are none of its entries")
    return _if_guessed(finding, what)


def _such_values(near: Neighbours, finding: Finding) -> Finding | None:
    """Every entry is NaN, or off by little: by an epsilon in a denominator, a tail that is cut off."""
    sample, name = near.sample, finding.input
    special = sample.point is Point.SPECIAL
    worst = finding.entries.worst if finding.entries is not None else ()
    slight = bool(worst) and all(abs(e.actual - e.expected) <= SLIGHT * abs(e.expected) for e in worst)
    if not slight and not (finding.code == OF_NO_VALUE and special):
        return None
    zeros = special and _has_zeros(sample, name)
    return _if_guessed(
        finding, [f"that zeros of `{name}` are valid" if zeros else "that such values are valid"]
    )


def _equal_inputs(_: Neighbours, finding: Finding) -> Finding | None:
    """No other values show what is wrong there."""
    between = finding.part == BETWEEN_INPUTS
    return _if_guessed(finding, ["that entries of several inputs may be equal"] if between else ())


def _any_minus_signs(near: Neighbours, finding: Finding) -> Finding | None:
    names = near.sample.problem.input_names if finding.code in OF_A_SLOPE else ()
    return _if_guessed(finding, needless_minus_signs(near, finding.input, names))


AT_DECLARED: tuple[Reason, ...] = (
    _no_derivative_meant,
    _meant,
    _outside_domain,
    _invented_values,
    _real_inputs,
    _given_dtype,
    _returned_shapes,
    _iterations,
    _odd_sizes,
    _other_shapes,
    _other_sizes,
    _minus_signs,
    _refused,
    _manifold,
    _structured_shapes,
    _unsteady,
    _constants,
    _padding,
)

AT_UNDECLARED: tuple[Reason, ...] = (
    _equal_inputs,
    _no_derivative_meant,
    _anything_invented,
    _such_values,
    _any_iterations,
    _any_minus_signs,
    _constant_there,
    _unsteady,
)

UNDER_A_SPEC: tuple[Reason, ...] = (_iterations,)
"""At values that are drawn because a spec gives no range."""

UNDER_A_SPEC_AT_UNDECLARED: tuple[Reason, ...] = (_any_iterations, _constant_there)


def _is_of_shapes(finding: Finding) -> bool:
    return finding.code in OF_SHAPES | {OF_AN_EXCEPTION}


def _is_second_order(finding: Finding) -> bool:
    return finding.code.startswith("GV2")


def _has_zeros(sample: Sample, name: str | None) -> bool:
    names = sample.problem.input_names
    return name in names and bool((sample.problem.primals[names.index(name)] == 0).any())


def _lost_entries(sample: Sample, name: str | None) -> bool:
    """Whether an input in a sparse layout holds zeros, which are no entries of it and get no gradient."""
    given = (i for i in sample.case.inputs if isinstance(i, TensorInput) and i.name == name)
    return any(i.layout.startswith("sparse") for i in given) and _has_zeros(sample, name)


CERTAIN = ("GV105", "GV4", "GV502", "GV503", "GV505")
"""Codes that do not hang on the values of the inputs: no guess can have made them."""

OF_THE_MATRIX = frozenset({"GV410"})
"""Codes that are certain no more where something was invented: LAPACK gives anything for singular ones."""


def guarded(
    sample: Sample,
    results: dict[Family, CheckResult],
    reported: Iterable[Finding] = (),
    excuses: Excuses | None = None,
    reasons: Sequence[Reason] = AT_DECLARED,
) -> dict[Family, CheckResult]:
    """Turn errors that a guess may have made into inconclusive findings.

    An error that was `reported` at another point of the target remains: no guess made it there, and the
    target fails by it whatever is found here. `excuses` are those of the case.
    """
    near = Neighbours(sample)
    if not sample.subject.inferred:
        typical = sample.point is Point.TYPICAL
        return {f: _excused(near, r, UNDER_A_SPEC) for f, r in results.items()} if typical else results
    certain_elsewhere = {_mistake(f) for f in reported if f.severity is Severity.ERROR}

    def is_certain(finding: Finding) -> bool:
        return _mistake(finding) in certain_elsewhere or _is_certain(near, finding)

    kept = {f: _excused(near, result, reasons, is_certain, excuses) for f, result in results.items()}
    first, doubts = kept.get(Family.GRADCHECK), inventions_of(sample)
    unseen = _unseen(sample, doubts) if first and first.outcome is Outcome.PASSED else None
    if first and unseen:
        findings = (*first.findings, unseen)
        kept[Family.GRADCHECK] = replace(first, findings=findings, outcome=Outcome.INCONCLUSIVE)
    return kept


def guarded_at_undeclared(sample: Sample, result: CheckResult) -> CheckResult:
    """The same of findings at undeclared values."""
    reasons = AT_UNDECLARED if sample.subject.inferred else UNDER_A_SPEC_AT_UNDECLARED
    return _excused(Neighbours(sample), result, reasons)


def guarded_at_unlisted(sample: Sample, result: CheckResult) -> CheckResult:
    """The same for findings at unlisted sizes."""
    return _excused(Neighbours(sample), result, AT_DECLARED if sample.subject.inferred else UNDER_A_SPEC)


def _excused(
    near: Neighbours,
    result: CheckResult,
    reasons: Sequence[Reason],
    is_certain: Callable[[Finding], bool] = lambda _: False,
    excuses: Excuses | None = None,
) -> CheckResult:
    """The result with errors as inconclusive findings, each by the first reason that there is."""
    reader, excuses = near.sample.subject.reader, excuses or Excuses()

    def judged(finding: Finding) -> Finding:
        certain = hangs_on_no_guess(near.sample, finding.raised) or is_certain(finding)
        if finding.severity is not Severity.ERROR or certain:
            return finding
        # What backward returns at inputs that are tried here is no news of the sample's own.
        with nullcontext() if reader is None else reader.without_new_remarks():
            mistake = _mistake(finding)
            excused = excuses.of(mistake, near, finding)
            return excused or excuses.first(mistake, near, finding, reasons) or finding

    findings = tuple(map(judged, result.findings))
    failed = any(f.severity is Severity.ERROR for f in findings)
    excused = result.outcome is Outcome.FAILED and not failed
    return replace(result, findings=findings, outcome=Outcome.INCONCLUSIVE if excused else result.outcome)


def _unseen(sample: Sample, doubts: Sequence[Doubt]) -> Finding | None:
    """What keeps a gradient that is right from saying anything: zeros, by what was made up."""
    what = tuple(d.what for d in doubts) or tuple(_constants_of(sample))
    if what and depends_on_nothing(sample):
        return invented(sample.finding("GV109", NOTHING), what)
    hidden = hidden_inputs(sample, [d.name for d in doubts])
    message = HIDDEN.format(", ".join(f"`{name}`" for name in hidden))
    return invented(sample.finding("GV109", message, input=hidden[0]), what) if hidden else None


def _constants_of(sample: Sample) -> Iterator[str]:
    """Floating tensors that backward gives no gradient: an output may depend on these alone."""
    for argument in sample.arguments:
        value = argument.value
        if isinstance(value, Tensor) and value.is_floating_point() and not argument.differentiable:
            yield f"that `{argument.name}` is a constant (backward returns None for it)"


def _mistake(finding: Finding) -> Mistake:
    return finding.code, finding.input, finding.output


def _is_certain(near: Neighbours, finding: Finding) -> bool:
    """Whether no guess can have made it: what raises may do so because of what was invented.

    Where two sizes were guessed to differ nothing is certain: what backward does not write of the longer
    one holds anything. Another case has them equal, and shows what hangs on neither.
    """
    doubts = inventions_of(near.sample)
    if finding.cause == NOT_REPEATED:
        return False
    if any(d.differ for d in doubts) or guess_behind(near.sample, finding):
        return False
    if finding.code == OF_THE_COUNT and any(d.of_count or d.name == finding.input for d in doubts):
        return False
    hangs_on_them = finding.raised is not None or finding.code in OF_THE_MATRIX
    return finding.code.startswith(CERTAIN) and not (hangs_on_them and doubts)
