"""From the inputs of a case to arguments: what is differentiated."""

from dataclasses import replace

import pytest
import torch

from gradverify.model import Case, ConcatInput, ListInput, ObjectInput, Point, TensorInput
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


def normal(generator, device, dtype, shape):
    return torch.randn(shape, generator=generator, device=device, dtype=dtype)


def test_no_two_inputs_cases_or_draws_share_what_make_draws():
    made = [TensorInput(name, (3,), make="m:f") for name in ("u", "v", "xs[0]", "xs[1]", "c[0]", "c[1]")]
    inputs = (*made[:2], ListInput("xs", tuple(made[2:4])), ConcatInput("c", tuple(made[4:])))

    def drawn(seed, draw):
        case = Case("base", seed, inputs=inputs)
        return [a.value for a in build_arguments(case, Point.TYPICAL, draw, "cpu", {"m:f": normal})]

    rows = [row for seed in (0, 1) for draw in (0, 1) for v in drawn(seed, draw) for row in v.reshape(-1, 3)]
    assert len({tuple(row.tolist()) for row in rows}) == 4 * len(made)
    assert all(map(torch.equal, drawn(0, 0), drawn(0, 0)))


def test_two_objects_of_one_class_draw_other_parameters():
    objects = tuple(ObjectInput(name, "m:Linear", (2, 2)) for name in ("a", "b"))
    case = Case("base", 0, inputs=objects)
    a, b = build_arguments(case, Point.TYPICAL, 0, "cpu", {"m:Linear": torch.nn.Linear})
    assert not torch.equal(a.value.weight, b.value.weight)
