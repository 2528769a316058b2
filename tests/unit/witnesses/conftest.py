"""Functions as problems, and what the judge is asked about them."""

from types import SimpleNamespace

import pytest
import torch
from torch.autograd import Function

from gradverify.verifier import guard
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.problem import CallProblem, Counter, Layout
from gradverify.verifier.witnesses.answers import Asked, Budget, Trust
from gradverify.verifier.witnesses.claim import Claim
from gradverify.verifier.witnesses.derived import Derived, derive
from gradverify.verifier.witnesses.judge import judge
from gradverify.verifier.witnesses.values import Values


def problem_of(function, *tensors):
    """A callable of tensors as a map, all of them differentiated."""
    arguments = tuple(Argument(f"x{k}", t, differentiable=True) for k, t in enumerate(tensors))
    outputs = function(*(t.clone() for t in tensors))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return CallProblem(
        function=function,
        arguments=arguments,
        output_positions=tuple(range(len(outputs))),
        outputs=Layout.of(outputs),
        random_states=guard.RandomStates(0),
        counter=Counter(),
    )


def derived_of(function, *tensors):
    """The derived witness of a Function, or why there is none."""
    problem = problem_of(function, *tensors)
    outputs = function(*(t.clone() for t in tensors))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return derive(problem, function, outputs, first="eager", wide=False)


def judged(function, *tensors, prove=True, declared=True, confirmed=False, loops=False, budget=400):
    """The judgement of a Function's gradient, and what was asked."""
    problem = problem_of(function, *tensors)
    derived = derived_of(function, *tensors)
    there = isinstance(derived, Derived)
    asked = Asked(
        problem=problem,
        claim=Claim(problem),
        values=Values(problem),
        derived=Claim(derived.problem) if there else None,
        hides=there and bool(derived.hides),
        trust=Trust(confirmed=confirmed),
        rtol=1e-7,
        atol=0.0,
        declared=declared,
        limited=declared,
        budget=Budget(budget),
        counter=problem.counter,
        loops=loops,
    )
    return judge(asked, prove=prove), asked


def function_of(forward, backward):
    """A Function of one input, as `apply`."""

    class Made(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return backward(x, g)

    return Made.apply


@pytest.fixture(scope="session")
def made():
    """What the tests build."""
    return SimpleNamespace(
        problem_of=problem_of,
        derived_of=derived_of,
        judged=judged,
        function_of=function_of,
        x=torch.tensor([0.7, -1.3, 0.2, 2.1], dtype=torch.float64),
    )
