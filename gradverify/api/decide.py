"""Who answers a question of a drop-in: our own judgement where it can, torch's own check where it cannot."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.api.by_torch import DOUBLE, beyond_slow_mode, only_for_torch, torch_decides
from gradverify.api.call import Original, ignores_zero_grad_output, random_cotangents, refuses_undefined
from gradverify.api.copied import Copied, Right, Unsure, Wrong
from gradverify.api.gradient_error import GradientError
from gradverify.api.messages import failure, finding, name_of
from gradverify.api.orders import FirstOrder, Options, watched
from gradverify.api.states import SEED, states_kept
from gradverify.verifier import guard
from gradverify.verifier.checks.wording import blocks, number
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.large import judge_any_size
from gradverify.verifier.numerics.problem import CallProblem, VjpProblem
from gradverify.verifier.numerics.proof import Certificate, certify
from gradverify.verifier.numerics.round_off import gradient_noise
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, NotJudged, differs_beside

Answer = Right | Wrong | Unsure

FINEST = 1e-7
"""Relative difference from which on an entry is looked at twice; coarser tolerances choose from these."""

FAINT = 1e-2
"""Share of `atol` below which nobody is told of a difference in a row that is all but noise."""

CALLER = 2
"""Stack frames from a warning made in `decide` to the drop-in."""


def decide(question: FirstOrder) -> bool:
    """True for a right gradient.

    Raises `GradientError` for a wrong one, and whatever the function itself raises.
    """
    __tracebackhide__ = True
    if only_for_torch(question.inputs, question.options):
        return torch_decides(question, "")
    with guard.LeavingTheCallers():
        original = question.call()
        answer = _answer(question, original)
    if isinstance(answer, Wrong):
        raise GradientError(failure(question.user_function, answer.findings), answer.findings)
    passed = True
    if isinstance(answer, Unsure) or question.options.parts_of_torch:
        unverified_by_us = answer.reason if isinstance(answer, Unsure) else ""
        passed = torch_decides(question, unverified_by_us, beyond_slow_mode(original))
    for finer in answer.finer:
        said = f"{name_of(question.user_function)}: {finer.code} {finer.message}"
        warnings.warn(said, stacklevel=CALLER)
    return passed


def _answer(question: FirstOrder, original: Original) -> Answer:
    """Our own answer: the short proof, else the rules that hold on the caller's tensors and the numbers."""
    refused = _not_ours(original)
    if refused is not None:
        return refused
    own, options = question.graph_of(original), question.options
    if own.proves(_finest(options), FAINT * options.atol):
        return _unlike_a_gradient(original, options, probed=not own.is_empty, linear=True) or Right()
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
        return Unsure(f"the function raises {graph.error.type} on copies of its inputs")
    copied = Copied(problem, graph.value)
    rtol, atol = _finest(options), FAINT * options.atol
    proven = certify(problem, rtol=rtol, atol=atol, back_each=copied.back_each) is not None
    answer: Answer | None = copied.unlike(original, options.nondet_tol)
    if answer is None:
        answer = Right() if proven else _judged(question, original, problem)
    if not isinstance(answer, Right):
        return answer
    states.replay()
    return _unlike_a_gradient(original, options, probed=proven, linear=proven) or answer


def _finest(options: Options) -> float:
    return min(FINEST, options.rtol or FINEST)


def _unlike_a_gradient(original: Original, options: Options, *, probed: bool, linear: bool) -> Wrong | None:
    """What torch asks of every backward: zeros for zeros, None taken for a grad_output.

    A backward seen to be linear at two magnitudes gives zeros for zeros; undefined grads show the rest of it.
    """
    seen = linear and options.check_undefined_grad
    broken = "" if seen else ignores_zero_grad_output(original)
    if broken:
        return Wrong((finding("GV106", f"backward does not follow grad_output: {broken}"),))
    broken = refuses_undefined(original, seen_alone=probed) if options.check_undefined_grad else ""
    return Wrong((finding("GV407", broken),)) if broken else None


def _not_ours(original: Original) -> Unsure | None:
    """What only torch defines: no differentiable output, sparse ones; or cannot be measured finely enough."""
    if not original.positions:
        return Unsure()
    for output in original.outputs:
        if output.layout is not torch.strided:
            return Unsure()
        if output.dtype not in DOUBLE:
            return Unsure("an output is of low precision")
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
            return Unsure(f"backward raises {result.error.type} on copies of the inputs")
        case NotJudged():
            return Unsure(result.reason)
        case Certificate():
            return Right()
        case Judged():
            return _measured(question, original, problem, _accepted(result, options))


def _measured(
    question: FirstOrder, original: Original, problem: CallProblem | VjpProblem, result: Judged
) -> Answer:
    comparison = result.comparison
    if comparison.wrong.any() or comparison.nonfinite.any():
        return Wrong(question.findings_of(problem, result))
    if result.inputs.size < Layout.of(problem.primals).size:
        return Unsure("its Jacobian is too large to build, and differences below the tolerance were found")
    missing = _unverified(comparison)
    finer = question.findings_of(problem, result) if comparison.imprecise.any() else ()
    if missing.any():
        return Unsure(_places(problem, result, missing), finer)
    broken = _not_linear(problem, comparison, original, question.options)
    return Wrong((finding("GV106", broken),)) if broken else Right(finer)


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
    difference = (actual - u @ rows).abs()
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


def _unverified(comparison: Comparison) -> Tensor:
    """Entries (bool, M × N) that nothing is known about, or that lie on a kink."""
    wrong = comparison.wrong | comparison.imprecise | comparison.nonfinite
    return (~comparison.covered | comparison.kinks) & ~wrong


def _places(problem: CallProblem | VjpProblem, judged: Judged, missing: Tensor) -> str:
    """Where entries (bool, of what was judged) are not verified, in words."""
    names, positions = problem.input_names, problem.output_positions
    rows, columns = problem.outputs.lengths, Layout.of(problem.primals).lengths
    found = []
    for o, output, i, source in blocks(judged.outputs, judged.inputs):
        here = missing[output.start : output.stop, source.start : source.stop]
        if here.any():
            entries = rows[o] * columns[i]
            found.append(f"{int(here.sum())} of {entries} entries of output {positions[o]} by {names[i]}")
    return f"{'; '.join(found)} (a kink, a jump, or too noisy there)"


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
