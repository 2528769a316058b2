"""Whether a name is bound above a line."""

from __future__ import annotations

import pytest

from gradverify.source import is_bound_above, module_of

USE = "class F(Function):\n    @staticmethod\n    @name\n    def backward(ctx, g):\n        return g\n"


@pytest.mark.parametrize(
    ("head", "is_bound"),
    [
        ("from x import name", True),
        ("import x as name", True),
        ("from x import *", True),
        ("try:\n    from x import name\nexcept ImportError:\n    pass", True),
        ("name = x.name", True),
        ("from x import name as other", False),
        ("def f():\n    from x import name", False),
        ("import x", False),
    ],
)
def test_a_name_is_bound_by_what_runs_above(head, is_bound):
    text = f"{head}\n{USE}"
    assert is_bound_above(text, "name", module_of(text).tree.body[-1].lineno) is is_bound
    assert not is_bound_above(f"{USE}{head}", "name", 2)
