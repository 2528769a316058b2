"""Arguments rounded to a native dtype, and the same rounded values in float64.

Arguments that the user's own function builds: `arguments: module:attribute`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Annotation, Case, Parameter, RaisedError
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.arguments import Argument, with_ties
from gradverify.verifier.inputs.tensors import held_of


def call_hook(
    hook: Callable[..., Any], case: Case, draw: int, device: str, parameters: Sequence[Parameter]
) -> Returned[tuple[Argument, ...]] | Raised:
    """Let the hook build the arguments: f(generator, device, dtype, **sizes).

    It returns the arguments as a tuple, or (arguments, keywords). Tensors that require grad are
    differentiated; if none does, every floating one is. `inputs:` beside `arguments:` overrules that and
    names held slices. What is beyond the other parameters goes to a `*args`, as it does in a call.
    """
    fixed = [p.name for p in parameters if not p.variadic]
    rest = next((p.name for p in parameters if p.variadic), "")
    generator = torch.Generator(device=device).manual_seed((case.seed + 7919 * draw) % 2**63)

    def build() -> Any:  # noqa: ANN401
        return hook(generator, torch.device(device), torch.float64, **dict(case.sizes))

    result = guard.call(build)
    if isinstance(result, Raised):
        return result
    values = _positional(result.value, fixed)
    if isinstance(values, str):
        return Raised(RaisedError("ValueError", values))
    if fixed and not rest and len(values) > len(fixed):
        said = f"the hook returned {len(values)} arguments, forward takes {len(fixed)}: {', '.join(fixed)}"
        return Raised(RaisedError("ValueError", said))
    beyond = (f"{rest}[{k}]" if rest else f"argument {k}" for k in range(len(values)))
    named = [*fixed, *beyond][: len(values)]
    annotations = {a.name: a for a in case.annotations}
    continuous = [v for v in values if isinstance(v, Tensor) and (v.is_floating_point() or v.is_complex())]
    chosen = [t for t in continuous if t.requires_grad] or continuous
    given = dict(zip(named, values, strict=True))
    built = [_argument(n, v, any(v is t for t in chosen), annotations.get(n)) for n, v in given.items()]
    return guard.call(with_ties, built, {n: v for n, v in given.items() if isinstance(v, Tensor)})


def _argument(name: str, value: Any, chosen: bool, annotation: Annotation[int] | None) -> Argument:  # noqa: ANN401, FBT001
    if not isinstance(value, Tensor):
        return Argument(name, value)
    value = value.detach()
    if annotation is None:
        return Argument(name, value, chosen)
    differentiable = chosen if annotation.requires_grad is None else annotation.requires_grad
    return Argument(name, value, differentiable, held=held_of(annotation.constant_at, value))


def _positional(result: Any, names: Sequence[str]) -> list[Any] | str:  # noqa: ANN401
    keywords: dict[str, Any] = {}
    is_pair = isinstance(result, tuple) and len(result) == 2
    if is_pair and isinstance(result[0], tuple) and isinstance(result[1], dict):
        result, keywords = result[0], dict(result[1])
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


NATIVE = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")}
"""The dtypes in which targets are judged beside float64."""

_COMPLEX = {"float32": torch.complex64}
_EXACT = frozenset({torch.float64, torch.complex128})


def native_arguments(
    arguments: Sequence[Argument], dtype: str
) -> tuple[tuple[Argument, ...], tuple[Argument, ...]] | None:
    """The arguments rounded to a dtype, and the same values in float64.

    None where there is nothing to round, or no such dtype: a complex one of 16 bits, a sparse layout.
    """
    native, exact = [], []
    rounded = False
    for argument in arguments:
        value = argument.value
        if not isinstance(value, Tensor) or value.dtype not in _EXACT:
            native.append(argument)
            exact.append(argument)
            continue
        to = _COMPLEX.get(dtype) if value.is_complex() else NATIVE[dtype]
        if to is None or value.layout is not torch.strided or _changes_layout(argument):
            return None
        short = value.to(to)
        if not short.isfinite().all() or ((short == 0) & (value != 0)).any():
            return None
        native.append(replace(argument, value=short, step=_gradient_of(argument)))
        exact.append(replace(argument, value=short.to(value.dtype), step=_gradient_of(argument)))
        rounded = True
    return (tuple(native), tuple(exact)) if rounded else None


def _changes_layout(argument: Argument) -> bool:
    if argument.step is None:
        return False
    with torch.no_grad():
        moved: Tensor = argument.step(argument.value)
    return moved.layout is not torch.strided


def _gradient_of(argument: Argument) -> Callable[[Tensor], Tensor] | None:
    """The value as it was rounded, with the gradient of the step: only the tangential part is compared."""
    step = argument.step
    if step is None:
        return None
    wide = argument.value.dtype

    def tangential(x: Tensor) -> Tensor:
        moved = step(x.to(wide)).to(x.dtype)
        return x.detach() + (moved - moved.detach())

    return tangential
