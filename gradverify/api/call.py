"""One call on the caller's own tensors, as torch makes it: what it returned, and what its graph answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradverify.verifier.numerics.calling import differentiate_again
from gradverify.verifier.numerics.problem import Gradients

SAME = 1e-9
"""Relative to the largest value: gradients nearer to each other differ by rounding only."""

COTANGENT_SEED = 20_263
"""Seed of the grad_outputs of this comparison; any other would do."""


HIDE: Any = torch._C._functions.UndefinedGrad()  # noqa: SLF001
"""Puts an output behind a node that hands on no gradient: there is no public name for it."""


class Original(NamedTuple):
    """One call on the caller's tensors, with its graph."""

    inputs: tuple[Any, ...]
    returned: tuple[Any, ...]
    positions: tuple[int, ...]
    """Positions of the outputs that require grad."""
    leaves: tuple[Tensor, ...]
    """The inputs that require grad."""
    outputs: tuple[Tensor, ...]
    """The outputs that require grad."""

    def gradients(self, cotangents: Sequence[Tensor | None]) -> Gradients:
        """One backward of the outputs that have a grad_output, through the graph, which stays.

        Raises whatever backward raises.
        """
        return differentiate_again(self.outputs, self.leaves, cotangents)


def original_of(inputs: tuple[Any, ...], returned: tuple[Any, ...]) -> Original:
    """What a call on these inputs returned."""
    leaves = tuple([x for x in inputs if is_differentiable(x)])
    positions = tuple([i for i, r in enumerate(returned) if is_differentiable(r)])
    outputs = returned if len(positions) == len(returned) else tuple([returned[p] for p in positions])
    return Original(inputs, returned, positions, leaves, outputs)


def as_tuple(value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - whatever a user gives or returns
    """A tuple of one thing, or of several."""
    if isinstance(value, tuple):
        return value
    return tuple(value) if isinstance(value, list) else (value,)


def is_differentiable(value: Any) -> bool:  # noqa: ANN401
    """Whether a gradient with respect to an input is asked for."""
    return isinstance(value, Tensor) and value.requires_grad


def random_cotangents(outputs: Sequence[Tensor]) -> list[Tensor]:
    """A random grad_output for each output, the same ones each time."""
    generator = torch.Generator().manual_seed(COTANGENT_SEED)
    return [_random_like(output, generator) for output in outputs]


def same(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> bool:
    """Whether two lists of tensors agree up to rounding; None agrees with None and with zeros."""
    return all(_same(a, e) for a, e in zip(actual, expected, strict=True))


def identical(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> bool:
    """Whether two lists of tensors agree to the last bit; NaN agrees with NaN."""
    pairs = zip(actual, expected, strict=True)
    return all(
        a is e if a is None or e is None else torch.equal(*map(torch.nan_to_num, (a, e))) for a, e in pairs
    )


def ignores_zero_grad_output(original: Original) -> str:
    """What is wrong with the gradients for a grad_output of zeros; empty where nothing is."""
    zeros = [_zeros(o) for o in original.outputs]
    for number, (gradient, leaf) in enumerate(zip(original.gradients(zeros), original.leaves, strict=True)):
        if gradient is None:
            continue
        if gradient.shape != leaf.shape or gradient.dtype != leaf.dtype or gradient.device != leaf.device:
            return f"the gradient of differentiable input {number} has not its shape, dtype or device"
        if not gradient.eq(0).all():
            return f"the gradient of differentiable input {number} is not zero for a grad_output of zeros"
    return ""


def refuses_undefined(original: Original) -> str:
    """What is wrong where all grad_outputs are undefined, then one at a time; empty where nothing is."""
    every = range(len(original.positions))
    chosen = [every]
    if len(every) > 1:
        chosen += [range(i, i + 1) for i in every]
    for undefined in chosen:
        # What an undefined output is given goes nowhere: any tensor like it will do.
        numbered = list(enumerate(original.outputs))
        outputs = tuple([_undefined(o) if i in undefined else o for i, o in numbered])
        given = [o.detach() if i in undefined else _zeros(o) for i, o in numbered]
        try:
            gradients = differentiate_again(outputs, original.leaves, given)
        except Exception as error:  # noqa: BLE001 - whatever it raises: None is a valid grad_output
            raised = f"backward raises {type(error).__name__}"
            return f"{raised} where {_named(undefined, every)} is undefined (None): {error}"
        if not all_zero(gradients):
            which = _named(undefined, every)
            return f"a gradient is not zero where {which} is undefined (None) and the others are zero"
    return ""


def _named(undefined: range, every: range) -> str:
    return "every grad_output" if undefined == every else f"grad_output {undefined[0]}"


def all_zero(gradients: Gradients) -> bool:
    """Whether no gradient has an entry that is not zero."""
    return all(g is None or not g.count_nonzero().item() for g in gradients)


def _undefined(output: Tensor) -> Tensor:
    """The output behind a node that hands on no gradient."""
    result: Tensor = HIDE(output)
    return result


def _zeros(output: Tensor) -> Tensor:
    return torch.zeros_like(output, memory_format=torch.contiguous_format)


def _random_like(output: Tensor, generator: torch.Generator) -> Tensor:
    """Values between ½ and 1 in size, of either sign: no entry counts much less than another."""
    shape = (*output.shape, 2) if output.is_complex() else tuple(output.shape)
    values = torch.rand(shape, generator=generator, dtype=torch.float64) / 2 + 0.5
    values *= torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return (torch.view_as_complex(values) if output.is_complex() else values).to(output)


def _same(actual: Tensor | None, expected: Tensor | None) -> bool:
    if actual is None or expected is None:
        rest = expected if actual is None else actual
        return rest is None or not bool(rest.any())
    if actual.shape != expected.shape:
        return False
    if not actual.numel() or torch.equal(actual, expected):
        return True
    largest = expected.detach().abs().nan_to_num(0.0, 0.0, 0.0).max().item()
    return torch.allclose(actual, expected, rtol=SAME, atol=SAME * largest, equal_nan=True)
