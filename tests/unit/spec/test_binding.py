"""The second stage: inputs against the parameters of live targets."""

# ruff: noqa: E501 - specs and messages read better unbroken, one row a line

from __future__ import annotations

import pytest

from gradverify.model import Parameter, Target, TargetKind
from gradverify.spec.binding import check_against_targets
from gradverify.spec.plan import plan_function


def target(name, *parameters, attribute="", kind=TargetKind.FUNCTION):
    return Target(name, attribute or name, kind, "m.py", 1, parameters)


X, W = Parameter("x"), Parameter("weight")
SPEC = "module: m.py\nfunctions:\n  Derived:\n    inputs: {x: [2], wieght: [2]}\n"


def reported(spec, targets, **options):
    return [
        f"{p.location.line}:{p.location.column}: {p.message}"
        for p in check_against_targets(spec, targets, **options)
    ]


def test_right_names(read):
    assert reported(read(SPEC), [target("Derived", X, Parameter("wieght"))]) == []


def test_wrong_names_have_the_place_in_the_file(read):
    assert reported(read(SPEC), [target("Derived", X, W)]) == [
        "4:22: `wieght` is not a parameter of Derived.forward(x, weight); did you mean `weight`?"
    ]


def test_missing_inputs_and_defaults(read):
    spec = read("module: m.py\nfunctions: {Derived: {inputs: {x: [2]}}}")
    assert (
        reported(
            spec, [target("Derived", X, Parameter("eps", has_default=True), Parameter("xs", variadic=True))]
        )
        == []
    )
    assert reported(spec, [target("Derived", X, W)]) == [
        "2:23: `weight` of Derived.forward(x, weight) has no default and needs an input"
    ]


def test_keyword_only_parameters_are_named_like_others(read):
    spec = read("module: m.py\nfunctions: {free: {inputs: {x: [2], eps: 1e-5}}}")
    eps = Parameter("eps", keyword_only=True)
    assert reported(spec, [target("free", X, eps, kind=TargetKind.CALLABLE)]) == []


def test_annotations_of_live_parameters(read):
    spec = read("module: m.py\nfunctions: {free: {inputs: {x: [2], size: [2]}}}")
    size = Parameter("size", annotation="torch.Size")
    (message,) = reported(spec, [target("free", X, size, kind=TargetKind.CALLABLE)])
    assert message.startswith(
        "2:43: `size` is annotated `torch.Size`, and a bare list is the shape of a tensor"
    )


HEAD = "module: m.py\nfunctions:\n"
LIVE = [
    target("Old", X, Parameter("n")),
    target("Gather", X, Parameter("index"), Parameter("mode")),
    target("Stack", Parameter("dim"), Parameter("xs", variadic=True)),
    target(
        "softmax",
        X,
        Parameter("dim", has_default=True, annotation="int"),
        Parameter("rest", variadic=True),
        Parameter("kept", has_default=True, annotation="'tuple[int, ...]'", keyword_only=True),
        kind=TargetKind.CALLABLE,
    ),
]
WRONG = [
    (HEAD + "  Old: {inputs: {x: [3]}}", "3:9: `n` of Old.forward(x, n) has no default and needs an input"),
    (HEAD + "  Gather: {inputs: {ctx: [2], x: [3], index: [3], mode: a}}", "3:21: `ctx` is not a parameter of Gather.forward(x, index, mode)"),
    (HEAD + "  softmax: {inputs: {x: [3], rest: [3]}}", "3:30: `rest` is the `*rest` of softmax(x, dim, *rest, kept): give it a list of tensors, `{list: […]}`"),
    (HEAD + "  Stack: {inputs: {dim: 0, xs: [3]}}", "3:28: `xs` is the `*xs` of Stack.forward(dim, *xs): give it a list of tensors, `{list: […]}`"),
    (HEAD + "  Stack: {inputs: {dim: 0, xs: {list: [[2]], optional: true}}}", "3:46: `xs` is the `*xs` of Stack.forward(dim, *xs), and never None"),
    (HEAD + "  Old: {arguments: 'm:f', inputs: {y: {avoid: [0]}}}", "3:36: `y` is not a parameter of Old.forward(x, n)"),
    (HEAD + "  softmax: {inputs: {x: [3], dim: [3]}}", "3:35: `dim` is annotated `int`, and a bare list is the shape of a tensor: write `{tuple: […]}`, or `{list: […]}` for several tensors"),
    (HEAD + "  softmax: {inputs: {x: [3], kept: [3]}}", "3:36: `kept` is annotated `'tuple[int, ...]'`, and a bare list is the shape of a tensor: write `{tuple: […]}`, or `{list: […]}` for several tensors"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), WRONG, ids=[expected for _, expected in WRONG])
def test_one_mistake_gives_one_error(read, text, expected):
    assert reported(read(text), LIVE) == [expected]


@pytest.mark.parametrize(
    ("annotation", "refused"),
    [
        ("list[int]", True),
        ("Optional[Tuple[int, int]]", True),
        ("typing.Sequence | None", True),
        ("int | Tensor", False),
        ("torch.Tensor", False),
        ("", False),
    ],
)
def test_what_a_bare_list_cannot_be(read, annotation, refused):
    spec = read("module: m.py\nfunctions: {free: {inputs: {x: [2]}}}")
    assert bool(reported(spec, [target("free", Parameter("x", annotation=annotation))])) is refused


def test_only_the_functions_of_one_module(folder, read):
    (folder / "n.py").write_text("f = 1")
    spec = read("functions: {m.py::free: {inputs: {x: [2]}}, n.py::f: {inputs: {x: [2]}}}")
    assert reported(spec, [target("free", X)], module=folder / "m.py") == []
    wrong = reported(spec, [target("f", W)], module=folder / "n.py")
    assert wrong[-1] == "1:64: `x` is not a parameter of f.forward(weight)"


def test_hooks_need_no_names(read):
    spec = read("module: m.py\nfunctions: {free: {arguments: 'm:make'}}")
    assert reported(spec, [target("free", X, W)]) == []


def test_live_parameters_order_the_inputs(read):
    case = plan_function(read(SPEC), "Derived", parameters=[Parameter("wieght"), X]).cases[0]
    assert [item.name for item in case.inputs] == ["wieght", "x"]
