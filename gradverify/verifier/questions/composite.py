"""Composites: plain torch operations with the target's values, whose gradient torch derives.

The reference of a spec, and forward itself. Neither makes a verdict before values have confirmed it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.calling import returned_tensors, substitute
from gradverify.verifier.numerics.problem import CallProblem, Layout
from gradverify.verifier.questions.subject import Sample, called_with
from gradverify.verifier.witnesses.derived import Derived, derive


def composite_of(sample: Sample) -> CallProblem | None:
    """The reference that the spec names, else forward as torch differentiates it; over all outputs."""
    subject = sample.subject
    if subject.reference is not None:
        built = reference_problem(sample, subject.reference, subject.reference_arguments)
        whole = isinstance(built, Returned) and built.value.outputs == sample.problem.outputs
        return built.value if isinstance(built, Returned) and whole else None
    values = sample.problem.evaluate(sample.problem.primals)
    if subject.own_forward is None or isinstance(values, Raised):
        return None
    found = derive(sample.problem, subject.own_forward, values.value, first="eager", wide=False)
    return found.problem if isinstance(found, Derived) else None


def reference_problem(
    sample: Sample, function: Callable[..., Any], names: Sequence[str] = ()
) -> Returned[CallProblem] | Raised:
    """The composite reference as a problem over the same inputs, its outputs matched by position.

    `names` are the arguments it is called with, in order; empty: positionally with what forward got.
    """
    if names:
        function = called_with(function, [sample.position_of(name) for name in names])
    arguments = sample.arguments
    sample.problem.random_states.replay()
    leaves = [p.detach().clone().requires_grad_() for p in sample.problem.primals]
    with torch.enable_grad():
        result = guard.call(function, *substitute(arguments, [leaf.clone() for leaf in leaves]))
    if isinstance(result, Raised):
        return result
    returned = returned_tensors(result.value)
    positions = tuple(
        p for p in sample.problem.output_positions if p < len(returned) and isinstance(returned[p], Tensor)
    )
    return Returned(
        CallProblem(
            function=function,
            arguments=arguments,
            output_positions=positions,
            outputs=Layout.of([returned[p] for p in positions]),
            random_states=sample.problem.random_states,
        )
    )


def held_columns(sample: Sample) -> Tensor:
    """Coordinates that are constants by the spec (bool, N)."""
    arguments = (a for a in sample.arguments if a.differentiable)
    flat = []
    for argument, block in zip(arguments, sample.inputs.blocks, strict=True):
        shape = argument.value.shape
        held = torch.zeros(shape, dtype=torch.bool) if argument.held is None else argument.held.cpu()
        flat.append(held.reshape(-1).repeat_interleave(2 if block.is_complex else 1))
    return torch.cat(flat) if flat else torch.zeros(0, dtype=torch.bool)
