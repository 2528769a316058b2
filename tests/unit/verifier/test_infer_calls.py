"""What inference reads off calls: names behind `*args`, defaults and casts of wrappers, two numbers."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.cases.inputs import ChoicesSpec, ListSpec, TensorSpec, ValueSpec
from gradverify.cases.sizes import Expression
from gradverify.deduced import Deduced
from gradverify.model import ObjectInput, Target, TargetKind
from gradverify.verifier.infer.deduce import deduce
from gradverify.verifier.targets.discover import parameters_of


class Derivative(Function):
    """Backward of a sum, so that inference finds nothing wrong with it."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return tuple(grad.new_ones(s) * grad.sum() if s is not None else None for s in ctx.shapes)


def kept(ctx: Any, *given: Any) -> None:
    ctx.shapes = [g.shape if isinstance(g, Tensor) else None for g in given]


class Starred(Derivative):
    """Takes k of any dimensions until its kernel is there: the source alone says that they are four."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        kept(ctx, q, k, v)
        if k.ndim < 5:
            b, t, h, d, e = *k.shape, v.shape[-1]
            q = q * (b * t * h * d * e)
        return q.sum() + k.sum() + v.sum()


class Unpacked(Derivative):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        x, dim, correction = args
        kept(ctx, *args)
        return (x.sum(dim) / (x.shape[dim] - correction)).sum() + x.sum()


class InContext(Derivative):
    @staticmethod
    def forward(*args: Any) -> Any:
        return args[0].sum() * args[1]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        base, exponent = inputs
        kept(ctx, base, exponent)


class Applied(Derivative):
    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> Any:
        kept(ctx, *tensors)
        return tensors[0].sum() + tensors[1].sum() * tensors[2]


def applied(x: Tensor, weight: Tensor, alpha: float = 0.5) -> Any:
    return Applied.apply(x, weight, alpha)


class Numbered(Derivative):
    @staticmethod
    def forward(ctx: Any, first: Any, *args: Any) -> Any:
        second = args[0]
        mode = args[1]
        kept(ctx, first, second, mode)
        return first.sum() + second.sum() if mode == "sum" else first.sum() + second.mean()


class Rest(Derivative):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        x, *others = args
        kept(ctx, *args)
        return x.sum() + sum(o.sum() for o in others)


class AnyNumber(Derivative):
    @staticmethod
    def forward(ctx: Any, *xs: Any) -> Any:
        kept(ctx, *xs)
        return sum(x.sum() for x in xs)


NAMES = {
    Unpacked: ["x", "dim", "correction"],
    InContext: ["base", "exponent"],
    Applied: ["x", "weight", "alpha"],
    Numbered: ["first", "second", "mode"],
    Rest: ["x", "others"],
    AnyNumber: ["xs"],
}


class Wrapped(Derivative):
    @staticmethod
    def forward(ctx: Any, x: Any, k: Any, scale: Any, final: Any, state: Any) -> Any:
        kept(ctx, x, None, None, None, state)
        scale = x.shape[-1] ** -0.5 if scale is None else scale
        total = x.topk(k, dim=-1).values.sum() * scale
        return total + state.sum() if state is not None else total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        given = ctx.shapes[-1]
        return grad.new_ones(ctx.shapes[0]), None, None, None, grad.new_ones(given) if given else None


def wrapped(x: Tensor, k: Any, scale: Any = None, final: Any = False, state: Any = None) -> Any:
    return Wrapped.apply(x, int(k), scale, final, state)


class Annotated(Derivative):
    @staticmethod
    def forward(ctx: Any, x: Any, alpha: Any) -> Any:
        kept(ctx, x, None)
        return x.sum() * alpha


def annotated(x: Tensor, alpha: int) -> Any:
    return Annotated.apply(x, alpha)


class Times(Derivative):
    @staticmethod
    def forward(ctx: Any, x: Any, t0: Any, t1: Any) -> Any:
        kept(ctx, x, None, None)
        return x.sum() * (t1 - t0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.new_ones(ctx.shapes[0]), None, None


class Falling(Times):
    @staticmethod
    def forward(ctx: Any, x: Any, after: Any, before: Any) -> Any:
        kept(ctx, x, None, None)
        assert after > before
        return x.sum() * (after - before)


class Stride(Times):
    @staticmethod
    def forward(ctx: Any, x: Any, kernel_size: Any, stride: Any) -> Any:
        kept(ctx, x, None, None)
        return x.unfold(-1, kernel_size, stride).sum()


ORDER = {Times: 1, Falling: -1, Stride: -1}


class WithParameters(Function):
    """Differentiates by parameters that it is passed: they must be those of the module."""

    @staticmethod
    def forward(ctx: Any, net: Any, x: Any, *params: Any) -> Any:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = net(x)
            ctx.save_for_backward(*torch.autograd.grad(y.sum(), (x, *params)))
        return y.detach().sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return (None, *(g * grad for g in ctx.saved_tensors))


def deduced(function: type[Function]) -> Deduced:
    target = Target(
        function.__name__, function.__name__, TargetKind.FUNCTION, __file__, 1, parameters_of(function)
    )
    found = deduce(function, target, sys.modules[__name__])
    assert isinstance(found, Deduced), found
    return found


def literals(found: Deduced) -> dict[str, tuple[Any, ...]]:
    swept = {i.name: i.choices for i in found.inputs if isinstance(i, ChoicesSpec)}
    values = {i.name: (i.value,) for i in found.inputs if isinstance(i, ValueSpec)}
    single = {name: value for name, value in values.items() if not isinstance(value[0], Expression)}
    return {i.name: (swept | single)[i.name] for i in found.inputs if i.name in swept | single}


def test_a_star_among_sizes_says_how_many_dimensions_are_unpacked() -> None:
    shapes = {i.name: i.shape for i in deduced(Starred).inputs if isinstance(i, TensorSpec)}
    assert len(shapes["k"]) == 4


@pytest.mark.parametrize("function", NAMES)
def test_what_args_holds_has_the_names_of_its_author(function: type[Function]) -> None:
    found = deduced(function)
    assert [i.name for i in found.inputs] == NAMES[function]
    several = [i.name for i in found.inputs if isinstance(i, ListSpec)]
    assert several == [n for n in NAMES[function] if n in {"others", "xs"}]


def test_what_the_only_caller_leaves_to_a_default_is_that_first() -> None:
    found = deduced(Wrapped)
    assert literals(found)["scale"][0] is None and len(literals(found)["scale"]) > 1
    assert literals(found)["final"] == (False, True)
    (state,) = [i for i in found.inputs if i.name == "state"]
    assert isinstance(state, TensorSpec) and state.optional


@pytest.mark.parametrize(("function", "name"), [(Wrapped, "k"), (Annotated, "alpha")])
def test_what_a_wrapper_casts_or_annotates_as_an_integer_is_one(function: type[Function], name: str) -> None:
    assert type(literals(deduced(function))[name][0]) is int


@pytest.mark.parametrize("function", ORDER)
def test_two_invented_numbers_differ(function: type[Function]) -> None:
    first, second = (choices[0] for choices in literals(deduced(function)).values())
    assert (second - first) * ORDER[function] > 0


def test_parameters_that_are_passed_are_those_of_the_module() -> None:
    net = next(i for i in deduced(WithParameters).inputs if isinstance(i, ObjectInput))
    assert net.parameters == "params"


class Told(Function):
    """Runs at all shapes that broadcast; a docstring and the names of sizes tell which are meant."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
        (b, _, heads, d), e = k.shape, v.shape[-1]
        kept(ctx, q, k, v, bias)
        return q.sum() * b + k.sum() * heads + v.sum() * d + bias.sum() * e

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return tuple(grad.new_ones(s) * grad for s in ctx.shapes)


def told(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    """Apply it.

    Args:
        q (torch.Tensor): queries of shape `[b, t, heads, d]`.
        v: values,
            of shape (b, t, heads, e)
        bias (Optional[torch.Tensor]): one of each head, [heads]. Default: None.
    """
    return Told.apply(q, k, v, bias)


def test_sizes_that_the_author_names_alike_are_one() -> None:
    q, k, v, bias = (i.shape for i in deduced(Told).inputs if isinstance(i, TensorSpec))
    assert (k[0], k[2], k[3]) == (q[0], q[2], q[3])
    assert bias == (q[2],) and v[:3] == q[:3] and v[3] != q[3]
