"""Who answers a question of a drop-in: our own judgement where it can, torch's own check where it cannot."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError

from gradverify.api.acceptance import FINEST, accepted, places, unverified
from gradverify.api.copied import Copied
from gradverify.api.given import DOUBLE, only_for_torch, require_usable
from gradverify.api.gradient_error import GradientError
from gradverify.api.options import Options
from gradverify.api.orders import graph_of_constants, watched
from gradverify.api.original import (
    Original,
    call_original,
    ignores_zero_grad_output,
    random_cotangents,
    refuses_undefined,
)
from gradverify.api.part_asked import entries_of, passes_in_part
from gradverify.api.question import Answer, Question, Right, Unsure, Wrong
from gradverify.api.stairs import on_stairs
from gradverify.api.telling import failure, finding, name_of
from gradverify.api.torchs_mode import beyond_slow_mode
from gradverify.verifier import guard
from gradverify.verifier.checks.wording import number
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.certificate import Certificate, certify
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.large import judge_any_size
from gradverify.verifier.numerics.problem import CallProblem, Problem, VjpProblem
from gradverify.verifier.numerics.rounding import gradient_noise
from gradverify.verifier.numerics.verdict import Judged, NotJudged, differs_beside

SEED = 0
"""Where every call of the function starts from, so that a stochastic one repeats itself."""


FAINT = 1e-2
"""Share of `atol` below which nobody is told of a difference in a row that is all but noise."""

CALLER = 4
"""Stack frames from a warning made in `decide` to the test that called the drop-in."""


def decide(question: Question) -> bool:
    """True for a right gradient.

    Raises `GradientError` for a wrong one, and whatever the function itself raises.
    """
    __tracebackhide__ = True
    if only_for_torch(question.inputs, question.options):
        return _torch_decides(question, "")
    require_usable(question.inputs)
    with guard.LeavingTheCallers():
        original = question.first_call()
        answer = _answer(question, original)
    match answer:
        case Wrong():
            raise GradientError(failure(question.user_function, answer.findings), answer.findings)
        case Unsure():
            passed = _passes_in_part(question, original, answer) or _torch_decides(
                question, answer.reason, beyond_slow_mode(original)
            )
        case Right():
            more = question.options.parts_of_torch
            passed = _torch_decides(question, "", beyond_slow_mode(original)) if more else True
    for finer in answer.finer:
        warnings.warn(
            f"{name_of(question.user_function)}: {finer.code} {finer.message}", stacklevel=CALLER - 2
        )
    return passed


def _torch_decides(question: Question, unverified_by_us: str, too_large: str = "") -> bool:
    """What torch says. `too_large` says why its slow mode cannot be asked: then its fast mode is."""
    __tracebackhide__ = True
    fast = question.options.fast_mode or bool(too_large)
    try:
        result = question.ask_torch(fast)
    except GradcheckError as error:
        found = finding("GV101", f"torch.autograd.gradcheck's own check fails: {_without_matrices(error)}")
        if unverified_by_us:
            found = replace(
                found,
                message=f"torch.autograd.gradcheck's own check fails where gradverify could not tell: "
                f"{_without_matrices(error)}",
                hint="This is torch's verdict alone, and may be a false alarm. gradverify could not judge it "
                f"itself: {unverified_by_us}. Try inputs of moderate size, away from kinks.",
            )
        raise GradientError(failure(question.user_function, (found,)), (found,)) from error
    said = _how_torch_decided(unverified_by_us, "" if question.options.fast_mode else too_large)
    if said:
        warnings.warn(f"{name_of(question.user_function)}: {said}", stacklevel=CALLER + 1)
    return result


def _passes_in_part(question: Question, original: Original, answer: Unsure) -> bool:
    """Whether torch passes the entries that ours could not tell, and everything else is in order."""
    first_order = question.function is question.user_function
    if not first_order or answer.entries is None:
        return False
    if _unlike_a_gradient(original, question.options, probed=False, linear=False):
        return False
    if not passes_in_part(question.function, original, answer.entries, question.options):
        return False
    said = _how_torch_decided(answer.reason, "")
    warnings.warn(f"{name_of(question.user_function)}: {said}", stacklevel=CALLER + 1)
    return True


def _how_torch_decided(unverified_by_us: str, too_large: str) -> str:
    """What the caller has to know about a verdict of torch's; `too_large` where slow mode was asked for."""
    by_fast = f"torch's fast mode, which looks along one random direction alone ({too_large})"
    if unverified_by_us:
        by = f"{by_fast}, decided" if too_large else "torch's own check decided"
        return f"not verified by gradverify, {by}: {unverified_by_us}"
    return f"what torch alone can tell was decided by {by_fast}" if too_large else ""


def _without_matrices(error: GradcheckError) -> str:
    """What torch says, up to the Jacobians that it prints in full: those stay in the error it raised."""
    return str(error).strip().partition("\nnumerical:")[0].rstrip(", ")


def _answer(question: Question, original: Original) -> Answer:
    """Our own answer: the short proof, else the rules that hold on the caller's tensors and the numbers."""
    refused = _not_ours(original)
    if refused is not None:
        return Right() if not original.positions and _stays(question, original) else refused
    own, rtol, atol = question.graph_of(original), _finest(question.options), FAINT * question.options.atol
    if own.proves_quickly(rtol, atol) or own.proves(
        _as_differentiated(question.problem_of(original, guard.FreeRunning())), rtol, atol
    ):
        return _unlike_a_gradient(original, question.options, probed=not own.is_empty, linear=True) or Right()
    with states_kept():
        return _answer_at_length(question)


def _stays(question: Question, original: Original) -> bool:
    """Whether a function of which nothing can be differentiated has a derivative of zero."""
    graph = graph_of_constants(question.function, original)
    return graph is not None and graph.stays


def _answer_at_length(question: Question) -> Answer:
    """The same with every call from the same random numbers, on copies and on the caller's tensors."""
    states = guard.RandomStates(SEED)
    original = call_original(question.function, question.inputs, states)
    refused = _not_ours(original)
    if refused is not None:
        return refused
    problem = _as_differentiated(question.problem_of(original, states))
    graph = problem.graph(problem.primals)
    if isinstance(graph, Raised):
        return Unsure(f"the function raises {graph.error.type} on copies of its inputs")
    copied = Copied(problem, graph.value)
    rtol = _finest(question.options)
    standing = on_stairs(problem, rtol)
    proven = standing is None and certify(problem, rtol=rtol, back_each=copied.back_each) is not None
    answer = copied.unlike(original, question.options.nondet_tol)
    if answer is None:
        answer = Right() if proven else standing or _judged(question, original, problem)
    if not isinstance(answer, Right):
        return answer
    states.replay()
    return _unlike_a_gradient(original, question.options, probed=proven, linear=proven) or answer


def _as_differentiated(problem: CallProblem | VjpProblem) -> CallProblem | VjpProblem:
    """With a graph everywhere, if forward is another one where none is recorded: as it is differentiated."""
    if isinstance(problem, CallProblem) and differs_beside(problem):
        return replace(problem, function=watched(problem.function))
    return problem


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


def _judged(question: Question, original: Original, problem: CallProblem | VjpProblem) -> Answer:
    options = question.options
    rtol = _finest(options)
    result = _judge(problem, rtol)
    if isinstance(result, NotJudged) and isinstance(problem, CallProblem):
        problem = replace(problem, function=watched(problem.function))
        result = _judge(problem, rtol)
    if isinstance(result, Raised):
        return Unsure(f"backward raises {result.error.type} on copies of the inputs")
    if isinstance(result, NotJudged):
        return Unsure(result.reason)
    if isinstance(result, Certificate):
        return Right()
    return _measured(question, original, problem, accepted(result, options))


def _measured(question: Question, original: Original, problem: Problem, result: Judged) -> Answer:
    """What the compared Jacobians say, by torch's tolerance."""
    comparison = result.comparison
    if comparison.wrong.any() or comparison.nonfinite.any():
        return Wrong(question.findings_of(problem, result, original))
    if result.inputs.size < Layout.of(problem.primals).size:
        return Unsure("its Jacobian is too large to build, and differences below the tolerance were found")
    missing = unverified(comparison)
    finer = question.findings_of(problem, result, original) if comparison.imprecise.any() else ()
    if missing.any():
        return Unsure(places(problem, result, missing), finer, entries_of(missing))
    broken = _not_linear(problem, comparison, original, question.options)
    if broken:
        return Wrong((finding("GV106", broken),))
    return Right(finer)


def _judge(problem: Problem, rtol: float) -> Judged | Certificate | NotJudged | Raised:
    noise = gradient_noise(problem) if isinstance(problem, VjpProblem) else None
    return judge_any_size(problem, rtol=rtol, noise=noise)


def _not_linear(problem: Problem, comparison: Comparison, original: Original, options: Options) -> str:
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


@contextmanager
def states_kept() -> Iterator[None]:
    """Leave the caller's random states as they were."""
    numpy = sys.modules.get("numpy")
    of_numpy = _put_aside(numpy.random) if numpy is not None else None
    of_python, of_torch = random.getstate(), torch.get_rng_state()
    of_cuda = torch.cuda.get_rng_state_all() if guard.cuda_in_use() else []
    try:
        yield
    finally:
        random.setstate(of_python)
        torch.set_rng_state(of_torch)
        if of_cuda:
            torch.cuda.set_rng_state_all(of_cuda)
        if numpy is not None:
            _put_back(numpy.random, of_numpy)


def _put_aside(random_of_numpy: Any) -> Any:  # noqa: ANN401
    """Give NumPy another generator and return its own, which is faster than copying the state of that."""
    if not hasattr(random_of_numpy, "set_bit_generator"):  # before NumPy 1.24
        return random_of_numpy.get_state()
    kept = random_of_numpy.get_bit_generator()
    random_of_numpy.set_bit_generator(_numpy_generator())
    return kept


def _put_back(random_of_numpy: Any, kept: Any) -> None:  # noqa: ANN401
    if hasattr(random_of_numpy, "set_bit_generator"):
        random_of_numpy.set_bit_generator(kept)
    else:
        random_of_numpy.set_state(kept)


@cache
def _numpy_generator() -> Any:  # noqa: ANN401
    return sys.modules["numpy"].random.MT19937(SEED)
