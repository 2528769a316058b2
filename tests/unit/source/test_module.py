"""What one reading of a module says: names that are bound, classes, comparisons, what a program uses."""

from __future__ import annotations

import pytest

from gradverify.source import Method, functions_of, module_of

TEXT = """
import numpy.linalg as la
from .near import one as other

def helper(x):
    import scipy
    return used(x) if x < 3 else missing(x)

class Outer:
    @decorated
    class Inner:
        def f(self):
            assert self, "no"

def used(x):
    return x

if __name__ == "__main__":
    helper(1)
"""


def test_imports_have_the_name_they_bind_and_what_it_stands_for():
    module = module_of(TEXT)
    assert module.imported == {"la": "numpy.linalg", "other": ".near.one", "scipy": "scipy"}
    assert [one.level for one in module.imports] == [0, 1, 0]


@pytest.mark.parametrize(
    ("name", "line", "imports", "otherwise"),
    [
        ("missing", 7, 0, False),
        ("scipy", 7, 1, False),
        ("scipy", 20, 0, False),
        ("x", 7, 0, True),
        ("used", 7, 0, True),
        ("la", 7, 1, False),
    ],
)
def test_what_binds_a_name_that_a_line_reads(name, line, imports, otherwise):
    binders = module_of(TEXT).binders(name, line)
    assert (len(binders.imports), binders.otherwise) == (imports, otherwise)


@pytest.mark.parametrize("head", ["from x import *", "globals()['a'] = 1", "def f(:"])
def test_nothing_is_known_of_names_where_any_may_be_bound(head):
    assert module_of(f"{head}\n").binders("a", 1) is None


def test_places():
    module = module_of(TEXT)
    assert module.classes == {"Outer": [(9, 13)], "Outer.Inner": [(10, 13)]}
    assert module.raising == {13}


def test_what_a_program_uses_by_its_functions():
    module = module_of(TEXT)
    assert [module.runs(name) for name in ("helper", "used", "Outer")] == [True, True, False]


def test_a_text_is_read_once_whether_it_comes_as_bytes_or_not():
    assert module_of(TEXT.encode()) is module_of(TEXT)
    assert module_of(b"# coding: latin-1\nx = '\xe9'\n").tree.body
    assert isinstance(module_of(b"x = '\xe9'\n").error, SyntaxError)
    assert module_of("def f(:").tree.body == []


FUNCTION = """
class F(Function):
    scale = 2

    def __init__(self, factor):
        self.factor = factor

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.left = 1
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w * ctx.left, g * x * ctx.right
"""


def test_what_a_function_keeps_and_reads():
    (function,) = functions_of(FUNCTION)
    assert (function.inputs, function.of_instances) == (("x", "w"), {"factor"})
    assert (function.forward.saved_counts, function.forward.attributes_known) == ({2}, {"left"})
    (taken,) = function.backward.unpacked
    assert (taken.count, taken.at_least, taken.names, taken.place.line) == (2, False, ("x", "w"), 16)
    places = {name: place.line for name, place in function.backward.attributes_read.items()}
    assert places == {"saved_tensors": 16, "left": 17, "right": 17}


def test_a_method_of_a_live_function():
    def refuse(ctx):
        """It."""
        raise NotImplementedError("no")

    assert Method.of(refuse).only_raises == "NotImplementedError"
    assert Method.of(len) is None
