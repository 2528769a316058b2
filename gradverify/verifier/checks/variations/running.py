"""One call of the target under our control: which inputs require grad, how each argument lies in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradverify.model import RaisedError
from gradverify.verifier import guard
from gradverify.verifier.checks.reading import Irregularity
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.arguments import Argument, arguments_of_call
from gradverify.verifier.numerics.calling import (
    Gradients,
    Tensors,
    copies,
    differentiate_again,
    returned_tensors,
)

Arrange = Callable[[int, Tensor], Tensor]
"""What the target is given instead of the argument at a position: the same values, lying otherwise."""

ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "TypeError"}
)
"""Exceptions that nobody raises to refuse something."""

ACCIDENTAL_WORDS = ("to unpack", "saved tensors", "modified by an inplace operation", "incorrect number of")
"""Parts of messages of torch and Python that tell of an accident, whatever the type."""

REFUSED_BY_ENGINE = frozenset({Irregularity.COUNT, Irregularity.NOT_FOR_TENSOR, Irregularity.SHAPE_REFUSED})
"""Returns at which the autograd engine stops; the reader puts None in their place."""


@dataclass(frozen=True)
class Prepared:
    """The arguments of a call that is yet to be made."""

    leaves: Tensors
    """The differentiable inputs; those of a frozen argument do not require grad."""
    passed: tuple[Any, ...]
    """What the target will get, one for each `Argument`."""


@dataclass(frozen=True)
class Call:
    """One forward, with its graph."""

    leaves: Tensors
    passed: tuple[Any, ...]
    returned: tuple[Any, ...]
    """Everything that forward returned, by position."""
    outputs: Tensors
    """The outputs that are differentiated."""

    @property
    def node(self) -> Any:  # noqa: ANN401 - the class of the node is the user's
        """The ctx of the Function behind the outputs; None where no Python Function is."""
        for output in self.outputs:
            node: Any = output.grad_fn
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                return node
        return None


def prepared(
    sample: Sample,
    arguments: Sequence[Argument] = (),
    *,
    frozen: frozenset[int] = frozenset(),
    arrange: Arrange | None = None,
    leaves: Tensors = (),
) -> Prepared:
    """Fresh arguments of one call.

    `frozen` are numbers of differentiable inputs that are not to require grad; `arrange` lays a
    tensor argument out otherwise; `leaves` are used instead of fresh ones.
    """
    arguments = arguments or sample.arguments
    fresh = leaves or copies([a.value for a in arguments if a.differentiable])
    passed: list[Any] = []
    number = 0
    with torch.enable_grad():
        for position, argument in enumerate(arguments):
            value = argument.value
            if argument.differentiable:
                leaf = fresh[number].requires_grad_(number not in frozen)
                value = argument.moved(leaf.clone())
                number += 1
            elif isinstance(value, Tensor):
                value = value.clone()
            if arrange is not None and isinstance(value, Tensor):
                value = arrange(position, value)
            passed.append(value)
    return Prepared(fresh, tuple(passed))


def perform(sample: Sample, ready: Prepared, arguments: Sequence[Argument] = ()) -> Returned[Call] | Raised:
    """Forward with its graph, the random states replayed."""
    problem = sample.problem
    problem.counter.forward += 1
    problem.random_states.replay()
    with torch.enable_grad():
        given = arguments_of_call(arguments or sample.arguments, ready.passed)
        result = guard.call(problem.function, *given)
    if isinstance(result, Raised):
        return result
    returned = returned_tensors(result.value)
    picked = tuple(returned[p] for p in problem.output_positions if p < len(returned))
    tensors = tuple(t for t in picked if isinstance(t, Tensor))
    if len(tensors) != len(problem.output_positions):
        return Raised(RaisedError("ValueError", "forward returned other outputs than before"))
    return Returned(Call(ready.leaves, ready.passed, returned, tensors))


def called(
    sample: Sample,
    *,
    frozen: frozenset[int] = frozenset(),
    arrange: Arrange | None = None,
    leaves: Tensors = (),
) -> Returned[Call] | Raised:
    """Fresh arguments, and forward with its graph."""
    return perform(sample, prepared(sample, frozen=frozen, arrange=arrange, leaves=leaves))


def backward(
    sample: Sample,
    call: Call,
    grad_outputs: Sequence[Tensor | None],
    *,
    states: guard.RandomStates | None = None,
) -> Returned[Gradients] | Raised:
    """Backward, leaving the graph; None for the inputs that do not require grad.

    It finds the random states that forward found, or those given.

    What only the engine would refuse (a wrong number of gradients, a shape that does not fit) is
    `Raised` too, unless backward always returns that.
    """
    problem, reader = sample.problem, sample.subject.reader
    problem.counter.backward += 1
    (states or problem.random_states).replay()
    before = frozenset() if reader is None else frozenset(reader.remarks)
    wanted = [leaf for leaf in call.leaves if leaf.requires_grad]
    result = guard.call(differentiate_again, call.outputs, wanted, grad_outputs)
    if isinstance(result, Raised):
        return result
    if reader is not None:
        new = [r for key, r in reader.remarks.items() if key not in before and r.kind in REFUSED_BY_ENGINE]
        if new:
            return Raised(_of_the_engine(new[0].kind, new[0].got, new[0].expected))
    found = iter(result.value)
    return Returned(tuple(next(found) if leaf.requires_grad else None for leaf in call.leaves))


def is_accident(error: RaisedError) -> bool:
    """Whether an exception is a mistake, and not a refusal that somebody wrote."""
    if error.deliberate:
        return False
    return error.type in ACCIDENTS or any(words in error.message for words in ACCIDENTAL_WORDS)


def _of_the_engine(kind: Irregularity, got: str, expected: str) -> RaisedError:
    if kind is Irregularity.COUNT:
        said = f"backward returned an incorrect number of gradients (expected {expected}, got {got})"
    elif kind is Irregularity.NOT_FOR_TENSOR:
        said = f"backward returned {got} for an argument that is not a tensor"
    else:
        said = f"backward returned a gradient of shape {got} for an input of shape {expected}"
    return RaisedError("RuntimeError", said)
