"""Arguments that the user's own function builds, and tensors built without one."""

import pytest
import torch

from gradverify.model import Case, Effort, Parameter, Point, TensorInput
from gradverify.model.case import DECADES_FROM, points_of
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.arguments import show_value
from gradverify.verifier.inputs.native_values import call_hook
from gradverify.verifier.inputs.tensors import build_tensor

NAMES = tuple(Parameter(name) for name in ("x", "weight", "mode"))
CASE = Case(id="n=3", seed=5, sizes=(("n", 3),))


def called(hook, draw=0, names=NAMES):
    return call_hook(hook, CASE, draw, "cpu", names)


def random_pair(generator, device, dtype, n):
    x = torch.randn(n, generator=generator, device=device, dtype=dtype)
    return x, torch.ones(n, dtype=dtype)


def test_a_tuple_is_the_arguments():
    result = called(random_pair)
    assert isinstance(result, Returned)
    assert [a.name for a in result.value] == ["x", "weight"]
    assert [a.differentiable for a in result.value] == [True, True]
    assert result.value[0].value.shape == (3,)
    assert not result.value[0].value.requires_grad


def test_keywords_follow_by_name():
    result = called(lambda g, device, dtype, n: (random_pair(g, device, dtype, n), {"mode": "sum"}))
    assert isinstance(result, Returned)
    assert [(a.name, a.differentiable) for a in result.value] == [
        ("x", True),
        ("weight", True),
        ("mode", False),
    ]
    assert result.value[2].value == "sum"


def test_tensors_that_require_grad_are_the_differentiable_ones():
    def hook(generator, device, dtype, n):
        x, weight = random_pair(generator, device, dtype, n)
        return x, weight.requires_grad_()

    assert [a.differentiable for a in called(hook).value] == [False, True]


def test_what_is_beyond_goes_to_the_variadic_parameter():
    names = (Parameter("run"), Parameter("tensors", variadic=True))
    result = called(lambda g, device, dtype, n: ("relu", torch.ones(n), torch.ones(2)), names=names)
    assert isinstance(result, Returned)
    assert [(a.name, a.differentiable) for a in result.value] == [
        ("run", False),
        ("tensors[0]", True),
        ("tensors[1]", True),
    ]


def test_integers_are_not_differentiated():
    result = called(lambda g, device, dtype, n: (torch.arange(n), torch.ones(n)))
    assert [a.differentiable for a in result.value] == [False, True]


def test_the_same_seed_gives_the_same_arguments_and_another_draw_others():
    first, again, other = called(random_pair), called(random_pair), called(random_pair, draw=1)
    assert torch.equal(first.value[0].value, again.value[0].value)
    assert not torch.equal(first.value[0].value, other.value[0].value)


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (lambda *_, **__: torch.ones(2), "returned Tensor: return the arguments as a tuple"),
        (lambda *_, **__: None, "returned NoneType"),
        (lambda *_, **__: {"x": 1}, "returned dict"),
        (lambda *_, **__: ((1,), {"wieght": 2}), "`wieght`"),
        (lambda *_, **__: (1, 2, 3, 4), "4 arguments"),
    ],
)
def test_a_wrong_return_is_reported(hook, said):
    result = called(hook)
    assert isinstance(result, Raised)
    assert said in result.error.message


def test_what_a_hook_raises_comes_back_as_a_value():
    def hook(generator, device, dtype, n):
        raise LookupError("no data set here")

    result = called(hook)
    assert isinstance(result, Raised)
    assert (result.error.type, result.error.message) == ("LookupError", "no data set here")


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "int64", "bool"])
def test_every_dtype_and_shape_is_built_and_repeats_itself(shape, dtype):
    spec = TensorInput("x", shape, dtype=dtype, range=(0, 9) if dtype == "int64" else None)
    first, again = (build_tensor(spec, 3, Point.TYPICAL, 0, "cpu") for _ in range(2))
    assert first.shape == shape
    assert first.dtype is getattr(torch, dtype)
    assert torch.equal(first, again)


def test_points_follow_what_is_declared():
    plain = Case(id="base", seed=0, inputs=(TensorInput("x", (2,)),))
    both = Case(id="base", seed=0, inputs=(TensorInput("x", (2,), range=(0.0, 1.0), special=(0.5,)),))
    typical = ((Point.TYPICAL, 0), (Point.TYPICAL, 1))
    hooked = Case(id="base", seed=0, hook="module:build")
    special = ((Point.SPECIAL, 1), (Point.SPECIAL, 2))
    assert points_of(plain) == (*typical, *((Point.WIDE, draw) for draw in (1, 2, 3)), *special)
    assert points_of(both) == (
        *typical,
        (Point.WIDE, 0),
        (Point.WIDE, DECADES_FROM),
        (Point.SPECIAL, 0),
        *special,
    )
    labels = TensorInput("i", (2,), dtype="int64", range=(0, 3), special=(-100,))
    assert (Point.SPECIAL, 0) in points_of(Case(id="base", seed=0, inputs=(labels,)))
    assert points_of(hooked) == typical
    assert points_of(plain, Effort.QUICK) == typical
    assert len(points_of(plain, Effort.THOROUGH)) == 6 + 2 * 5


def test_small_tensors_are_shown_in_full():
    assert show_value(torch.tensor([[0.1, -2.0]], dtype=torch.float64)) == "[[0.1, -2]]"
    assert show_value(torch.zeros(5, 4, dtype=torch.float64)) == "float64[5, 4]"
    assert show_value("sum") == "'sum'"


class Silent:
    """As an author may write one that nothing may be asked of."""

    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")

    def __repr__(self):
        raise RuntimeError("no text")


def test_an_object_is_shown_in_one_line_whatever_it_says_of_itself():
    shown = show_value(torch.nn.Sequential(torch.nn.Tanh(), torch.nn.ReLU()))
    assert shown == "Sequential( (0): Tanh() (1): ReLU() )"
    assert show_value(Silent()) == "<Silent>"
    assert show_value("a\n  b") == repr("a\n  b")
