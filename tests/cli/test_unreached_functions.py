"""Functions that no name of a module leads to: each is named as unchecked, skipped or verified elsewhere."""

import json
import textwrap

import pytest
import verdicts_only

HEAD = """
    import functools
    import torch
    from torch.autograd import Function
"""

RIGHT = """
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


IN_A_TABLE = "TABLE = {2.0: scaled(2.0)}\n"
NAMED = "tripled = scaled(3.0)\n"
NAMED_IN_A_CLASS = "class Tripled:\n    tripled = staticmethod(scaled(3.0))\n"

CUBED = "cubed: {inputs: {x: [n]}}"

MODULES = {
    "made.py": ((RIGHT, MADE), ""),
    "in_a_table.py": ((MADE, IN_A_TABLE), ""),
    "named.py": ((MADE, NAMED), ""),
    "named_in_a_class.py": ((MADE, NAMED_IN_A_CLASS), ""),
    "heir.py": ((MADE, HEIR), ""),
    "renamed.py": ((MADE, RENAMED), ""),
    "half_an_heir.py": ((MADE, HALF_AN_HEIR), ""),
    "nested.py": ((NESTED,), ""),
    "left_out.py": ((RIGHT, MADE), "scaled.<locals>.Scaled: {skip: made for the docs}"),
    "wrapped.py": ((RIGHT, PAIR), CUBED),
    "wrapped_and_made.py": ((PAIR, MADE), CUBED),
    "skipped.py": ((PAIR,), "cubed: {skip: slow}"),
    "opaque_in_a_wrapper.py": ((NO_INPUTS,), "opaque: {inputs: {x: [n]}}"),
}
"""By file, what is in it and what its spec says."""

EXPECTED = {
    # made by a factory, or held by a container: named as unchecked
    "made.py": {"Double": "passed", "scaled.<locals>.Scaled": "unchecked"},
    "in_a_table.py": {"scaled.<locals>.Scaled": "unchecked"},
    # a name of its `apply` is a target
    "named.py": {"tripled": "failed"},
    "named_in_a_class.py": {"Tripled.tripled": "failed"},
    # a class statement is verified in an heir or under another name; a backward that an heir replaces is not
    "heir.py": {"Tripled": "failed"},
    "renamed.py": {"Tripled": "failed"},
    "half_an_heir.py": {"Tripled": "passed", "scaled.<locals>.Scaled": "unchecked"},
    "nested.py": {"Layer.Inner": "failed"},
    "left_out.py": {"Double": "passed", "scaled.<locals>.Scaled": "skipped"},
    # what a named wrapper applies is verified there, and nothing else is
    "wrapped.py": {"Double": "passed", "cubed": "passed"},
    "wrapped_and_made.py": {"cubed": "passed", "scaled.<locals>.Scaled": "unchecked"},
    "skipped.py": {
        "cubed": "skipped",
        "pair.<locals>.Forth": "unchecked",
        "pair.<locals>.Back": "unchecked",
    },
    "opaque_in_a_wrapper.py": {"opaque": "passed"},
}


@pytest.fixture(scope="module")
def here(place):
    made = place("compiled")
    for file, (parts, entry) in MODULES.items():
        (made.folder / file).write_text("\n".join(map(textwrap.dedent, (HEAD, *parts))))
        if entry:
            text = f"gradverify: 1\nmodule: {file}\nfunctions:\n  {entry}\n"
            (made.folder / file).with_suffix(".gradverify.yaml").write_text(text)
    return made


@pytest.fixture(scope="module")
def found(here):
    ran = here("check", *MODULES, "--format", "json", **verdicts_only.VARIABLES)
    assert ran.code == 1
    statuses = {file: {} for file in MODULES}
    for target in json.loads(ran.out)["targets"]:
        statuses[target["file"]][target["name"]] = target["status"]
    return statuses


@pytest.mark.parametrize("file", EXPECTED)
def test_what_has_no_name_is_verified_elsewhere_or_named_as_unchecked(found, file):
    assert found[file] == EXPECTED[file]


@pytest.mark.parametrize(
    ("target", "code"),
    [("made.py", 1), ("left_out.py", 0), ("wrapped.gradverify.yaml", 0), ("skipped.py", 1)],
)
def test_what_is_unchecked_is_not_green(here, target, code):
    assert here("check", target, "-j", "1").code == code
