"""What the user's own modules pass to a Function: noted from one run, and made the state of a search."""

import importlib.util
import sys

import pytest
import torch

from gradverify.model import Parameter
from gradverify.verifier.collect.discover import describe_target
from gradverify.verifier.collect.inference.candidates import Kind
from gradverify.verifier.collect.inference.objects import Names
from gradverify.verifier.collect.inference.passing import calls_noted
from gradverify.verifier.collect.inference.running import Observed, observed_calls
from gradverify.verifier.collect.inference.stated import state_of

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
    observed, *_ = observed_calls(module.Scale, target, module)
    x, w, factor, training = observed.call
    assert (x.shape[-1:], factor, training) == (w.shape, 2.5, True)
    assert module.Scale.forward.__qualname__ == "Scale.forward"  # what noted the call is gone


def stated(call, parameters, defaults=frozenset(), *, given=None, invented=False):
    """The state of a call whose tensors were all made up, unless it is said which."""
    made_up = tuple(v for v in call if isinstance(v, torch.Tensor)) if given is None else given
    return state_of(Observed(call, made_up, defaults, invented), parameters, Names(None, ""))


def test_equal_sizes_are_one_symbol_and_integers_that_equal_one_are_sizes():
    parameters = [Parameter(n) for n in ("x", "index", "width", "kernel", "shape", "flag", "eps", "extra")]
    call = (torch.ones(7, 5), torch.tensor([3, 0, 4]), 7, 3, (5,), True, 1.0, None)
    state = stated(call, parameters, frozenset({3}), invented=True)
    x, index, width, kernel, shape, flag, eps, extra = state.arguments
    assert index.bound == x.dims[1]  # below 5, the nearest size above 4
    assert (width.guess.kind, width.dims) == (Kind.SIZE, (x.dims[0],))
    assert (kernel.guess.kind, kernel.guess.choices, kernel.guess.found) == (Kind.LITERAL, (3,), True)
    assert (shape.guess.choices, shape.guess.found) == (((5,),), True)
    assert (flag.guess.choices, extra.guess.choices) == ((True,), (None,))
    assert (eps.guess.found, len(eps.guess.choices)) == (False, 1)
    assert state.shape(x) == (7, 5)


def test_what_no_state_can_hold_gives_none():
    two = [Parameter("x"), Parameter("y")]
    assert stated((torch.ones(2), object()), two) is None
    assert stated((torch.ones(2),), two) is None
    left_out = [Parameter("x"), Parameter("y", has_default=True)]
    assert stated((torch.ones(2),), left_out).arguments[1].guess.kind is Kind.OMITTED


def test_integers_that_belong_together_stay_what_they_were():
    x, order = torch.rand(4, 3), torch.tensor([2, 0, 3, 1])
    parameters = [Parameter(n) for n in ("x", "order", "inverse")]
    state = stated((x, order, order.argsort()), parameters, given=(x,))
    first, second, third = state.arguments
    assert (second.value, third.value) == ((2, 0, 3, 1), (1, 3, 0, 2))
    assert [d.symbol >= 0 for d in first.dims] == [False, True]  # four rows, of any width


def test_integers_of_a_form_are_drawn_again():
    x, ends = torch.rand(5, 3), torch.tensor([0, 2, 5])
    state = stated((x, ends), [Parameter("x"), Parameter("ends")], given=(x,))
    assert state.arguments[1].structure == "offsets"
    assert state.arguments[1].bound == state.arguments[0].dims[0]


def test_constants_are_drawn_in_the_domain_that_they_were_in():
    torch.manual_seed(0)
    x, share = torch.rand(4, 3).requires_grad_(), torch.rand(4, 3).softmax(-1)
    scale = (torch.rand(4, 3, requires_grad=True) + 1).exp()
    state = stated((x, share, scale), [Parameter(n) for n in ("x", "share", "scale")], given=(x,))
    assert [(a.structure, a.domain) for a in state.arguments[1:]] == [("simplex", "real"), ("", "positive")]


def test_calls_of_an_operator_are_noted_below_autograd():
    @torch.library.custom_op("gradverify_unit::twice", mutates_args=())
    def twice(x: torch.Tensor, k: int) -> torch.Tensor:
        return x * k

    x = torch.ones(3, requires_grad=True)
    ((noted, k),) = calls_noted(twice, lambda: torch.ops.gradverify_unit.twice(x.sin(), 2))
    assert (tuple(noted.shape), k) == ((3,), 2)
