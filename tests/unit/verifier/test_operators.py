"""Operators as targets: what their schema says, which are discovered, how their parameters are passed."""

import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor

from gradverify.api.messages import target_of
from gradverify.model import Parameter, TargetKind
from gradverify.verifier.infer.call_sites import Passed, call_sites
from gradverify.verifier.infer.facts import Facts
from gradverify.verifier.infer.guesses import guesses
from gradverify.verifier.infer.state import Kind
from gradverify.verifier.numerics.calling import returned_tensors
from gradverify.verifier.targets.discover import describe_target, discover, target_behind
from gradverify.verifier.targets.operators import by_name_last, defaults_of_schema, operator_of, with_keywords


@torch.library.custom_op("gradverify_unit::weighted", mutates_args=())
def weighted(x: Tensor, ws: list[Tensor], bias: Tensor | None, k: int = 2, *, mode: str) -> Tensor:
    return x.clone()


weighted.register_autograd(lambda ctx, g: (g, None, None, None))


@torch.library.custom_op("gradverify_unit::forward_only", mutates_args=())
def forward_only(x: Tensor) -> Tensor:
    return x.clone()


def test_the_schema_gives_names_types_and_defaults():
    target = describe_target(weighted, "weighted", "weighted", "ops.py")
    assert target.kind is TargetKind.CUSTOM_OP
    assert [(p.name, p.annotation, p.has_default, p.keyword_only) for p in target.parameters] == [
        ("x", "Tensor", False, False),
        ("ws", "List[Tensor]", False, False),
        ("bias", "Optional[Tensor]", False, False),
        ("k", "int", True, False),
        ("mode", "str", False, True),
    ]
    assert all(p.exact for p in target.parameters)
    assert defaults_of_schema(operator_of(weighted)) == {
        "x": ...,
        "ws": ...,
        "bias": ...,
        "k": 2,
        "mode": ...,
    }


def test_an_operator_is_one_overload_however_it_is_named():
    assert operator_of(torch.ops.gradverify_unit.weighted).definition is weighted
    assert operator_of(torch.ops.aten.mul) is None
    assert operator_of(torch.ops.aten.mul.Tensor).name == "aten::mul"
    assert not operator_of(forward_only).is_differentiable


def test_discovery_takes_what_has_a_backward_and_says_why_it_leaves_the_rest():
    module = sys.modules[__name__] if __name__ in sys.modules else _as_module()
    targets, passed_over = discover(module, "ops.py")
    assert [t.name for t in targets] == ["weighted"]
    (left,) = (p for p in passed_over if p.name == "forward_only")
    assert "no backward is registered" in left.reason


def _as_module():
    module = ModuleType(__name__)
    vars(module).update(weighted=weighted, forward_only=forward_only)
    return module


@pytest.mark.parametrize(
    ("schema_type", "kinds"),
    [
        ("Tensor", {Kind.FLOAT, Kind.INDEX, Kind.BOOL}),
        ("List[Tensor]", {Kind.LIST}),
        ("float", {Kind.LITERAL}),
        ("int", {Kind.LITERAL, Kind.SIZE}),
    ],
)
def test_nothing_is_tried_that_the_schema_refuses(schema_type, kinds):
    parameter = Parameter("eps", annotation=schema_type, exact=True)
    found = guesses(parameter, Facts(), Passed(), ...)
    assert {g.kind for g in found} == kinds
    literals = [choice for g in found if g.kind is Kind.LITERAL for choice in g.choices]
    assert not any(isinstance(choice, bool) for choice in literals)


def test_calls_by_their_own_name_and_through_torch_ops_are_call_sites():
    source = "def f(x):\n    return mul(x, 0.5) + torch.ops.mylib.mul(x, factor=2.5) + other(x, 7.0)\n"
    direct = frozenset({"mul", "torch.ops.mylib.mul"})
    assert call_sites(source, "", ("x", "factor"), direct)["factor"].literals == (0.5, 2.5)


def test_what_is_passed_by_name_alone_comes_last():
    parameters = [Parameter("x"), Parameter("a", has_default=True), Parameter("k", keyword_only=True)]
    assert with_keywords(lambda x, a=1, *, k: (x, a, k), parameters, ())(1, 2, 3) == (1, 2, 3)
    spread = [Parameter("x"), Parameter("xs", variadic=True), Parameter("k", keyword_only=True)]
    call = with_keywords(lambda x, *xs, k=0: (x, xs, k), spread, ("x", "xs", "k"))
    assert call(1, 2, 3, 4) == (1, (2, 3), 4)
    assert with_keywords(lambda x, *xs, k=0: (x, xs, k), spread, ("x", "xs"))(1, 2, 3) == (1, (2, 3), 0)
    assert by_name_last(["k", "x"], parameters) == ["x", "k"]


def test_the_class_behind_its_apply():
    class Twice(torch.autograd.Function):
        pass

    assert target_behind(Twice.apply) is Twice
    assert target_behind(print) is print


def test_messages_of_the_api_name_an_operator():
    assert target_of(weighted).name == "gradverify_unit::weighted"
    assert target_of(weighted).file.endswith("test_operators.py")


def test_results_in_dicts_and_tuples_are_found_in_their_order():
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    assert returned_tensors((a, 3)) == (a, 3)
    assert [len(t) for t in returned_tensors({"z": a, "y": (b, {"x": c})})] == [1, 2, 3]
