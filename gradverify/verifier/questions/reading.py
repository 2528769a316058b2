"""Reading what backward really returned, inside backward, before the autograd engine casts and sums it.

The engine adds up a gradient with extra dimensions, casts its dtype and refuses a wrong shape or count.
Each of these hides something from whoever looks at the result, so the class's own `backward` is wrapped
while a target is verified. A value the engine would refuse is noted and replaced by None: the other
inputs are judged all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.verifier.guard.surroundings import DisturbedError, reported
from gradverify.verifier.targets.discover import backward_name, wrapped_backward, wrapped_operator
from gradverify.verifier.targets.operators import Operator, parameters_of_schema

_ARGUMENTS = "_gradverify_arguments"
"""Attribute of a node that holds the shapes and dtypes of its forward's arguments."""

_ORIGINAL = "_gradverify_original"
"""Attribute of the wrapper that holds the class's own backward."""


class Irregularity(StrEnum):
    """How a returned gradient differs from what its input asks for."""

    COUNT = "count"
    NOT_FOR_TENSOR = "not-for-tensor"
    SHAPE_SUMMED = "shape-summed"
    SHAPE_REFUSED = "shape-refused"
    DTYPE = "dtype"


@dataclass(frozen=True)
class Remark:
    """One irregular return: what came, and what the input is."""

    kind: Irregularity
    position: int
    """Position of the argument concerned; for a wrong count, how many gradients came."""
    got: str
    expected: str


@dataclass
class Reader:
    """Collects what backward returned over all calls of one point."""

    remarks: dict[tuple[Irregularity, int], Remark] = field(default_factory=dict)
    returned_none: dict[int, bool] = field(default_factory=dict)
    """By argument position: whether every call so far returned None for it."""
    answered: int | None = None
    """How many arguments backward answers for; None for all."""

    def reset(self) -> None:
        """Forget everything: another point begins."""
        self.remarks.clear()
        self.returned_none.clear()

    @contextmanager
    def without_new_remarks(self) -> Iterator[None]:
        """Forget afterwards what is read meanwhile."""
        before = dict(self.remarks), dict(self.returned_none)
        try:
            yield
        finally:
            self.remarks, self.returned_none = before

    def remark(self, kind: Irregularity, position: int, got: str, expected: str) -> None:
        """Note an irregular return, once for each argument."""
        self.remarks.setdefault((kind, position), Remark(kind, position, got, expected))

    def expect(self, result: Any, arguments: Sequence[Any]) -> None:  # noqa: ANN401
        """Tell the node behind a result what its forward was called with."""
        outputs = result if isinstance(result, tuple | list) else (result,)
        described = tuple(
            (tuple(a.shape), a.dtype, a.requires_grad) if isinstance(a, Tensor) else None
            for a in arguments[: self.answered]
        )
        for output in outputs:
            node: Any = output.grad_fn if isinstance(output, Tensor) else None
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                setattr(node, _ARGUMENTS, described)


@contextmanager
def reading_backward(function: type[Function], reader: Reader) -> Iterator[Reader]:
    """Wrap the class's backward while the context lasts; `reader` may have read it before.

    Raises `DisturbedError` where the class has another one at the end.
    """
    with wrapped_backward(function, partial(_reading, reader=reader)) as reading:
        yield reader
        name = backward_name(function)
        if vars(function).get(name) is not reading:
            raise DisturbedError(f"its code {reported((f'{function.__name__}.{name}',))}")


@contextmanager
def reading_operator(operator: Operator, reader: Reader) -> Iterator[Reader]:
    """Wrap the backward that an operator's definition holds; `reader` may have read it before."""
    by_name = sum(p.keyword_only for p in parameters_of_schema(operator))
    reader.answered = -by_name or None
    with wrapped_operator(operator, partial(_reading, reader=reader, lists=False)):
        yield reader


@contextmanager
def without_reading(function: type[Function] | None) -> Iterator[None]:
    """Give a class its own backward back for a while: torch.compile would trace the wrapper."""
    reading = None if function is None else vars(function).get(backward_name(function))
    original = getattr(getattr(reading, "__func__", None), _ORIGINAL, None)
    if function is None or original is None:
        yield
    else:
        with wrapped_backward(function, lambda _: original):
            yield


def own_backward(function: type[Function]) -> Any:  # noqa: ANN401 - the user's
    """The class's own backward, whether it is being read or not."""
    backward = getattr(function, backward_name(function))
    return getattr(backward, _ORIGINAL, backward)


def _reading(original: Callable[..., Any], *, reader: Reader, lists: bool = True) -> Callable[..., Any]:
    """The wrapper. `lists`: a backward may return several gradients in a list, too."""

    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # noqa: ANN401
        returned = original(ctx, *grad_outputs)
        arguments = getattr(ctx, _ARGUMENTS, None)
        if arguments is None:
            return returned
        is_several = isinstance(returned, tuple) or (lists and isinstance(returned, list))
        values = list(returned) if is_several else [returned]
        return _read(values, arguments, reader)

    setattr(backward, _ORIGINAL, original)
    return backward


def _read(values: list[Any], arguments: Sequence[Any], reader: Reader) -> Any:  # noqa: ANN401
    count = len(arguments)
    if len(values) < count or any(v is not None for v in values[count:]):
        reader.remark(Irregularity.COUNT, len(values), str(len(values)), str(count))
    values = (values + [None] * count)[:count]
    for position, (value, argument) in enumerate(zip(values, arguments, strict=True)):
        if argument is not None and argument[2]:
            reader.returned_none[position] = reader.returned_none.get(position, True) and value is None
        if isinstance(value, Tensor):
            values[position] = _read_one(value, argument, position, reader)
    return tuple(values)


def _read_one(value: Tensor, argument: Any, position: int, reader: Reader) -> Tensor | None:  # noqa: ANN401
    got = str(list(value.shape))
    if argument is None:
        reader.remark(Irregularity.NOT_FOR_TENSOR, position, f"a gradient of shape {got}", "None")
        return None
    shape, dtype, requires_grad = argument
    if requires_grad and tuple(value.shape) != shape:
        kind = Irregularity.SHAPE_SUMMED if _sums_to(value.shape, shape) else Irregularity.SHAPE_REFUSED
        reader.remark(kind, position, got, str(list(shape)))
        if kind is Irregularity.SHAPE_REFUSED:
            return None
    if requires_grad and value.dtype != dtype:
        reader.remark(Irregularity.DTYPE, position, _name(value.dtype), _name(dtype))
    return value


def _sums_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether the engine can sum a gradient of one shape to another: the target broadcasts to it."""
    extra = len(shape) - len(target)
    return extra >= 0 and all(t in (1, s) for s, t in zip(tuple(shape)[extra:], target, strict=True))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
