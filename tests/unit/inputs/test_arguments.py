"""From the inputs of a case to arguments: what is differentiated."""

from dataclasses import replace

import pytest
import torch

from gradverify.model import Case, Point, TensorInput
from gradverify.verifier.inputs.arguments import build_arguments


def test_what_make_returns_is_differentiated_only_if_it_can_be():
    made = TensorInput("mask", (2,), make="m:f")
    live = {"m:f": lambda generator, device, dtype, shape: torch.zeros(shape, dtype=torch.bool)}
    case = Case("base", 0, inputs=(made,))
    (mask,) = build_arguments(case, Point.TYPICAL, 0, "cpu", live)
    assert not mask.differentiable
    asked = replace(case, inputs=(replace(made, requires_grad=True),))
    with pytest.raises(TypeError, match=r"`m:f` returned torch\.bool, which cannot require grad"):
        build_arguments(asked, Point.TYPICAL, 0, "cpu", live)
