"""The arguments of one call at one point of a case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Case, LiteralInput, Point, RaisedError, ShownInput, TensorInput
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.values import draw_booleans, draw_integers, draw_values

SHOWN_ELEMENTS = 16
"""Tensors up to this many elements are printed in full."""


@dataclass(frozen=True)
class Argument:
    """One argument of a call: a tensor to differentiate, another tensor, or any object."""

    name: str
    value: Any
    differentiable: bool = False


def points_of(case: Case) -> tuple[tuple[Point, int], ...]:
    """Which (point, draw) pairs a case is verified at.

    Two typical draws, so that a branch on the data is entered from both sides; the declared range where
    there is one; the declared special values where there are some. Hooks draw their own values.
    """
    tensors = [i for i in case.inputs if isinstance(i, TensorInput)]
    floating = [t for t in tensors if t.dtype in {"float64", "complex128"} and t.value is None]
    points = [(Point.TYPICAL, 0), (Point.TYPICAL, 1)]
    if any(t.range is not None for t in floating):
        points.append((Point.WIDE, 0))
    if any(t.special for t in floating):
        points.append((Point.SPECIAL, 0))
    return tuple(points)


def build_arguments(case: Case, point: Point, draw: int, device: str) -> tuple[Argument, ...]:
    """Draw every input of a case without a hook."""
    return tuple(
        Argument(i.name, i.value)
        if isinstance(i, LiteralInput)
        else Argument(
            i.name, tensor := build_tensor(i, case.seed, point, draw, device), _differentiable(i, tensor)
        )
        for i in case.inputs
    )


def build_tensor(spec: TensorInput, seed: int, point: Point, draw: int, device: str) -> Tensor:
    """Draw one tensor, or build it from its literal value."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.value is not None:
        return torch.tensor(_lists(spec.value), dtype=dtype).reshape(spec.shape).to(device)
    if dtype is torch.bool:
        values: Sequence[Any] = draw_booleans(spec, seed, point, draw)
    elif not (dtype.is_floating_point or dtype.is_complex):
        values = draw_integers(spec, seed, point, draw)
    elif dtype.is_complex:
        real, imaginary = draw_values(spec, seed, point, draw), draw_values(spec, seed + 1, point, draw)
        values = [complex(a, b) for a, b in zip(real, imaginary, strict=True)]
    else:
        values = draw_values(spec, seed, point, draw)
    return torch.tensor(values, dtype=dtype).reshape(spec.shape).to(device)


def call_hook(
    hook: Callable[..., Any], case: Case, point: Point, draw: int, device: str, names: Sequence[str]
) -> Returned[tuple[Argument, ...]] | Raised:
    """Let the user's own function build the arguments: f(generator, device, dtype, **sizes).

    It returns the arguments as a tuple, or (arguments, keywords). Tensors that require grad are
    differentiated; if none does, every floating one is.
    """
    generator = torch.Generator(device=device).manual_seed((case.seed + 7919 * draw) % 2**63)
    del point  # a hook knows nothing of regimes

    def build() -> Any:  # noqa: ANN401
        return hook(generator, torch.device(device), torch.float64, **dict(case.sizes))

    result = guard.call(build)
    if isinstance(result, Raised):
        return result
    values = _positional(result.value, names)
    if isinstance(values, str):
        return Raised(RaisedError("ValueError", values))
    named = [names[i] if i < len(names) else f"argument {i}" for i in range(len(values))]
    tensors = [v for v in values if isinstance(v, Tensor) and _is_continuous(v)]
    chosen = [t for t in tensors if t.requires_grad] or tensors
    return Returned(
        tuple(
            Argument(name, v.detach() if isinstance(v, Tensor) else v, any(v is t for t in chosen))
            for name, v in zip(named, values, strict=True)
        )
    )


def shown_inputs(arguments: Sequence[Argument]) -> tuple[ShownInput, ...]:
    """Arguments as a person reads them: small ones in full, large ones by dtype and shape."""
    return tuple(ShownInput(a.name, show_value(a.value)) for a in arguments)


def show_value(value: Any) -> str:  # noqa: ANN401
    """One argument as text."""
    if not isinstance(value, Tensor):
        return repr(value)
    if value.numel() <= SHOWN_ELEMENTS:
        return _short(value.detach().cpu().tolist())
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _short(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, list):
        return "[" + ", ".join(_short(v) for v in value) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _positional(result: Any, names: Sequence[str]) -> list[Any] | str:  # noqa: ANN401
    keywords: dict[str, Any] = {}
    if (
        isinstance(result, tuple)
        and len(result) == 2
        and isinstance(result[0], tuple)
        and isinstance(result[1], dict)
    ):
        result, keywords = result
    if not isinstance(result, tuple | list):
        return f"the hook returned {type(result).__name__}: return the arguments as a tuple"
    values = list(result)
    for name in names[len(values) :]:
        if name not in keywords:
            break
        values.append(keywords.pop(name))
    if keywords:
        return f"the hook returned the keyword `{next(iter(keywords))}`, which forward does not take there"
    return values


def _differentiable(spec: TensorInput, tensor: Tensor) -> bool:
    if spec.requires_grad is not None:
        return spec.requires_grad
    return _is_continuous(tensor)


def _is_continuous(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _lists(value: Any) -> Any:  # noqa: ANN401 - nested tuples to nested lists
    return [_lists(v) for v in value] if isinstance(value, tuple) else value
