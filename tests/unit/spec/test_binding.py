"""The second stage: the same sentences against live targets."""

from __future__ import annotations

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


def test_missing_targets(read):
    spec = read(
        "module: m.py\nfunctions:\n  free: {inputs: {x: [2]}}\n  Old: {skip: gone}\n"
        "  a: {target: 'm:Linaer', inputs: {x: [2]}}\n"
    )
    assert reported(spec, [target("Linear", attribute="Linear"), target("freed", attribute="freed")]) == [
        "3:3: `free` is not defined in m.py; did you mean `freed`?",
        "5:15: `m:Linaer` is not defined in m.py; did you mean `Linear`?",
    ]


def test_only_the_functions_of_one_module(folder, read):
    (folder / "n.py").write_text("f = 1")
    spec = read("functions: {m.py::free: {inputs: {x: [2]}}, n.py::f: {inputs: {x: [2]}}}")
    assert reported(spec, [target("free", X)], module=folder / "m.py") == []
    assert reported(spec, [target("free", X)], module=folder / "n.py") == ["1:45: `f` is not defined in n.py"]


def test_hooks_need_no_names(read):
    spec = read("module: m.py\nfunctions: {free: {arguments: 'm:make'}}")
    assert reported(spec, [target("free", X, W)]) == []


def test_live_parameters_order_the_inputs(read):
    case = plan_function(read(SPEC), "Derived", parameters=[Parameter("wieght"), X]).cases[0]
    assert [item.name for item in case.inputs] == ["wieght", "x"]
