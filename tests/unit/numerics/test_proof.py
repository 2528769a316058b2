"""The certificate: closes on right backwards, never on a wrong one."""

import pytest
import torch
from extent import extent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import Function

from gradverify.verifier.numerics.probes import POOL
from gradverify.verifier.numerics.problem import VjpProblem
from gradverify.verifier.numerics.proof import certify

RTOL = 1e-7


class Faulty(Function):
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

    def faulty(*tensors):
        planted = [Faulty.apply(t, fault) if k == which else t for k, t in enumerate(tensors)]
        return function(*planted)

    return faulty


def at(index, change):
    """A fault in one entry."""

    def fault(gradient):
        changed = gradient.contiguous().clone()
        flat = changed.view(-1)
        flat[index] = change(flat[index])
        return changed

    return fault


def test_smooth_maps_close(maps, smooth, seeds):
    closed = 0
    for seed in seeds:
        function, tensors = maps.drawn(smooth, seed)
        certificate = certify(maps.problem_of(function, *tensors), rtol=RTOL, key=seed)
        closed += certificate is not None and certificate.visible < 1e-6
    assert closed >= 2 * len(seeds) // 3  # some draws lie where forward is noisy


def test_second_order_closes(maps, smooth):
    function, tensors = maps.drawn(smooth, 1)
    problem = maps.problem_of(function, *tensors)
    generator = torch.Generator().manual_seed(3)
    u = torch.randn(problem.outputs.size, generator=generator, dtype=torch.float64)
    assert certify(VjpProblem(problem, problem.outputs.unflatten(u)), rtol=RTOL) is not None


FAULTS = {
    "scaled by 1 + 1e-6": lambda g: g * (1 + 1e-6),
    "twice": lambda g: 2 * g,
    "negated": lambda g: -g,
    "zero": torch.zeros_like,
    "one entry off by 1e-6": at(0, lambda v: v * (1 + 1e-6)),
    "float32": lambda g: g.float().to(g.dtype) if not g.is_complex() else g.to(torch.complex64).to(g.dtype),
    "flipped": lambda g: g.flip(-1),
    "small entries dropped": lambda g: torch.where(g.abs() < 1e-3, 0, g),
    "a constant added": lambda g: g + 1e-3,
    "sign only": lambda g: g / g.abs().clamp_min(1e-300),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_no_fault_is_certified(maps, right, fault):
    function, tensors = maps.drawn(right, 2)
    problem = maps.problem_of(function, *tensors)
    u = problem.outputs.unflatten(torch.full((problem.outputs.size,), 0.7, dtype=torch.float64))
    gradients = problem.pull_back(problem.primals, u).value
    for which in range(len(tensors)):
        planted = maps.problem_of(behind(function, FAULTS[fault], which), *tensors)
        before, after = gradients[which], planted.pull_back(planted.primals, u).value[which]
        if not before.isfinite().all() or (before - after).abs().max() <= 1e-8 * before.abs().max():
            continue  # the fault changes nothing here
        assert certify(planted, rtol=RTOL) is None, which


def test_a_fault_in_an_input_that_hardly_counts_is_seen(maps):
    """The share of `b` is 2^-13 of each row: among the others, no error of it would show."""
    x, b = torch.arange(3, 8).double(), torch.arange(9, 4, -1).double()

    def function(x, b):
        return x * 2**5 + b * 2**-8

    assert certify(maps.problem_of(function, x, b), rtol=RTOL) is not None
    assert certify(maps.problem_of(behind(function, lambda g: g * (1 + 1e-3), 1), x, b), rtol=RTOL) is None
    assert certify(maps.problem_of(behind(function, torch.zeros_like, 1), x, b), rtol=RTOL) is None


def test_an_error_that_hides_behind_a_large_input_is_not_certified(maps):
    """The share of `b` is 2^-22 of each row: its error is far below the residual that is allowed for all."""
    x, b = torch.arange(3, 8).double(), torch.arange(9, 4, -1).double()
    wrong = behind(lambda x, b: x * 2**14 + b * 2**-8, lambda g: g * (1 + 1e-5), 1)
    assert certify(maps.problem_of(wrong, x, b), rtol=RTOL) is None


def test_a_gradient_for_an_input_that_does_not_count_is_seen(maps):
    x, b = torch.rand(5).double() + 1, torch.rand(5).double() + 1
    assert certify(maps.problem_of(lambda x, b: x * 2 + 0 * b, x, b), rtol=RTOL) is not None
    wrong = behind(lambda x, b: x * 2 + 0 * b, lambda g: g + 1e-12, 1)
    assert certify(maps.problem_of(wrong, x, b), rtol=RTOL) is None


def test_a_wrong_small_output_is_seen_beside_a_large_one(maps):
    """Each output counts by its own relative error."""
    x = torch.rand(4).double() + 1
    faulty = behind(lambda x: x * 1e-6, lambda g: g * (1 + 1e-6))
    assert certify(maps.problem_of(lambda x: (x * 1e6, faulty(x)), x), rtol=RTOL) is None


def test_an_output_that_is_zero_beside_one_that_moves(maps):
    """Nothing of its own tells how much its rows count, and zero is no answer."""
    x = torch.rand(4, generator=torch.Generator().manual_seed(0)).double() + 1

    def function(x):
        return x.sin(), 0 * x

    assert certify(maps.problem_of(function, x), rtol=RTOL) is not None
    faulty = behind(lambda x: 0 * x, lambda g: g + 1e-6)
    assert certify(maps.problem_of(lambda x: (x.sin(), faulty(x)), x), rtol=RTOL) is None


def test_a_backward_wrong_only_where_other_grads_are_undefined_is_seen(maps):
    class Two(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, a, b):
            if a is None:
                return 4 * b
            return 2 * a + 3 * b if b is not None else 2 * a

    x = torch.rand(4).double() + 1
    assert certify(maps.problem_of(Two.apply, x), rtol=RTOL) is None


def test_a_flat_forward_closes_on_zeros_alone(maps):
    x = torch.tensor([1.5, 2.4, -0.6], dtype=torch.float64)
    assert certify(maps.problem_of(torch.floor, x), rtol=RTOL) is not None
    straight_through = behind(torch.floor, lambda g: g + 1e-9)
    assert certify(maps.problem_of(straight_through, x), rtol=RTOL) is None


def test_nothing_is_said_where_forward_jumps_or_rounds(maps):
    near = torch.tensor([1.5, 2.0001, -0.6], dtype=torch.float64)
    assert certify(maps.problem_of(torch.floor, near), rtol=RTOL) is None
    x = torch.rand(4).double() + 1.25
    assert certify(maps.problem_of(lambda x: (x.bfloat16() * 3).double(), x), rtol=RTOL) is None
    assert (
        certify(
            maps.problem_of(behind(lambda x: (x.bfloat16() * 3).double(), torch.zeros_like), x), rtol=RTOL
        )
        is None
    )


def test_a_steep_bend_is_left_to_the_second_level(maps):
    """lgamma near its pole: the first step is off by 1e-9, which is no fault of backward."""
    x = torch.tensor([0.08], dtype=torch.float64)
    assert certify(maps.problem_of(torch.lgamma, x), rtol=RTOL) is not None
    assert certify(maps.problem_of(behind(torch.lgamma, lambda g: g * (1 + 1e-7)), x), rtol=RTOL) is None


def test_a_coarser_level_excuses_nothing(maps):
    """An error of 1e-9 is below what the second level sees; where forward is smooth it does not speak."""
    x = torch.rand(12).double() + 0.3
    assert certify(maps.problem_of(torch.sin, x), rtol=RTOL) is not None
    assert certify(maps.problem_of(behind(torch.sin, lambda g: g * (1 + 1e-9)), x), rtol=RTOL) is None


def test_a_kink_nearby_is_stepped_over(maps):
    x = torch.tensor([1e-5, 0.7, -1.3, 2.0], dtype=torch.float64)
    assert certify(maps.problem_of(lambda x: x.abs() * x.cos(), x), rtol=RTOL) is not None


def test_large_vectors_reuse_the_pool(maps):
    x = torch.linspace(1, 2, POOL + 5, dtype=torch.float64)
    assert certify(maps.problem_of(torch.sin, x), rtol=RTOL) is not None
    wrong = behind(torch.sin, at(POOL + 3, lambda v: 2 * v))
    assert certify(maps.problem_of(wrong, x), rtol=RTOL) is None


@settings(max_examples=extent(15, 60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 4), st.integers(0, 5), st.sampled_from([1.0, -0.3, 1e-3, 1e-6]), st.integers(0, 50))
def test_one_wrong_jacobian_entry_is_seen(maps_once, row, column, error, seed):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    planted = matrix.clone()
    planted[row, column] += error

    class Product(Function):
        @staticmethod
        def forward(ctx, x):
            return matrix @ x

        @staticmethod
        def backward(ctx, grad_output):
            return planted.mT @ grad_output

    x = torch.randn(6, generator=generator, dtype=torch.float64)
    assert certify(maps_once.problem_of(Product.apply, x), rtol=RTOL, key=seed) is None
    planted.copy_(matrix)
    assert certify(maps_once.problem_of(Product.apply, x), rtol=RTOL, key=seed) is not None


TOLERANCES = {"rtol": RTOL, "atol": 1e-7}


def test_an_infinite_entry_does_not_move_and_has_no_gradient(maps):
    x = torch.tensor([0.3, -torch.inf, 1.2], dtype=torch.float64)
    assert certify(maps.problem_of(torch.exp, x), **TOLERANCES) is not None
    assert certify(maps.problem_of(behind(torch.exp, at(1, lambda _: 1e-9)), x), **TOLERANCES) is None


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_no_fault_is_certified_for_who_asks_for_tolerances_either(maps, fault):
    x, w = torch.rand(3, 4).double() + 0.3, torch.rand(4, 2).double() - 1.5
    for which in (0, 1):
        assert certify(maps.problem_of(behind(torch.mm, FAULTS[fault], which), x, w), **TOLERANCES) is None


def cells(x):
    """A continuous function that bends at every whole number, as interpolation in a grid does."""
    low = x.detach().floor()
    return (1 + low * low) * (1 - (x - low)) + (1 + (low + 1) ** 2) * (x - low)


def among_cells(count, nearest):
    """Inputs of which one lies as near to a whole number, and the others well inside."""
    x = torch.linspace(0.2, 0.7, count, dtype=torch.float64) + torch.arange(count) % 5 + 1
    x[count // 2] = 3 + nearest
    return x


def test_a_row_that_lies_on_a_kink_is_not_certified(maps):
    x = among_cells(4000, 0.0)
    assert certify(maps.problem_of(cells, x), rtol=RTOL) is None


def hinge(x, label):
    return torch.where(label == 1, x * x, 0.0) + torch.where(label == -1, x.sin(), 0.0)


LABELS = torch.tensor([1, -1, 1, 1, -1], dtype=torch.float64)


@pytest.mark.parametrize("reduced", [False, True])
def test_an_input_that_makes_forward_jump_is_moved_alone(maps, reduced):
    """A label that is compared: where it moves, forward is another function of the rest."""
    x = torch.tensor([0.4, 1.3, -0.8, 2.1, 0.7], dtype=torch.float64)

    def function(x, label):
        each = hinge(x, label) + 0 * label  # so that backward has something to say of the label
        return each.sum() if reduced else each

    assert certify(maps.problem_of(function, x, LABELS), rtol=RTOL) is not None
    for which, fault in ((0, at(2, lambda v: v * (1 + 1e-5))), (1, lambda g: g + 1e-9)):
        assert certify(maps.problem_of(behind(function, fault, which), x, LABELS), rtol=RTOL) is None


def test_each_input_alone_sees_a_backward_that_is_not_linear(maps):
    x = torch.tensor([0.4, 1.3, -0.8, 2.1, 0.7], dtype=torch.float64)
    clamped = behind(hinge, lambda g: g.clamp(-10, 10))
    assert certify(maps.problem_of(clamped, x, LABELS), rtol=RTOL) is None


def test_an_input_that_is_rounded_inside_is_not_flat(maps):
    """Its rows stay what they are for small steps, and zeros are none the less wrong."""
    x, y = torch.tensor([0.4, 1.3], dtype=torch.float64), torch.tensor([1.26], dtype=torch.float64)

    def function(x, y):
        return x.exp() + y.bfloat16().double() * 2**-9

    assert certify(maps.problem_of(behind(function, torch.zeros_like, 1), x, y), rtol=RTOL) is None


def test_noise_is_outgrown_by_a_longer_step(maps):
    """Rows that are small differences of large terms: their rounding is that of the terms."""
    x = torch.rand(300, generator=torch.Generator().manual_seed(1)).double() + 0.5

    def function(x):
        return (x.roll(1) + 1e3) * x - 1e3 * x

    assert certify(maps.problem_of(function, x), **TOLERANCES) is not None
    wrong = behind(function, at(7, lambda v: v * (1 + 1e-5)))
    assert certify(maps.problem_of(wrong, x), **TOLERANCES) is None


def test_a_small_error_in_small_rows_that_are_smooth_is_no_rounding(maps):
    x = torch.linspace(0.3, 1.2, 100, dtype=torch.float64)

    def function(x):
        return 1e-5 * x.sin()

    assert certify(maps.problem_of(function, x), **TOLERANCES) is not None
    wrong = behind(function, at(7, lambda v: v * (1 + 1e-6)))
    assert certify(maps.problem_of(wrong, x), **TOLERANCES) is None


def test_a_row_that_jumps_at_the_point_itself_is_not_certified_by_directions_that_miss_the_jump(maps):
    """As the gradient of the largest of several numbers at a tie: each direction moves another row."""
    x = torch.zeros(5, dtype=torch.float64)

    def function(x):
        largest = x.abs() == x.abs().max()
        return torch.where(largest, x.detach().sign(), 0.0) + 0 * x

    for asked in ({"rtol": RTOL}, TOLERANCES):
        assert certify(maps.problem_of(function, x), **asked) is None


def rounded(x):
    """Three rows that matter and three small ones, which are rounded to 1e-16 and move by 1e-5."""
    return torch.cat([3 * x, 1e-5 * ((x + 1e6) - 1e6)])


@pytest.mark.parametrize(
    ("function", "fault", "proven"),
    [
        (rounded, lambda g: g, True),
        (rounded, at(0, lambda g: g * (1 + 1e-6)), False),
        (lambda x: 1e-5 * ((x + 1e6) - 1e6), lambda g: g + 1e-2 * g.flip(0), False),
        (lambda x: 1e-5 * x, lambda g: g * (1 + 1e-7), False),
    ],
    ids=["right", "a row that matters", "small rows", "small rows without rounding"],
)
def test_small_rows_whose_derivative_is_another_at_each_step_may_be_rounding(maps, function, fault, proven):
    x = torch.tensor([0.7, 1.1, 1.9], dtype=torch.float64)
    problem = maps.problem_of(behind(function, fault), x)
    assert (certify(problem, rtol=RTOL, atol=1e-7) is not None) is proven
