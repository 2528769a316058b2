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

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import inf, isfinite

import torch
from torch import Tensor

from gradverify.model import (
    Doubt,
    Finding,
    Outcome,
    Point,
    RaisedError,
    Severity,
    tensors_of,
)
from gradverify.rules import Family
from gradverify.source import iterates
from gradverify.verifier.checks.deliberate import signs_of
from gradverify.verifier.checks.neighbours import (
    OF_A_SLOPE,
    Excuses,
    Mistake,
    Neighbours,
    Reason,
    compared,
    is_steady,
    mismatched,
    one_like,
    with_values,
    wrong_inputs,
)
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.result import NOT_REPEATED, CheckResult
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import (
    declare,
    deliberate,
    if_guessed,
    invented,
    joined,
    of_the_limit,
    refused,
    undeclared,
    unsteady,
)
from gradverify.verifier.doubt.domains import (
    OF_AN_EXCEPTION,
    OF_GRAD_OUTPUT,
    OF_NO_VALUE,
    constant_there,
    linear_elsewhere,
    manifold,
    outside_domain,
)
from gradverify.verifier.doubt.manifolds import SMALL
from gradverify.verifier.doubt.other_shapes import (
    odd_sizes,
    other_shapes,
    other_sizes,
    returned_shapes,
    shape_in_doubt,
    structured_shapes,
    unread_entries,
    unread_inputs,
)
from gradverify.verifier.doubt.other_values import (
    OF_THE_DTYPE,
    anything_invented,
    at_other_numbers,
    constants,
    has_zeros,
    invented_values,
    inventions_of,
)
from gradverify.verifier.doubt.padding import padding
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.raised_errors import is_bound_nowhere

OF_THE_COUNT = "GV105"
"""Another number of gradients than of arguments, or one for what is no tensor and may be meant to be."""


OF_A_WRITE = "GV402"
"""A write into an input: a spec says of one that is kept for it `mutated: true`."""


WRITES = frozenset({"GV401", "GV402", "GV403"})
"""Writes into grad_output, an input, what was saved."""


def size_in_doubt(sample: Sample) -> str:
    """The input of which a size of 0 was guessed, which says nothing of any other size; else empty."""
    empty = (t.name for i in sample.case.inputs for t in tensors_of(i) if 0 in t.shape)
    name = next(empty, "")
    return f"that `{name}` may be empty" if name else ""


def count_in_doubt(sample: Sample, finding: Finding) -> str:
    """What was guessed if another number of gradients is meant: how long a list of tensors is; else empty."""
    lists = (a.name.partition("[")[0] for a in sample.arguments if a.name.endswith("]"))
    name = next(lists, "") if finding.code == OF_THE_COUNT else ""
    return f"how many tensors `{name}` holds" if name else ""


def write_in_doubt(sample: Sample, finding: Finding) -> str:
    """What was guessed if a write is meant: a buffer kept for it, an option that asks for it; else empty."""
    if finding.code == OF_A_WRITE and finding.input not in {None, *sample.problem.input_names}:
        return f"that `{finding.input}` is no buffer to be written into"
    named = (a.name for a in sample.arguments if a.value is True and finding.code in WRITES)
    asking = next((name for name in named if "inplace" in name.replace("_", "").lower()), "")
    return f"`{asking}` = True, which may ask for that," if asking else ""


ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "KeyError", "UnboundLocalError", "ValueError", "TypeError"}
)
"""Exceptions in backward that inferred inputs do not explain: forward accepted them. An index beyond the end
is one of a size or a rank that was guessed."""


_NO_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute '(\w+)'")


def hangs_on_no_guess(sample: Sample, error: RaisedError | None) -> bool:
    """Whether backward raised what no inputs at all explain: a name bound nowhere, its own signature."""
    if error is None or error.deliberate:
        return False
    return is_bound_nowhere(error) or (error.type == "TypeError" and _takes_another_count(sample))


def _takes_another_count(sample: Sample) -> bool:
    """Whether backward takes another number of grad_outputs than forward has outputs, whatever is passed.

    Where forward takes a list, how long it is may decide how many outputs there are.
    """
    function = sample.subject.function_class
    if function is None or any("[" in a.name or a.in_list for a in sample.arguments):
        return False
    try:
        signature = inspect.signature(own_backward(function))
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(None, *(None for _ in range(sample.outputs_returned)))
    except TypeError:
        return True
    return False


def is_accident(sample: Sample, finding: Finding) -> bool:
    """Whether backward raised what no choice of inputs explains.

    What is asked in vain of a tensor or a number may have been meant to be another kind of argument.
    """
    raised = finding.raised
    if raised is None or raised.deliberate or raised.type not in ACCIDENTS:
        return False
    named = _NO_ATTRIBUTE.match(raised.message)
    return named is None or named[1] not in {type(a.value).__name__ for a in sample.arguments}


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


SLIGHT = 1e-3
"""Share of a derivative, the tolerance of torch's gradcheck: where backward is right at moderate values,
one that protects a division by zero is off by so much at tiny ones, and only a spec says that they count."""


def guess_behind(sample: Sample, finding: Finding) -> str:
    """What was guessed if this very finding is meant; else empty."""
    return size_in_doubt(sample) or write_in_doubt(sample, finding) or count_in_doubt(sample, finding)


def _no_derivative_meant(near: Neighbours, finding: Finding) -> Finding | None:
    signs = signs_of(near.sample, finding)
    return deliberate(finding, joined(signs)) if signs else None


def _meant(near: Neighbours, finding: Finding) -> Finding | None:
    return if_guessed(finding, [guess_behind(near.sample, finding)])


def _given_dtype(near: Neighbours, finding: Finding) -> Finding | None:
    """A gradient in the one dtype that its author calls it with is of that of the input there."""
    problem = near.sample.problem
    if finding.code != OF_THE_DTYPE or finding.input not in problem.input_names:
        return None
    dtype = problem.primals[problem.input_names.index(finding.input)].dtype
    return if_guessed(finding, [f"that `{finding.input}` is {str(dtype).removeprefix('torch.')}"])


def _refused(near: Neighbours, finding: Finding) -> Finding | None:
    by_guess = finding.code == OF_AN_EXCEPTION and not is_accident(near.sample, finding)
    return refused(finding) if by_guess else None


CONVERGING: Mapping[str, Callable[[Tensor], Tensor]] = {
    "`range: [-0.3, 0.3]`": lambda x: SMALL * x,
    "`range: [0.7, 1.3]`": lambda x: 1 + SMALL * x,
    "a `make:` function of matrices near the identity": lambda x: one_like(x) + SMALL * x,
}
"""How a spec declares values at which most iterations converge, and such values made of an input's own."""


def _forward_iterates(sample: Sample) -> bool:
    """Whether forward repeats a step until it converges."""
    function = sample.subject.function_class
    return function is not None and iterates(function.forward)


def _declares_values(sample: Sample) -> bool:
    """Whether a spec says how large the values of some input are, which a structure does not."""
    given = [t for i in sample.case.inputs for t in tensors_of(i)]
    return bool(sample.case.hook) or any(t.range is not None or t.value is not None or t.make for t in given)


def _right_where_converged(sample: Sample) -> str:
    """How a spec declares small values, or those near one or the identity, if backward is right there."""
    given = {a.name: a.value for a in sample.arguments if a.differentiable}
    for declared, move in CONVERGING.items():
        moved = with_values(sample, {name: move(value) for name, value in given.items()})
        if mismatched(moved) is False:
            return declared
    return ""


TOLERANCE_OF_A_SOLVER = 1e-3
"""Share of the largest derivative by which the gradient of a limit may miss that of the last round: solvers
mostly stop at tolerances between 1e-3 and 1e-10."""


def _is_as_small_as_a_tolerance(near: Neighbours, finding: Finding) -> bool:
    worst = finding.entries.worst if finding.entries is not None else ()
    off = max((abs(entry.actual - entry.expected) for entry in worst), default=inf)
    comparison = near.once(compared) if isfinite(off) else None
    if comparison is None:
        return False
    return off <= TOLERANCE_OF_A_SOLVER * comparison.numerical.abs().nan_to_num(0.0, 0.0, 0.0).max().item()


NOT_CONVERGED = "that forward's iteration converges at such values"
CONVERGES_ELSEWHERE = "forward repeats a step, which need not converge at such values"
SOME_RANGE = "a narrower `range:`"


def _iterations(near: Neighbours, finding: Finding) -> Finding | None:
    """Where forward stops before it converges, its derivative is another one than that of the fixed point.

    Backward may repeat a step as well, and solves for that derivative; one of too few rounds is wrong at
    such values, too.
    A spec without a range for any input does not say that it converges, either.
    """
    sample = near.sample
    if finding.code not in OF_A_SLOPE or (_declares_values(sample) and not sample.subject.inferred):
        return None
    right = near.once(_forward_iterates) and near.once(_right_where_converged)
    return _not_converged(near, finding, right) if right else None


def _stops_at_a_tolerance(near: Neighbours, finding: Finding) -> Finding | None:
    """Where forward converges, the rounds that it leaves out are a small part of the derivative."""
    if finding.code not in OF_A_SLOPE or not near.once(_forward_iterates):
        return None
    return of_the_limit(finding) if _is_as_small_as_a_tolerance(near, finding) else None


def _backward_iterates(near: Neighbours, finding: Finding) -> Finding | None:
    """Backward repeats a step: what it gives before that converges is not linear in grad_output."""
    function = near.sample.subject.function_class
    if finding.code != OF_GRAD_OUTPUT or function is None or not iterates(own_backward(function)):
        return None
    return invented(finding, ["that backward's iteration converges at such values"], declare(SOME_RANGE))


def _any_iterations(near: Neighbours, finding: Finding) -> Finding | None:
    """At undeclared values forward need not converge, whether or not backward repeats a step, too."""
    repeats = finding.code in OF_A_SLOPE and near.once(_forward_iterates)
    return _not_converged(near, finding, SOME_RANGE) if repeats else None


def _not_converged(near: Neighbours, finding: Finding, declared: str) -> Finding:
    if near.sample.subject.inferred:
        return invented(finding, [NOT_CONVERGED], declare(declared))
    return undeclared(finding, CONVERGES_ELSEWHERE, declared)


UNSIGNED: Sequence[Callable[[Tensor], Tensor]] = (torch.abs, lambda x: x.abs().frac())
"""An input without its minus signs, and where that is refused, without what is before the point."""


def _wrong_without_signs(sample: Sample, name: str) -> frozenset[str] | None:
    """Inputs whose gradient is wrong where an input has lost its minus signs, as `wrong_inputs`.

    And what is before the point, where that is refused: a place between rows of a table must not be large.
    """
    primal = sample.problem.primals[sample.problem.input_names.index(name)]
    found = (wrong_inputs(with_values(sample, {name: move(primal)})) for move in UNSIGNED)
    return next((wrong for wrong in found if wrong is not None), None)


def _minus_signs(near: Neighbours, finding: Finding) -> Finding | None:
    """It is gone without the minus signs of what acts on the first input.

    An index that is read off a negative number counts from the end in forward, and not in backward.
    """
    if finding.code not in OF_A_SLOPE | {OF_AN_EXCEPTION}:
        return None
    given = [*zip(near.sample.problem.input_names, near.sample.problem.primals, strict=True)]
    for name, primal in given[1:]:
        if primal.is_complex() or not bool((primal < 0).any()):
            continue
        still = near.once(_wrong_without_signs, name)
        if still is not None and not (still if finding.input is None else finding.input in still):
            return if_guessed(finding, (f"that negative values of `{name}` are valid",))
    return None


def _unsteady(near: Neighbours, finding: Finding) -> Finding | None:
    steady = finding.code not in OF_A_SLOPE or is_steady(near, finding.input)
    return None if steady else unsteady(finding)


def _such_values(near: Neighbours, finding: Finding) -> Finding | None:
    """Every entry is NaN, or off by little: by an epsilon in a denominator, a tail that is cut off."""
    sample, name = near.sample, finding.input
    special = sample.point is Point.SPECIAL
    worst = finding.entries.worst if finding.entries is not None else ()
    slight = bool(worst) and all(abs(e.actual - e.expected) <= SLIGHT * abs(e.expected) for e in worst)
    if not slight and not (finding.code == OF_NO_VALUE and special):
        return None
    zeros = special and has_zeros(sample, name)
    return if_guessed(
        finding, [f"that zeros of `{name}` are valid" if zeros else "that such values are valid"]
    )


AT_DECLARED: tuple[Reason, ...] = (
    linear_elsewhere,
    _backward_iterates,
    _no_derivative_meant,
    _meant,
    outside_domain,
    invented_values,
    _given_dtype,
    returned_shapes,
    _iterations,
    odd_sizes,
    other_shapes,
    unread_entries,
    unread_inputs,
    other_sizes,
    _minus_signs,
    _refused,
    manifold,
    structured_shapes,
    _unsteady,
    constants,
    padding,
)


AT_UNDECLARED: tuple[Reason, ...] = (
    _no_derivative_meant,
    anything_invented,
    shape_in_doubt,
    _such_values,
    _any_iterations,
    constant_there,
    _unsteady,
)


UNDER_A_SPEC: tuple[Reason, ...] = (_stops_at_a_tolerance, _iterations)
"""At values that are drawn because a spec gives no range."""


OF_A_RANGE: tuple[Reason, ...] = (_stops_at_a_tolerance,)
"""At its ends, and at wide and special values of it."""


UNDER_A_SPEC_AT_UNDECLARED: tuple[Reason, ...] = (_any_iterations, constant_there)


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
        reasons = UNDER_A_SPEC if sample.point is Point.TYPICAL else OF_A_RANGE
        return {f: _excused(near, r, reasons) for f, r in results.items()}
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
            excused = excused or excuses.first(mistake, near, finding, reasons)
            return excused or excuses.of_first_order(near, finding) or finding

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
