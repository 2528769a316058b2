"""Functions that no name of a module leads to: each is named as unchecked, skipped or verified elsewhere."""

import json
import textwrap

import pytest

RIGHT = """
    import functools
    import torch
    from torch.autograd import Function

    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g
"""

MADE = """
    def scaled(factor):
        class Scaled(Function):
            @staticmethod
            def forward(ctx, x):
                return factor * x

            @staticmethod
            def backward(ctx, g):
                return g

        return Scaled.apply
"""

NESTED = """
    class Layer(torch.nn.Module):
        class Inner(Function):
            @staticmethod
            def forward(ctx, x):
                return 3 * x

            @staticmethod
            def backward(ctx, g):
                return 2 * g

        def forward(self, x):
            return Layer.Inner.apply(x)
"""

PAIR = """
    @functools.lru_cache(maxsize=None)
    def pair(factor):
        class Forth(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return factor * x**3

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return Back.apply(g, x)

        class Back(Function):
            @staticmethod
            def forward(ctx, g, x):
                ctx.save_for_backward(g, x)
                return 3 * factor * g * x**2

            @staticmethod
            def backward(ctx, h):
                g, x = ctx.saved_tensors
                return 3 * factor * h * x**2, 6 * factor * h * g * x

        return Forth

    def cubed(x):
        return pair(2.0).apply(x)
"""

NO_INPUTS = """
    class Handle:
        def __init__(self, secret):
            if hash(secret) != hash("k7x" + "q"):
                raise ValueError(secret)
            self.factor = 3.0

    HANDLES = [Handle("k7xq")]

    class Opaque(Function):
        @staticmethod
        def forward(ctx, x, handle):
            if type(handle) is not Handle:
                raise TypeError(handle)
            ctx.factor = handle.factor
            return ctx.factor * x

        @staticmethod
        def backward(ctx, g):
            return ctx.factor * g, None

    def opaque(x):
        return Opaque.apply(x, HANDLES[0])
"""


@pytest.fixture
def verdicts(place):
    here = place()

    def check(*parts, spec="", target="m.py"):
        source = "\n".join(map(textwrap.dedent, (RIGHT, *parts)))
        (here.folder / "m.py").write_text(source)
        if spec:
            text = f"gradverify: 1\nmodule: m.py\nfunctions:\n  {spec}\n"
            (here.folder / "m.gradverify.yaml").write_text(text)
        ran = here("check", target, "--format", "json")
        return {f["name"]: f["status"] for f in json.loads(ran.out)["targets"]}, ran.code

    return check


def test_a_function_made_by_a_factory_is_named_as_unchecked(verdicts):
    assert verdicts(MADE) == ({"Double": "passed", "scaled.<locals>.Scaled": "unchecked"}, 1)


def test_one_that_a_container_holds_is_named_as_unchecked(verdicts):
    found, code = verdicts(MADE, "TABLE = {2.0: scaled(2.0)}\n")
    assert (found["scaled.<locals>.Scaled"], code) == ("unchecked", 1)


@pytest.mark.parametrize(
    "holding", ["tripled = scaled(3.0)\n", "class Tripled:\n    tripled = staticmethod(scaled(3.0))\n"]
)
def test_a_name_of_its_apply_is_a_target(verdicts, holding):
    found, code = verdicts(MADE, holding)
    name = "Tripled.tripled" if "class" in holding else "tripled"
    assert (found, code) == ({"Double": "passed", name: "failed"}, 1)


HEIR = """
    class Tripled(scaled(3.0).__self__):
        pass
"""

RENAMED = """
    Tripled = scaled(3.0).__self__
    Tripled.__name__ = Tripled.__qualname__ = "Tripled"
"""

HALF_AN_HEIR = """
    class Tripled(scaled(3.0).__self__):
        @staticmethod
        def backward(ctx, g):
            return 3.0 * g
"""


@pytest.mark.parametrize("made", [HEIR, RENAMED])
def test_a_class_statement_is_verified_in_an_heir_or_under_another_name(verdicts, made):
    assert verdicts(MADE, made) == ({"Double": "passed", "Tripled": "failed"}, 1)


def test_a_backward_that_an_heir_replaces_is_unchecked(verdicts):
    found = {"Double": "passed", "Tripled": "passed", "scaled.<locals>.Scaled": "unchecked"}
    assert verdicts(MADE, HALF_AN_HEIR) == (found, 1)


def test_a_function_in_a_class_is_a_target(verdicts):
    assert verdicts(NESTED) == ({"Double": "passed", "Layer.Inner": "failed"}, 1)


def test_a_spec_leaves_one_out(verdicts):
    found, code = verdicts(MADE, spec="scaled.<locals>.Scaled: {skip: made for the docs}")
    assert (found, code) == ({"Double": "passed", "scaled.<locals>.Scaled": "skipped"}, 0)


@pytest.mark.parametrize("target", ["m.py", "m.gradverify.yaml"])
def test_what_a_named_wrapper_applies_is_verified_there(verdicts, target):
    found, code = verdicts(PAIR, spec="cubed: {inputs: {x: [n]}}", target=target)
    assert found.pop("Double", "passed") == "passed"
    assert (found, code) == ({"cubed": "passed"}, 0)


def test_what_a_named_wrapper_does_not_apply_is_unchecked(verdicts):
    found, code = verdicts(PAIR, MADE, spec="cubed: {inputs: {x: [n]}}")
    assert (found, code) == (
        {"Double": "passed", "cubed": "passed", "scaled.<locals>.Scaled": "unchecked"},
        1,
    )


def test_a_skipped_wrapper_verifies_nothing(verdicts):
    found, code = verdicts(PAIR, spec="cubed: {skip: slow}")
    assert code == 1
    assert found["pair.<locals>.Forth"] == found["pair.<locals>.Back"] == "unchecked"


def test_a_function_without_known_inputs_is_verified_through_its_wrapper(verdicts):
    assert verdicts(NO_INPUTS)[0]["Opaque"] == "unchecked"
    found, code = verdicts(NO_INPUTS, spec="opaque: {inputs: {x: [n]}}")
    assert (found, code) == ({"Double": "passed", "opaque": "passed"}, 0)
