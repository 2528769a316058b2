"""Which functions of grad_output are chosen on purpose, and which nobody chooses."""

import pytest
import torch

from gradverify.verifier.checks.deliberate import CUT_OFF, chosen_of

SLOPES = torch.tensor([0.3, -1.2, 2.0, 0.7], dtype=torch.float64)
U = torch.tensor([0.5, -1.5, 0.25, 3.0], dtype=torch.float64)


def of(function):
    """What is found where backward gives the derivative times a function of grad_output, or one of both."""
    return [
        chosen_of(lambda us: SLOPES * function(us[0]), [U]),
        chosen_of(lambda us: function(SLOPES * us[0]), [U]),
    ]


@pytest.mark.parametrize(
    "function",
    [
        lambda u: u.clamp(-0.4, 0.4),
        lambda u: u / u.norm(),
        lambda u: u / (u.norm() + 1e-8),
        lambda u: u / u.abs().max(),
        lambda u: u * min(1.0, 2.0 / u.norm().item()),
        lambda u: u * (u.abs() > 1e-3),
        torch.tanh,
        torch.sign,
    ],
)
def test_what_is_cut_off_or_normalised_is_found(function):
    assert of(function) == [CUT_OFF, CUT_OFF]


def test_what_is_rectified_is_found():
    assert of(torch.relu) == ["it rectifies grad_output"] * 2


@pytest.mark.parametrize(
    "function",
    [
        lambda u: u,
        lambda u: u * u,
        torch.abs,
        lambda u: u * u / u,
        lambda u: u * u.abs(),
        lambda u: u + 1,
        lambda u: u * (u[0] != 0),
        lambda u: torch.where(u == 0, torch.nan, u),
        lambda u: u.abs().sqrt() * u.sign(),
    ],
)
def test_nothing_else_is_chosen(function):
    assert of(function) == ["", ""]


def test_a_backward_that_raises_or_gives_nothing_shows_nothing():
    assert chosen_of(lambda _: None, [U]) == ""
