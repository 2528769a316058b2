"""The short proof: closes on right backwards, never on a wrong one, by as few calls as there can be."""

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch.autograd import Function

from gradverify.verifier.numerics.problem import CallProblem, Graph
from gradverify.verifier.numerics.short_proof import proves

TOLERANCES = {"rtol": 1e-7, "atol": 1e-7}


class Planted(Function):
    """Identity whose backward applies a fault to the gradient."""

    @staticmethod
    def forward(ctx, x, fault):
        ctx.fault = fault
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.fault(grad_output), None


def behind(function, fault, which=0):
    """The function, with a fault in the gradient of one of its inputs."""
    return lambda *xs: function(*(Planted.apply(x, fault) if k == which else x for k, x in enumerate(xs)))


def one_entry(factor):
    def fault(gradient):
        changed = gradient.clone()
        changed.view(-1)[0] *= factor
        return changed

    return fault


FAULTS = {
    "scaled by 1 + 1e-6": lambda g: g * (1 + 1e-6),
    "twice": lambda g: 2 * g,
    "negated": lambda g: -g,
    "zero": torch.zeros_like,
    "one entry off by 1e-6": one_entry(1 + 1e-6),
    "one entry zero": one_entry(0),
    "single precision": lambda g: g.to(torch.complex64 if g.is_complex() else torch.float32).to(g.dtype),
    "a constant added": lambda g: g + 1e-3,
}


@dataclass(frozen=True)
class Asked:
    """A problem and the one graph of it, as a drop-in has them."""

    problem: CallProblem
    graph: Graph

    def __getattr__(self, name):
        return getattr(self.problem, name)

    def back_each(self, cotangents):
        return self.problem.back_each(self.graph, cotangents)


@pytest.fixture
def asked(maps):
    def of(function, *tensors):
        problem = maps.problem_of(function, *tensors)
        return Asked(problem, problem.graph(problem.primals).value)

    return of


def proven(asked):
    return proves(asked, **TOLERANCES)


def drawn(*shape):
    return torch.rand(*shape, dtype=torch.float64) + 0.3


def test_two_evaluations_and_two_backwards_do_where_they_tell(asked):
    sine = asked(torch.sin, drawn(5))
    assert proven(sine)
    assert (sine.counter.forward, sine.counter.backward) == (3, 2)


def test_two_evaluations_more_take_what_curvature_adds(asked):
    steep = asked(lambda x: torch.exp(20 * x), drawn(5) + 1)
    assert proven(steep)
    assert (steep.counter.forward, steep.counter.backward) == (5, 2)


@pytest.mark.parametrize(
    ("function", "x", "forwards"),
    [
        (lambda x: torch.sin(300 * x), [0.5, 1.0, 1.7], 5),
        (lambda x: (x + 3e3) - 3e3, [0.5, 1.3, 0.9], 5),
    ],
    ids=["steep", "rounded"],
)
def test_more_evaluations_and_no_other_backward_where_two_do_not_do(asked, function, x, forwards):
    tensor = torch.tensor(x, dtype=torch.float64)
    difficult = asked(function, tensor)
    assert proven(difficult)
    assert (difficult.counter.forward, difficult.counter.backward) == (forwards, 2)
    for fault in ("scaled by 1 + 1e-6", "one entry off by 1e-6", "one entry zero", "a constant added"):
        assert not proven(asked(behind(function, FAULTS[fault]), tensor))


def test_each_of_several_outputs_may_take_more_evaluations(asked):
    def function(x):
        return 3 * x[:1], (x + 3e3) - 3e3

    x = torch.tensor([0.7, 1.1, 0.9, -1.3], dtype=torch.float64)
    assert proven(asked(function, x))
    assert not proven(asked(behind(function, FAULTS["one entry off by 1e-6"]), x))


def test_what_is_no_zero_is_not_proven_where_forward_is_flat(asked):
    x, w, calls = drawn(7), drawn(7), itertools.count()
    for fault in (lambda g: g + 1e-11, lambda g: g + 1e-22 * next(calls)):
        assert not proven(asked(behind(lambda x: x.floor() + 0 * x, fault), x))
        assert not proven(asked(behind(lambda x, w: x.floor() + w, fault), x, w))
    assert not proven(asked(behind(torch.floor, lambda g: 1e-9 * torch.ones_like(g)), x))


def test_many_rows_take_a_longer_step(asked):
    assert proven(asked(lambda x: x.cumsum(-1), torch.randn(40, 25, dtype=torch.float64)))
    near = behind(lambda x: x.cumsum(-1), one_entry(1 + 1e-5))
    assert not proven(asked(near, torch.randn(40, 25, dtype=torch.float64)))


@pytest.mark.parametrize(
    ("function", "forwards"),
    [(lambda x: x.cumsum(-1), 3), (lambda x: x.softmax(-1), 5)],
    ids=["sum", "softmax"],
)
def test_rounding_of_a_hundred_thousand_entries_does_not_keep_it_from_closing(asked, function, forwards):
    generator = torch.Generator().manual_seed(0)
    large = asked(function, torch.randn(224, 447, dtype=torch.float64, generator=generator))
    assert proven(large)
    assert (large.counter.forward, large.counter.backward) == (forwards, 2)
    for fault in ("scaled by 1 + 1e-6", "one entry zero"):
        faulty = behind(function, FAULTS[fault])
        assert not proven(asked(faulty, torch.randn(224, 447, dtype=torch.float64, generator=generator)))


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_no_fault_is_proven(asked, fault):
    x, w = drawn(3, 4), drawn(4, 2) - 1.8
    for which in (0, 1):
        assert not proven(asked(behind(torch.mm, FAULTS[fault], which), x, w))


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_nor_one_in_the_gradient_of_several_outputs_or_of_complex_numbers(asked, fault):
    assert proven(asked(lambda x: (x.sin(), x[:1].exp()), drawn(3, 4)))
    assert not proven(asked(behind(lambda x: (x.sin(), x[:1].exp()), FAULTS[fault]), drawn(3, 4)))
    z = torch.complex(drawn(3, 4), drawn(3, 4))
    assert proven(asked(lambda z: z * z, z))
    assert not proven(asked(behind(lambda z: z * z, FAULTS[fault]), z))


def test_an_input_that_counts_little_is_moved_alone(asked):
    x, b = drawn(4) * 10, drawn(4) * 0.05
    assert proven(asked(torch.add, x, b))
    assert not proven(asked(behind(torch.add, lambda g: g * (1 + 1e-3), 1), x, b))
    assert not proven(asked(behind(torch.add, torch.zeros_like, 1), x, b))
    assert proven(asked(lambda x, b: x * 2 + 0 * b, x, b))
    assert not proven(asked(behind(lambda x, b: x * 2 + 0 * b, lambda g: g + 1e-9, 1), x, b))


def _faintly(x, *others):
    return 1e3 * x + sum(1e-6 * other for other in others)


@pytest.mark.parametrize("count", [1, 2])
def test_zeros_for_inputs_that_count_far_too_little_to_be_seen_among_the_others(asked, count):
    """Their share of the derivative is below what two values tell: only moving them alone shows them."""
    x, others = drawn(4), [drawn(4) for _ in range(count)]
    still = asked(lambda x, *others: x + 0 * sum(others), x, *others)
    assert proven(still)
    assert (still.counter.forward, still.counter.backward) == (6, 2)
    assert proven(asked(_faintly, x, *others))
    for which in range(1, count + 1):
        assert not proven(asked(behind(_faintly, torch.zeros_like, which), x, *others))


def test_a_backward_that_is_not_linear_is_not_proven(asked):
    assert not proven(asked(behind(torch.sin, lambda g: g.clamp(-1, 1)), drawn(5)))
    assert not proven(asked(behind(torch.sin, lambda g: g + 1e-9), drawn(5)))


def test_nor_one_that_gives_something_else_each_time(asked):
    calls = iter(range(100))
    assert not proven(asked(behind(torch.sin, lambda g: g * (1 + 2**-52 * next(calls))), drawn(5)))


def test_one_output_alone_counts_as_well(asked):
    class Two(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, first, second):
            return first * 2 + second * 3 if first is not None and second is not None else None

    assert not proven(asked(Two.apply, drawn(3)))


def test_stairs_are_flat_between_their_jumps(asked):
    near = torch.tensor([1.49, 9.51, -0.6], dtype=torch.float64)
    assert proven(asked(torch.round, near))
    assert not proven(asked(behind(torch.round, lambda g: g + 1e-9), near))
    rounded = behind(lambda x: (x.bfloat16() * 3).double(), torch.zeros_like)
    assert not proven(asked(rounded, torch.rand(4).double() + 1.25))


@pytest.mark.parametrize(("x", "forwards"), [([1.2, 9.3, -0.7], 4), ([1.49, 9.51, -0.6], 5)])
def test_the_other_side_is_asked_where_a_row_moves_on_the_first(asked, x, forwards):
    flat = asked(torch.round, torch.tensor(x, dtype=torch.float64))
    assert proven(flat)
    assert (flat.counter.forward, flat.counter.backward) == (forwards, 2)


def test_a_forward_that_returns_the_same_memory_every_time_is_not_flat(asked):
    kept = torch.zeros(3, dtype=torch.float64)

    class Buffered(Function):
        @staticmethod
        def forward(ctx, x):
            return kept.copy_(2 * x)

        @staticmethod
        def backward(ctx, grad_output):
            return torch.zeros_like(grad_output)

    assert not proven(asked(Buffered.apply, drawn(3)))
    kept = torch.zeros(2, 3, dtype=torch.float64)
    turns = iter(range(100))

    class Alternating(Buffered):
        @staticmethod
        def forward(ctx, x):
            return kept[next(turns) % 2].copy_(2 * x)

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * 13 / 3  # what three values say where the first two are written over

    assert not proven(asked(Alternating.apply, drawn(3)))


def test_a_backward_that_writes_into_grad_output_is_judged_by_what_it_was_given(asked):
    assert not proven(asked(behind(lambda x: x.clone(), lambda g: g.mul_(2)), drawn(3)))


NOT_FINITE = [torch.tensor([0.3, value, 1.2], dtype=torch.float64) for value in (-torch.inf, torch.nan)]


def _exp(x):
    return torch.where(x.isfinite(), x, 0.0).exp() * x.isfinite()


@pytest.mark.parametrize("x", NOT_FINITE)
@pytest.mark.parametrize("there", [1.0, 1e-9, torch.nan])
def test_nothing_is_proven_where_what_is_not_finite_gets_a_gradient(asked, x, there):
    assert not proven(asked(behind(_exp, lambda g: torch.where(x.isfinite(), g, there)), x))


@pytest.mark.parametrize("x", NOT_FINITE)
def test_an_error_beside_what_is_not_finite_is_seen(asked, x):
    assert not proven(asked(behind(_exp, lambda g: g * (1 + 1e-6 * (x == 1.2))), x))


def test_nothing_is_proven_where_forward_is_not_finite_either(asked):
    assert not proven(asked(torch.exp, torch.tensor([0.3, torch.nan, 1.2], dtype=torch.float64)))


def _distance(x):
    return x.norm().reshape(1)


def _tilted(x):
    return (x.norm() + 1e-3 * x.sum()).reshape(1)


ORIGIN = torch.zeros(4, dtype=torch.float64)


@pytest.mark.parametrize("added", [1.0, 1e-9])
def test_another_gradient_is_not_proven_there(asked, added):
    assert not proven(asked(behind(_distance, lambda g: g + added), ORIGIN))


def test_zeros_are_not_proven_where_the_two_sides_differ(asked):
    assert not proven(asked(behind(_tilted, torch.zeros_like), ORIGIN))


def test_zeros_are_not_proven_where_the_two_sides_differ_far_away_alone(asked):
    def late(x):
        return (x.norm() + x.sum().sign() * (x.norm() > 1e-2)).reshape(1)

    assert not proven(asked(behind(late, torch.zeros_like), ORIGIN))


def nearest(values, places):
    """One of many values by the place nearest to a number: linear in them, piecewise constant in it."""
    return values[(places * 10).round().long().clamp(0, len(values) - 1)] + 0 * places


def test_a_map_that_jumps_in_many_rows_is_flat_where_each_jumps_once(asked):
    """Of 400 rows some jump on either side of x; one that rounds to bfloat16 jumps more often."""
    values, places = drawn(20), torch.rand(400, dtype=torch.float64) * 1.9
    assert proven(asked(nearest, values, places))
    assert not proven(asked(behind(nearest, lambda g: g + 1e-9, 1), values, places))
    many = torch.rand(400, dtype=torch.float64) + 1
    assert not proven(asked(behind(lambda x: x.bfloat16().double() * 3, torch.zeros_like), many))
