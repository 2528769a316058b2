"""The noise in f: honest although single samples lie."""

import torch

from gradverify.verifier.numerics.jacobian import numerical_jacobian
from gradverify.verifier.numerics.problem import Layout
from gradverify.verifier.numerics.sampling import Sampler, noise_floor, own_noise, persistent_noise
from gradverify.verifier.numerics.tolerance import EPSILON

TWENTY_DRAWS = range(20)


def layout(count, dtype=torch.float64):
    return Layout.of([torch.zeros(count, dtype=dtype)])


def test_error_bounds_hold_although_some_samples_are_small_by_luck(maps):
    """Without pooling over columns and rows, a fifth of these entries lie outside ten times their error."""
    weights = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))

    def single(x):
        return (weights @ x.float().sin()).double()

    def double(x):
        return weights.double() @ x.sin()

    for seed in TWENTY_DRAWS:
        x = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        measured = numerical_jacobian(Sampler(maps.problem_of(single, x), single(x)))
        off = (measured.value - torch.func.jacrev(double)(x)).abs()
        assert (off <= 10 * measured.error).all()
        assert (measured.error <= 1e-2).all()


def test_a_zero_row_has_its_outputs_rounding():
    centre = torch.tensor([0.0, 2.0, -3.0, torch.inf], dtype=torch.float64)
    assert own_noise(centre, layout(4)).tolist() == [3 * EPSILON, 2 * EPSILON, 3 * EPSILON, 3 * EPSILON]
    assert own_noise(torch.zeros(2, dtype=torch.float64), layout(2)).tolist() == [0.0, 0.0]


def test_the_rounding_is_the_dtypes_own():
    centre = torch.tensor([2.0], dtype=torch.float64)
    assert own_noise(centre, layout(1, torch.float32)).item() == 2 * torch.finfo(torch.float32).eps


def test_one_kink_does_not_make_a_row_noisy():
    samples = torch.full((9, 1), 1e-15, dtype=torch.float64)
    samples[4] = 1.0
    own = torch.tensor([1e-16], dtype=torch.float64)
    assert noise_floor(samples, own, layout(1)).item() <= 1e-14


def test_what_shrinks_with_the_step_is_no_noise():
    own = torch.tensor([1e-16], dtype=torch.float64)
    wide = torch.tensor([1.0], dtype=torch.float64)
    kink = [torch.full((1, 1), 2.0**-k, dtype=torch.float64) for k in (10, 17, 23)]
    assert persistent_noise(kink, wide, own, layout(1)).item() <= 4e-16
    noise = [torch.full((1, 1), s, dtype=torch.float64) for s in (2e-8, 1e-8, 3e-8)]
    assert persistent_noise(noise, wide, own, layout(1)).item() == 6e-8
