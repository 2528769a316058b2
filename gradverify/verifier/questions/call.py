"""One call of the target under our control: which inputs require grad, how each argument lies in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradverify.model import RaisedError
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.arguments import Argument, arguments_of_call
from gradverify.verifier.numerics.calling import (
    Gradients,
    Tensors,
    copies,
    differentiate_in_place,
    returned_tensors,
)
from gradverify.verifier.numerics.problem import OTHER_OUTPUTS, CallProblem
from gradverify.verifier.questions.subject import Sample

Arrange = Callable[[list[Any]], list[Any]]
"""What the target is given in place of some arguments: most often the same values elsewhere in memory."""

ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "TypeError"}
)
"""Exceptions that are never raised to refuse something."""

ACCIDENTAL_WORDS = ("to unpack", "saved tensors", "modified by an inplace operation", "incorrect number of")
"""Parts of messages of torch and Python that tell of an accident, whatever the type."""

REFUSING_WORDS = ("not implemented", "not supported", "unsupported")
"""What a compiled backward says that refuses on purpose."""


@dataclass(frozen=True)
class Call:
    """One forward, with its graph."""

    leaves: Tensors
    """The differentiable inputs; those of a frozen argument do not require grad."""
    passed: tuple[Any, ...]
    """What the target got, one for each `Argument`."""
    returned: tuple[Any, ...]
    """Everything that forward returned, by position."""
    outputs: Tensors
    """The outputs that are differentiated."""

    @property
    def writes(self) -> bool:
        """Whether forward wrote into an argument, or returned one."""
        tensors = [value for value in self.passed if isinstance(value, Tensor)]
        return any(t._version > 0 or any(r is t for r in self.returned) for t in tensors)  # noqa: SLF001

    @property
    def node(self) -> Any:  # noqa: ANN401 - the class of the node is the user's
        """The ctx of the Function behind the outputs; None where no Python Function is."""
        for output in self.outputs:
            node: Any = output.grad_fn
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                return node
        return None


def outputs_of(problem: CallProblem, result: Any) -> Tensors:  # noqa: ANN401 - what user code returned
    """What forward returned, of it the outputs that are differentiated."""
    returned = returned_tensors(result)
    return tuple(returned[p] for p in problem.output_positions)


def called(
    sample: Sample,
    arguments: Sequence[Argument] = (),
    *,
    frozen: frozenset[int] = frozenset(),
    arrange: Arrange | None = None,
) -> Returned[Call] | Raised:
    """Forward with its graph on fresh arguments, the random states replayed.

    `frozen` are numbers of differentiable inputs that are not to require grad.
    """
    problem, arguments = sample.problem, arguments or sample.arguments
    leaves, passed = _fresh(arguments, frozen)
    problem.counter.forward += 1
    problem.random_states.replay()
    with torch.enable_grad():
        passed = passed if arrange is None else arrange(passed)
        with problem.around():
            result = guard.call(problem.function, *arguments_of_call(arguments, passed))
    if isinstance(result, Raised):
        return result
    returned = returned_tensors(result.value)
    picked = [returned[p] for p in problem.output_positions if p < len(returned)]
    outputs = tuple(t for t in picked if isinstance(t, Tensor))
    if len(outputs) != len(problem.output_positions):
        has_tensors = any(isinstance(t, Tensor) for t in returned)
        said = "returned other outputs than before" if has_tensors else "returned None"
        return Raised(RaisedError(OTHER_OUTPUTS, said))
    return Returned(Call(leaves, tuple(passed), returned, outputs))


def _fresh(arguments: Sequence[Argument], frozen: frozenset[int]) -> tuple[Tensors, list[Any]]:
    """Leaves, and what the target is passed."""
    leaves = copies([a.value for a in arguments if a.differentiable])
    numbered = iter(enumerate(leaves))
    passed: list[Any] = []
    with torch.enable_grad():
        for argument in arguments:
            value = argument.value
            if argument.differentiable:
                number, leaf = next(numbered)
                value = argument.moved(leaf.requires_grad_(number not in frozen).clone())
            elif isinstance(value, Tensor):
                value = value.clone()
            passed.append(value)
    return leaves, passed


def backward(
    sample: Sample, call: Call, grad_outputs: Sequence[Tensor | None], *, retain: bool = False
) -> Returned[Gradients] | Raised:
    """Backward; None for the inputs that do not require grad. `retain`: leaving the graph for another one.

    What backward returns and only the engine would refuse counts as None.
    """
    problem = sample.problem
    problem.counter.backward += 1
    problem.random_states.replay_for_backward()
    wanted = [leaf for leaf in call.leaves if leaf.requires_grad]
    through = partial(differentiate_in_place, keep=retain, training=problem.of_module)
    with problem.around():
        result = guard.call(through, call.outputs, wanted, grad_outputs)
    if isinstance(result, Raised):
        return result
    found = iter(result.value)
    return Returned(tuple(next(found) if leaf.requires_grad else None for leaf in call.leaves))


def is_accident(error: RaisedError) -> bool:
    """Whether an exception is a mistake, and not a refusal that somebody wrote."""
    if error.deliberate:
        return False
    return error.type in ACCIDENTS or any(words in error.message for words in ACCIDENTAL_WORDS)


def is_refusal(error: RaisedError) -> bool:
    """Whether an exception says that something is not supported."""
    return error.deliberate or any(words in error.message.lower() for words in REFUSING_WORDS)
