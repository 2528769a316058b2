"""Who answers a question of a drop-in: our own judgement where it can, torch's own check where it cannot."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gradverify.api.by_torch import DOUBLE, beyond_slow_mode, only_for_torch, torch_decides
from gradverify.api.call import (
    Cotangents,
    Original,
    identical,
    ignores_zero_grad_output,
    random_cotangents,
    refuses_undefined,
    same,
)
from gradverify.api.gradient_error import GradientError
from gradverify.api.messages import failure, finding, name_of, places
from gradverify.api.orders import FirstOrder, Options, watched
from gradverify.api.states import SEED, states_kept
from gradverify.model import Finding
from gradverify.verifier import guard
from gradverify.verifier.checks.wording import number
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.large import judge_any_size
from gradverify.verifier.numerics.problem import CallProblem, Gradients, Graph, Layout, VjpProblem
from gradverify.verifier.numerics.proof import Certificate, certify
from gradverify.verifier.numerics.round_off import gradient_noise
from gradverify.verifier.numerics.tolerance import Tolerance, distance
from gradverify.verifier.numerics.verdict import Judged, NotJudged, differs_beside

FINEST = 1e-7
"""Relative difference from which on an entry is looked at twice; coarser tolerances choose from these."""

FAINT = 1e-2
"""Share of `atol` below which no difference is reported in a row that is all but noise."""

NOT_DETERMINISTIC = "backward is not deterministic"
OTHERS_ON_COPIES = (
    "the gradient is another one on copies of the inputs: the function does not depend on its arguments "
    "alone, or minds their strides"
)
TOO_LARGE = "its Jacobian is too large to build, and differences below the tolerance were found"
NOT_REENTRANT = finding(
    "GV106",
    "backward gives other gradients each time for the same input and grad_output (not reentrant)",
    hint="If it uses operations that are not deterministic, give `nondet_tol`.",
)

CALLER = 2
"""Stack frames from a warning made in `decide` to the drop-in."""


class Answer(NamedTuple):
    """What ours says; a right gradient where neither of the first two is given."""

    wrong: tuple[Finding, ...] = ()
    """Entries that are off by more than the tolerance, or a rule that backward breaks."""
    unsure: str | None = None
    """Why torch's own check decides; empty where there was nothing of ours to verify."""
    finer: tuple[Finding, ...] = ()
    """What was found below the tolerance."""


def decide(question: FirstOrder) -> bool:
    """True for a right gradient.

    Raises `GradientError` for a wrong one, and whatever the function itself raises.
    """
    __tracebackhide__ = True
    if question.unsupported or only_for_torch(question.inputs, question.options):
        return torch_decides(question, question.unsupported)
    with guard.LeavingTheCallers():
        original = question.call()
        answer = _answer(question, original)
    if answer.wrong:
        raise GradientError(failure(question.function, answer.wrong), answer.wrong)
    passed = True
    if answer.unsure is not None or question.options.parts_of_torch:
        passed = torch_decides(question, answer.unsure or "", beyond_slow_mode(original))
    for finer in answer.finer:
        said = f"{name_of(question.function)}: {finer.code} {finer.message}"
        warnings.warn(said, stacklevel=CALLER)
    return passed


def _answer(question: FirstOrder, original: Original) -> Answer:
    """Our own answer: the short proof, else the rules that hold on the caller's tensors and the numbers."""
    refused = _not_ours(original)
    if refused is not None:
        return refused
    own, options = question.graph_of(original), question.options
    if own.proves(_finest(options), FAINT * options.atol):
        return _unlike_a_gradient(original, options, probed=not own.is_empty, linear=True) or Answer()
    with states_kept():
        return _answer_at_length(question)


def _answer_at_length(question: FirstOrder) -> Answer:
    """The same with every call from the same random numbers, on copies and on the caller's tensors."""
    states, options = guard.RandomStates(SEED), question.options
    original = question.replayed(states)
    refused = _not_ours(original)
    if refused is not None:
        return refused
    problem = question.problem_of(original, states)
    if isinstance(problem, CallProblem) and differs_beside(problem):
        problem = replace(problem, function=watched(problem.function))
    graph = problem.graph(problem.primals)
    if isinstance(graph, Raised):
        return Answer(unsure=f"the function raises {graph.error.type} on copies of its inputs")
    copied = Copied(problem, graph.value)
    rtol, atol = _finest(options), FAINT * options.atol
    proven = certify(problem, rtol=rtol, atol=atol, back_each=copied.back_each) is not None
    answer = copied.unlike(original, options.nondet_tol)
    if answer is None:
        answer = Answer() if proven else _judged(question, original, problem)
    if answer.wrong or answer.unsure is not None:
        return answer
    states.replay()
    return _unlike_a_gradient(original, options, probed=proven, linear=proven) or answer


@dataclass
class Copied:
    """One graph on copies, and the first thing it was asked: what the caller's own graph is asked as well.

    A problem calls the function on copies. A function that captures its inputs, or minds their strides, and a
    backward that is not deterministic show here.
    """

    problem: CallProblem | VjpProblem
    graph: Graph
    asked: list[tuple[Cotangents, Gradients]] = field(default_factory=list)

    def back_each(self, cotangents: Sequence[Cotangents]) -> Returned[list[Gradients]] | Raised:
        """Backward through the graph for several sets of grad_outputs; the first one is remembered."""
        result = self.problem.back_each(self.graph, cotangents)
        if isinstance(result, Returned) and not self.asked:
            self.asked.append((cotangents[0], result.value[0]))
        return result

    def unlike(self, original: Original, nondet_tol: float) -> Answer | None:
        """What is to be said of a copy that gives other outputs or gradients; None where it gives the same.

        The caller's backward starts from another random state: one that draws numbers is not deterministic.
        """
        if not self.asked:
            failed = self.back_each([random_cotangents(self.graph.outputs)])
            if isinstance(failed, Raised):
                return Answer(unsure=f"backward raises {failed.error.type} on copies of the inputs")
        cotangents, of_copy = self.asked[0]
        placed = dict(zip(self.problem.output_positions, cotangents, strict=True))
        given = [placed[p] for p in original.positions]
        torch.rand(1)
        gradients = original.gradients(given)
        if not identical(of_copy, gradients):
            if not identical(original.gradients(given), gradients):
                return Answer((NOT_REENTRANT,)) if nondet_tol <= 0 else Answer(unsure=NOT_DETERMINISTIC)
            if not same(of_copy, gradients):
                return Answer(unsure=OTHERS_ON_COPIES)
        returned = dict(zip(self.problem.output_positions, self.graph.outputs, strict=True))
        if not same([returned[p] for p in original.positions], original.outputs):
            return Answer(unsure="the function gives other values on copies of its inputs")
        return None


def _finest(options: Options) -> float:
    return min(FINEST, options.rtol or FINEST)


def _unlike_a_gradient(original: Original, options: Options, *, probed: bool, linear: bool) -> Answer | None:
    """What torch asks of every backward: zeros for zeros, None taken for a grad_output.

    A backward seen to be linear at two magnitudes gives zeros for zeros; undefined grads show the rest of it.
    """
    seen = linear and options.check_undefined_grad
    broken = "" if seen else ignores_zero_grad_output(original)
    if broken:
        return Answer((finding("GV106", f"backward does not follow grad_output: {broken}"),))
    broken = refuses_undefined(original, seen_alone=probed) if options.check_undefined_grad else ""
    return Answer((finding("GV407", broken),)) if broken else None


def _not_ours(original: Original) -> Answer | None:
    """What only torch defines: no differentiable output, sparse ones; or cannot be measured finely enough."""
    if not original.positions:
        return Answer(unsure="")
    for output in original.outputs:
        if output.layout is not torch.strided:
            return Answer(unsure="")
        if output.dtype not in DOUBLE:
            return Answer(unsure="an output is of low precision")
    return None


def _judged(question: FirstOrder, original: Original, problem: CallProblem | VjpProblem) -> Answer:
    """What the compared Jacobians say, by torch's tolerance."""
    options = question.options
    result = _judge(problem, _finest(options))
    if isinstance(result, NotJudged) and isinstance(problem, CallProblem):
        problem = replace(problem, function=watched(problem.function))
        result = _judge(problem, _finest(options))
    match result:
        case Raised():
            return Answer(unsure=f"backward raises {result.error.type} on copies of the inputs")
        case NotJudged():
            return Answer(unsure=result.reason)
        case Certificate():
            return Answer()
        case Judged():
            return _measured(question, original, problem, _accepted(result, options))


def _measured(
    question: FirstOrder, original: Original, problem: CallProblem | VjpProblem, result: Judged
) -> Answer:
    comparison = result.comparison
    if comparison.wrong.any() or comparison.nonfinite.any():
        return Answer(question.findings_of(problem, result))
    if result.inputs.size < Layout.of(problem.primals).size:
        return Answer(unsure=TOO_LARGE)
    missing = (~comparison.covered | comparison.kinks) & ~comparison.imprecise
    finer = question.findings_of(problem, result) if comparison.imprecise.any() else ()
    if missing.any():
        return Answer((), places(problem, result, missing), finer)
    broken = _not_linear(problem, comparison, original, question.options)
    return Answer((finding("GV106", broken),)) if broken else Answer(finer=finer)


def _judge(problem: CallProblem | VjpProblem, rtol: float) -> Judged | Certificate | NotJudged | Raised:
    noise = gradient_noise(problem) if isinstance(problem, VjpProblem) else None
    return judge_any_size(problem, Tolerance(rtol), noise=noise)


def _not_linear(
    problem: CallProblem | VjpProblem, comparison: Comparison, original: Original, options: Options
) -> str:
    """What is wrong where a random grad_output does not give that combination of the rows of backward.

    Every row was right: a backward that is none the less wrong here is not linear in grad_output.
    """
    cotangents = random_cotangents(original.outputs)
    given = dict(zip(original.positions, cotangents, strict=True))
    u = problem.outputs.flatten([given.get(p) for p in problem.output_positions])
    rows = comparison.analytical
    actual = Layout.of(problem.primals).flatten(original.gradients(cotangents))
    difference = distance(actual, u @ rows)
    room = options.atol + options.rtol * (u.abs() @ rows.abs())
    if not (difference > room).any():
        return ""
    return (
        f"backward is not linear in grad_output: for a random one its gradient is off by "
        f"{number(difference.max().item())} from what it gives for each entry alone"
    )


def _accepted(judged: Judged, options: Options) -> Judged:
    """The same measurement with torch's tolerance: what lies below it is imprecise, not wrong."""
    comparison = judged.comparison
    different = comparison.wrong | comparison.imprecise
    if not different.any():
        return judged
    inputs = judged.inputs
    difference = _sizes(comparison.analytical - comparison.numerical, inputs)
    tolerance = options.atol + options.rtol * _sizes(comparison.numerical, inputs)
    beyond = difference > tolerance
    return replace(
        judged, comparison=replace(comparison, wrong=different & beyond, imprecise=different & ~beyond)
    )


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
