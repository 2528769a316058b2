"""What is asked of a Function at one call, by plain autograd: gradients in every ordinary use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.inputs.arguments import Argument, arguments_of_call

FINITE_DIFFERENCE = 1e-3
"""Relative difference of a second derivative from a central difference that is taken for an error."""
STEP = 1e-5


@dataclass(frozen=True)
class Call:
    """Arguments of one call."""

    arguments: tuple[Argument, ...]
    declared: bool
    second: bool
    """Whether second derivatives count."""

    @property
    def names(self) -> list[str]:
        return [a.name for a in self.arguments if a.differentiable]


def questions(call: Call) -> list[str]:
    """What is asked of a Function at one call, the most ordinary first."""
    always = [
        "plain",
        "again",
        "transposed",
        "expanded",
        "sliced",
        "strided inputs",
        "writes",
        "interleaved",
        "overlapping",
        "second",
    ]
    several = (
        [f"{how} {k}" for how in ("only", "without") for k in range(len(call.names))]
        if len(call.names) > 1
        else []
    )
    return [*always, *several, "output 0", "output 1"]


def answer(function: Any, call: Call, question: str, other: Call) -> list[Tensor | None] | None:
    """The tensors that come; None where the Function raises, or has no such output."""
    how, _, number = question.partition(" ")
    every = set(range(len(call.names)))
    ask: dict[str, Callable[[], list[Tensor | None]]] = {
        "plain": lambda: first_order(function, call),
        "again": lambda: first_order(function, call, twice=True),
        "transposed": lambda: first_order(function, call, layout=transposed),
        "expanded": lambda: first_order(function, call, layout=expanded),
        "sliced": lambda: first_order(function, call, layout=sliced),
        "strided": lambda: first_order(function, call, of_inputs=transposed),
        "writes": lambda: first_order(function, call, writes=True),
        "interleaved": lambda: interleaved(function, call, call, 0.25),
        "overlapping": lambda: interleaved(function, call, other, 0.0),
        "second": lambda: second_order(function, call),
        "only": lambda: first_order(function, call, wanted={int(number)}),
        "without": lambda: first_order(function, call, wanted=every - {int(number)}),
        "output": lambda: first_order(function, call, output=int(number)),
    }
    try:
        return [None if g is None else g.detach() for g in ask[how]()]
    except Exception:  # noqa: BLE001 - whatever a Function raises
        return None


def leaves_of(call: Call, wanted: set[int] | None = None, shift: float = 0.0) -> list[Tensor]:
    leaves = [a.value.detach().clone() + shift for a in call.arguments if a.differentiable]
    return [x.requires_grad_(wanted is None or k in wanted) for k, x in enumerate(leaves)]


def forward(
    function: Any, call: Call, leaves: list[Tensor], of_inputs: Callable[[Tensor], Tensor] | None = None
):
    """Outputs that carry a graph."""
    moved = iter(leaves)
    values = []
    for a in call.arguments:
        if a.differentiable:
            value = a.moved(next(moved).clone())
            values.append(of_inputs(value) if of_inputs is not None and a.step is None else value)
        else:
            values.append(a.value.clone() if isinstance(a.value, Tensor) else a.value)
    torch.manual_seed(0)
    returned = function.apply(*arguments_of_call(call.arguments, values))
    listed = returned if isinstance(returned, (tuple, list)) else [returned]
    return [t for t in listed if isinstance(t, Tensor) and t.requires_grad]


def cotangents(outputs: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in outputs]


def first_order(function, call, layout=None, of_inputs=None, wanted=None, output=None, **ways):
    """Gradients; `twice`: of a second backward; `writes`: what became of the grad_outputs instead."""
    leaves = leaves_of(call, wanted)
    outputs = forward(function, call, leaves, of_inputs)
    given = cotangents(outputs)
    if output is not None:
        outputs, given = [outputs[output]], [given[output]]
    given = [g if layout is None else layout(g) for g in given]
    before = [g.clone() for g in given]
    sought = [x for x in leaves if x.requires_grad]
    if ways.get("twice"):
        torch.autograd.grad(outputs, sought, given, retain_graph=True, allow_unused=True)
        given = before
    gradients = list(torch.autograd.grad(outputs, sought, given, allow_unused=True))
    return given if ways.get("writes") else gradients


def interleaved(function, call, other, shift):
    leaves = leaves_of(call)
    outputs = forward(function, call, leaves)
    with contextlib.suppress(Exception):  # values that it cannot have
        forward(function, other, leaves_of(other, shift=shift))
    return list(torch.autograd.grad(outputs, leaves, cotangents(outputs), allow_unused=True))


def second_order(function, call):
    """Gradients by the inputs and by grad_output of the gradients' product with a fixed direction."""
    leaves = leaves_of(call)
    outputs = forward(function, call, leaves)
    given = [g.requires_grad_() for g in cotangents(outputs)]
    gradients = [
        g
        for g in torch.autograd.grad(outputs, leaves, given, create_graph=True, allow_unused=True)
        if g is not None
    ]
    product = against(gradients)
    sought = [*leaves, *given]
    if not product.requires_grad:
        return [torch.zeros_like(x) for x in sought]
    found = torch.autograd.grad(product, sought, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(sought, found, strict=True)]


def against(gradients: list[Tensor]) -> Tensor:
    """A smooth function of the gradients that every entry matters for."""
    total = torch.zeros((), dtype=torch.float64)
    for g, d in zip(gradients, cotangents(gradients), strict=True):
        total = total + (g * d.conj()).sum().real
    return total


def second_by_differences(original, call, given):
    """How far a second derivative is from a central difference of the original's gradient."""
    leaves = leaves_of(call)
    directions = [torch.randn_like(x) for x in leaves]
    products = []
    for sign in (1, -1):
        moved = [
            (x.detach() + sign * STEP * d).requires_grad_() for x, d in zip(leaves, directions, strict=True)
        ]
        try:
            outputs = forward(original, call, moved)
            found = torch.autograd.grad(outputs, moved, cotangents(outputs), allow_unused=True)
        except Exception:  # noqa: BLE001
            return 0.0
        products.append(against([g for g in found if g is not None]).item())
    numerical = (products[0] - products[1]) / (2 * STEP)
    claimed = sum((g * d.conj()).sum().real.item() for g, d in zip(given, directions, strict=False))
    off = abs(claimed - numerical) / max(abs(numerical), 1e-2)
    return off if off > FINITE_DIFFERENCE else 0.0


def transposed(x: Tensor) -> Tensor:
    """The same values with the memory of the transpose."""
    return (
        x.t().contiguous().t()
        if x.dim() == 2
        else x.transpose(0, -1).contiguous().transpose(0, -1)
        if x.dim() > 2
        else sliced(x)
    )


def expanded(x: Tensor) -> Tensor:
    """Stride 0: what `sum().backward()` sends."""
    return torch.full((), 1.5, dtype=x.dtype).expand(x.shape)


def sliced(x: Tensor) -> Tensor:
    """Every second entry of a larger tensor."""
    larger = torch.zeros(*x.shape, 2, dtype=x.dtype)
    larger[..., 0] = x
    return larger[..., 0]
