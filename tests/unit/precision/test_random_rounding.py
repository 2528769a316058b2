"""Monte-Carlo arithmetic on torch code: what it moves, by how much, and what it leaves alone."""

import pytest
import torch

from gradverify.verifier.numerics.round_off import RandomRounding

UNIT = 2.0**-8


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def run(function, *arguments, unit=UNIT):
    with RandomRounding(unit, torch.Generator().manual_seed(3)) as mode:
        return function(*arguments), mode


def test_one_operation_errs_by_at_most_its_unit():
    x = normal(1000)
    y, mode = run(torch.exp, x)
    error = (y / x.exp() - 1).abs()
    assert 0.9 * UNIT < error.max() <= UNIT
    assert not mode.foreign


@pytest.mark.parametrize(
    "moved",
    [
        lambda x: x.T.reshape(-1)[3:].clone(),
        lambda x: torch.gather(x, 1, torch.zeros(4, 2, dtype=torch.int64)),
        lambda x: x.amax(dim=0),
        lambda x: torch.where(x > 0, x, -x),
        lambda x: torch.cat([x, x]).relu(),
        lambda x: x.index_select(0, torch.tensor([1, 1])),
    ],
)
def test_moving_values_is_exact(moved):
    x = normal(4, 6)
    assert torch.equal(run(moved, x)[0], moved(x))


def test_minus_infinity_stays_and_makes_no_nan():
    x = normal(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
    y, _ = run(lambda x: torch.softmax(x, dim=-1), x)
    assert y.isfinite().all()
    assert (y[0, 1:] == 0).all()
    assert torch.equal(run(lambda x: x * 2, x)[0].isinf(), x.isinf())


def test_what_cancels_inside_a_fused_kernel_shows():
    """Backward of softmax for a constant gradient is 0, as the difference of two rounded numbers."""
    p = torch.softmax(normal(8, 8), dim=-1)
    for fused, arguments in (
        (torch.ops.aten._softmax_backward_data, (torch.ones_like(p), p, -1, torch.float64)),
        (torch.ops.aten.tanh_backward, (torch.ones_like(p), torch.full_like(p, 1 - 1e-9))),
    ):
        assert run(fused, *arguments)[0].abs().max() > 1e-6


def test_sums_err_in_every_term():
    x = torch.tensor([1e3, -1e3, 1.0], dtype=torch.float64)
    y, _ = run(torch.sum, x)
    assert abs(y.item() - 1) > UNIT


def test_backward_errs_too_and_writing_in_place():
    x = normal(5).requires_grad_()
    with RandomRounding(UNIT, torch.Generator().manual_seed(3)):
        (noisy,) = torch.autograd.grad((x * x * x).sum(), x)
    assert not torch.equal(noisy, 3 * x.detach() ** 2)
    assert torch.allclose(noisy, 3 * x.detach() ** 2, rtol=0.05)
    y, _ = run(lambda t: t.clone().mul_(2.0), x.detach())
    assert not torch.equal(y, 2 * x)


def test_user_code_draws_the_same_random_numbers_as_ever():
    torch.manual_seed(0)
    without = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(run(lambda: torch.rand(3, dtype=torch.float32) * 1)[0], without)


def test_complex_values_err_in_both_parts():
    z = torch.complex(normal(50), normal(50, seed=1))
    y, _ = run(lambda z: z * z, z)
    off = y / (z * z) - 1
    assert 0 < off.abs().max() <= 2**0.5 * UNIT
    assert off.imag.abs().max() > 0


def test_a_kernel_whose_steps_are_not_seen_is_distinguished():
    x = normal(1, 2, 4, 4)
    _, summed = run(torch.nn.functional.layer_norm, x, (4,))
    assert not summed.guessed
    _, fused = run(
        lambda x, grid: torch.nn.functional.grid_sample(x, grid, align_corners=False),
        x,
        normal(1, 3, 3, 2) / 4,
    )
    assert fused.guessed


def test_random_numbers_are_noticed_whatever_generator_draws_them():
    x = normal(5)
    assert not run(torch.sin, x)[1].draws
    assert run(lambda x: x * torch.rand(5, generator=torch.Generator().manual_seed(1)), x)[1].draws


def test_a_factorisation_errs_as_its_largest_entry_does():
    """The pivot of a singular matrix is a rounding of its largest entry, where an exact one were zero."""
    x = torch.tensor([[4.0, 8.0], [0.0, 0.0]], dtype=torch.float64)
    pivots = []
    for seed in range(4):
        with RandomRounding(UNIT, torch.Generator().manual_seed(seed)):
            pivots.append(torch.linalg.qr(x).R[1, 1].abs().item())
    assert all(UNIT / 100 < pivot < 32 * UNIT for pivot in pivots)
    assert len(set(pivots)) == len(pivots)
