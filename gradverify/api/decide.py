"""Who answers a question of a drop-in: our own judgement where it can, torch's own check where it cannot."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import NamedTuple

import torch

from gradverify.api.by_torch import DOUBLE, beyond_slow_mode, only_for_torch, torch_decides
from gradverify.api.call import (
    Original,
    identical,
    ignores_zero_grad_output,
    random_cotangents,
    refuses_undefined,
    same,
)
from gradverify.api.gradient_error import GradientError
from gradverify.api.judged import asked_of, held_to, is_another_with_a_graph
from gradverify.api.messages import (
    failure,
    finding,
    first_order_findings,
    name_of,
    sample_of,
    second_order_findings,
)
from gradverify.api.orders import FirstOrder, Options, watched
from gradverify.api.states import SEED, states_kept
from gradverify.model import Finding, Settings
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import CallProblem, Graph
from gradverify.verifier.witnesses.claim import Map

NOT_DETERMINISTIC = "backward is not deterministic"
OTHERS_ON_COPIES = (
    "the gradient is another one on copies of the inputs: the function does not depend on its arguments "
    "alone, or minds their strides"
)
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
    with guard.LeavingTheCallers(), states_kept():
        states = guard.RandomStates(SEED)
        original = question.call(states)
        answer = _not_ours(original) or _answer(question, original, states)
    if answer.wrong:
        raise GradientError(failure(question.function, answer.wrong), answer.wrong)
    passed = True
    if answer.unsure is not None or question.options.parts_of_torch:
        passed = torch_decides(question, answer.unsure or "", beyond_slow_mode(original))
    for finer in answer.finer:
        said = f"{name_of(question.function)}: {finer.code} {finer.message}"
        warnings.warn(said, stacklevel=CALLER)
    return passed


def _answer(question: FirstOrder, original: Original, states: guard.RandomStates) -> Answer:
    """Our own answer: with every call from the same random numbers, on copies and on the caller's tensors."""
    problem, options = question.problem_of(original, states), question.options
    if isinstance(problem, CallProblem) and is_another_with_a_graph(problem):
        problem = replace(problem, function=watched(problem.function))
    graph = problem.graph(problem.primals)
    if isinstance(graph, Raised):
        return Answer(unsure=f"the function raises {graph.error.type} on copies of its inputs")
    answer = _unlike_on_copies(problem, graph.value, original, options.nondet_tol)
    if answer is None:
        answer = _judged(question, problem, graph.value)
    if answer.wrong or answer.unsure is not None:
        return answer
    states.replay()
    return _unlike_a_gradient(original, options) or answer


def _unlike_on_copies(problem: Map, graph: Graph, original: Original, nondet_tol: float) -> Answer | None:
    """What is to be said of a copy that gives other outputs or gradients; None where it gives the same.

    A function that captures its inputs, or minds their strides, and a backward that is not deterministic show
    here. The caller's backward starts from another random state: one that draws numbers is not deterministic.
    """
    cotangents = random_cotangents(graph.outputs)
    copied = problem.back_each(graph, [cotangents])
    if isinstance(copied, Raised):
        return Answer(unsure=f"backward raises {copied.error.type} on copies of the inputs")
    (of_copy,) = copied.value
    placed = dict(zip(problem.output_positions, cotangents, strict=True))
    given = [placed[p] for p in original.positions]
    torch.rand(1)
    gradients = original.gradients(given)
    if not identical(of_copy, gradients):
        if not identical(original.gradients(given), gradients):
            return Answer((NOT_REENTRANT,)) if nondet_tol <= 0 else Answer(unsure=NOT_DETERMINISTIC)
        if not same(of_copy, gradients):
            return Answer(unsure=OTHERS_ON_COPIES)
    returned = dict(zip(problem.output_positions, graph.outputs, strict=True))
    if not same([returned[p] for p in original.positions], original.outputs):
        return Answer(unsure="the function gives other values on copies of its inputs")
    return None


def _judged(question: FirstOrder, problem: Map, graph: Graph) -> Answer:
    """What the judge says, by torch's tolerance."""
    options = question.options
    first = problem if isinstance(problem, CallProblem) else problem.first_order
    settings = Settings(rtol=options.rtol, atol=options.atol)
    sample = sample_of(question.function, settings, first)
    asked = asked_of(sample, problem, graph, options)
    if isinstance(asked, str):
        return Answer(unsure=asked)
    held = held_to(asked, sample, options)
    if isinstance(held, Raised):
        return Answer(unsure=f"backward raises {held.error.type} on copies of the inputs")
    if not held.wrong and not held.finer:
        return Answer(unsure=held.unsure or None)
    if isinstance(problem, CallProblem):
        found = first_order_findings(sample, asked, held)
    else:
        found = second_order_findings(sample, asked, graph, held)
    return Answer(found) if held.wrong else Answer((), held.unsure or None, found)


def _unlike_a_gradient(original: Original, options: Options) -> Answer | None:
    """What torch asks of every backward: zeros for zeros, None taken for a grad_output.

    A backward seen to be linear at two magnitudes gives zeros for zeros; undefined grads show the rest of it.
    """
    broken = "" if options.check_undefined_grad else ignores_zero_grad_output(original)
    if broken:
        return Answer((finding("GV106", f"backward does not follow grad_output: {broken}"),))
    broken = refuses_undefined(original) if options.check_undefined_grad else ""
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
