"""What the user's own modules pass to a Function: noted from one run, and made the state of a search."""

import importlib.util
import sys

import pytest
import torch

from gradverify.model import Parameter
from gradverify.verifier.collect.discover import describe_target
from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.modules import observed_calls
from gradverify.verifier.collect.inference.passing import calls_noted, state_of

MODULE = """\
import torch
from torch import nn
from torch.autograd import Function
from torch.library import custom_op


class Scale(Function):
    @staticmethod
    def forward(ctx, x, w, factor, training):
        ctx.save_for_backward(x, w)
        ctx.factor = factor
        return x * w * factor

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w * ctx.factor, (g * x * ctx.factor).sum(0), None, None


scale = Scale.apply


def scaled(x, w, training):
    return scale(x, w, 2.5, training)


class Layer(nn.Module):
    def __init__(self, features, kernel=3):
        super().__init__()
        self.w = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return scaled(x, self.w, self.training)


class Elsewhere(nn.Module):
    def forward(self, x):
        raise RuntimeError("it does not use the Function, and is not run")


class Breaks(nn.Module):
    def forward(self, x):
        return scaled(x, x, 1).missing
"""


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "layers.py"
    path.write_text(MODULE)
    spec = importlib.util.spec_from_file_location("layers", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    sys.modules["layers"] = loaded
    yield loaded
    del sys.modules["layers"]


def test_a_module_that_reaches_the_function_is_built_and_run(module):
    target = describe_target(module.Scale, "Scale", "Scale", "layers.py")
    (observed,) = observed_calls(module.Scale, target, module)
    x, w, factor, training = observed.call
    assert (x.shape[-1:], factor, training) == (w.shape, 2.5, True)
    assert module.Scale.forward.__qualname__ == "Scale.forward"  # what noted the call is gone


def test_equal_sizes_are_one_symbol_and_integers_that_equal_one_are_sizes():
    parameters = [Parameter(n) for n in ("x", "index", "width", "kernel", "shape", "flag", "eps", "extra")]
    call = (torch.ones(7, 5), torch.tensor([3, 0, 4]), 7, 3, (5,), True, 1.0, None)
    state = state_of(call, parameters, frozenset({3}), invented=True)
    x, index, width, kernel, shape, flag, eps, extra = state.arguments
    assert index.bound == x.dims[1]  # below 5, the nearest size above 4
    assert (width.guess.kind, width.dims) == (Kind.SIZE, (x.dims[0],))
    assert (kernel.guess.kind, kernel.guess.choices, kernel.guess.found) == (Kind.LITERAL, (3,), True)
    assert (shape.guess.choices, shape.guess.found) == (((5,),), True)
    assert (flag.guess.choices, extra.guess.choices) == ((True,), (None,))
    assert (eps.guess.found, len(eps.guess.choices)) == (False, 1)
    assert state.shape(x) == (7, 5)


def test_what_no_state_can_hold_gives_none():
    assert (
        state_of((torch.ones(2), object()), [Parameter("x"), Parameter("y")], frozenset(), invented=False)
        is None
    )
    assert state_of((torch.ones(2),), [Parameter("x"), Parameter("y")], frozenset(), invented=False) is None
    left_out = [Parameter("x"), Parameter("y", has_default=True)]
    assert (
        state_of((torch.ones(2),), left_out, frozenset(), invented=False).arguments[1].guess.kind
        is Kind.OMITTED
    )


def test_calls_of_an_operator_are_noted_below_autograd():
    @torch.library.custom_op("gradverify_unit::twice", mutates_args=())
    def twice(x: torch.Tensor, k: int) -> torch.Tensor:
        return x * k

    x = torch.ones(3, requires_grad=True)
    ((noted, k),) = calls_noted(twice, lambda: torch.ops.gradverify_unit.twice(x.sin(), 2))
    assert (tuple(noted.shape), k) == ((3,), 2)
