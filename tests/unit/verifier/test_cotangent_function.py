"""Which function of grad_output a backward has in its place, if any."""

from __future__ import annotations

import torch

from gradverify.verifier.checks.grad_output import Mixture, cotangent_function

TRUE = torch.tensor([[1.0, 2.0, -0.5], [0.25, -1.0, 4.0]], dtype=torch.float64)


def mixtures(function, *signs):
    sizes = (6.0, 2e-6, 1e6)
    sent = [torch.tensor(s, dtype=torch.float64) * size for s, size in zip(signs, sizes, strict=True)]
    return [Mixture(u, function(u) @ TRUE) for u in sent]


def test_a_function_that_differs_from_grad_output_is_named():
    assert cotangent_function(mixtures(torch.abs, [1, -1], [-1, 1], [1, 1]), TRUE) == "grad_output.abs()"


def test_nothing_is_in_its_place_where_grad_output_itself_fits():
    """At positive ones alone `abs` fits as well, and changes nothing."""
    assert cotangent_function(mixtures(lambda u: u, [1, 1], [1, 1], [1, 1]), TRUE) is None
