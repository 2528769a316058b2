"""Which sources speak of complex numbers."""

import pytest

from gradverify.source import uses_complex

BODY = """
import torch

def helper(x):
    return {helper}

class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x{annotation}):
        N, C, H, W = x.shape
        ctx.angle = 0.5
        return {forward}

class Other(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.conj()
"""


@pytest.mark.parametrize(
    ("forward", "helper", "annotation", "expected"),
    [
        ("2 * x", "x", "", False),
        ("x.conj() * x", "x", "", True),
        ("torch.view_as_complex(x)", "x", "", True),
        ("x if x.dtype.is_complex else 2 * x", "x", "", True),
        ("helper(x)", "x.mH", "", True),
        ("2 * x", "x.mH", "", False),
        ("2 * x", "x", ": complex", True),
        ("x.to(torch.complex128)", "x", "", True),
    ],
)
def test_of_a_target_and_what_it_uses(forward, helper, annotation, expected):
    source = BODY.format(forward=forward, helper=helper, annotation=annotation)
    assert uses_complex(source, "F") is expected


def test_a_source_that_cannot_be_read():
    assert not uses_complex("class F(:", "F")
