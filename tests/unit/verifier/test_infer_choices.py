"""A default is not all that a parameter may be: the second value that inference verifies, too."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import avg_pool1d

from gradverify.cases.inputs import ChoicesSpec, ValueSpec
from gradverify.deduced import Deduced
from gradverify.model import Target, TargetKind
from gradverify.verifier.infer.deduce import deduce
from gradverify.verifier.targets.discover import parameters_of


class Window(Function):
    """Each of its parameters goes round something at its default."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        stride: int | None = None,
        padding: int = 0,
        reverse: bool = False,
        kind: str = "mean",
    ) -> Tensor:
        y = avg_pool1d(x, 3, stride, padding)
        y = y.flip(-1) if reverse else y
        return y.mean() if kind == "mean" else y.sum() if kind == "sum" else y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.new_ones(()), None, None, None, None


class Marked(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ignore_index: int = -100) -> Tensor:
        return x * (ignore_index != 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


class Refused(Function):
    """Forward takes no other order, backward says that it cannot be inverse, and breaks for another mode."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: int = 1, inverse: bool = False, mode: str = "a") -> Tensor:
        if order != 1:
            raise ValueError("order")
        ctx.inverse, ctx.mode = inverse, mode
        return 2 * x if mode == "a" else 3 * x if mode == "b" else x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if ctx.inverse:
            raise NotImplementedError("inverse")
        return 2 * grad if ctx.mode == "a" else grad.undefined, None, None, None


class AlongFirst(Function):
    """Along any other dimension, what is cut out does not fit: twice 0 is left, which is 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, dim: int = 0) -> Tensor:
        if dim != 0:
            raise ValueError("dim")
        return x * w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, grad, None


class Bounded(Function):
    """Hardly a value that is drawn is as large as 2: at such a bound it is as if there were none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: Any = None) -> Tensor:
        return x if limit is None else x.clamp(max=limit)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


def choices_of(function: type[Function]) -> dict[str, tuple[object, ...]]:
    name = function.__name__
    target = Target(name, name, TargetKind.FUNCTION, __file__, 1, parameters=parameters_of(function))
    deduced = deduce(function, target, None)
    assert isinstance(deduced, Deduced), deduced
    swept = {one.name: one.choices for one in deduced.inputs if isinstance(one, ChoicesSpec)}
    return swept | {one.name: (one.value,) for one in deduced.inputs if isinstance(one, ValueSpec)}


def test_every_default_has_a_second_value() -> None:
    assert choices_of(Window) == {
        "stride": (None, 2),
        "padding": (0, 1),
        "reverse": (False, True),
        "kind": ("mean", "sum"),
    }


def test_no_value_is_there_twice() -> None:
    assert choices_of(AlongFirst) == {"dim": (0,)}


def test_a_bound_is_one_that_values_reach() -> None:
    assert choices_of(Bounded) == {"limit": (None, 0.75)}


def test_a_mark_gets_a_value_that_occurs() -> None:
    assert choices_of(Marked) == {"ignore_index": (-100, 1)}


def test_what_is_refused_is_left_out_and_what_breaks_is_not() -> None:
    assert choices_of(Refused) == {"order": (1,), "inverse": (False,), "mode": ("a", "b")}
