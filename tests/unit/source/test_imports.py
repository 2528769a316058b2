"""Where one more import goes, and whether a name is bound above a line."""

from __future__ import annotations

import pytest

from gradverify.source import import_line, is_bound_above, module_of

USE = "class F(Function):\n    @staticmethod\n    @name\n    def backward(ctx, g):\n        return g\n"

HEADS = {
    "plain": ("import torch\n", "\n\n# of F\n"),
    "docstring and future": ('"""It."""\n\nfrom __future__ import annotations\n', "\n"),
    "docstring alone": ('"""It."""\n# And more.\n', "@decorated\n"),
    "nothing": ("# coding: utf-8\n", ""),
    "type checking": (
        "import torch\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy\n",
    ),
    "try": ("import torch\n", "try:\n    import numpy\nexcept ImportError:\n    numpy = None\n"),
    "try alone": ("", "try:\n    from torch.autograd import Function\nexcept ImportError:\n    pass\n"),
    "in brackets": ("from torch import (\n    nn,  # of it\n    cuda,\n)\n", "x = 1\n"),
    "semicolon": ("import torch; NUMBERS = [\n    1,\n]\n", ""),
    "other statements": ("import sys\nsys.path.append('.')\nimport torch\n", "LARGE = 3\n"),
    "def above imports": ("import torch\n", "def f():\n    pass\n\nimport torch.nn\n"),
}
"""What stands above a Function: up to where the import goes, and below that."""

AT_THE_END = {"type checking"}
"""Here the import goes below the second part's first line."""


@pytest.mark.parametrize("name", HEADS)
def test_an_import_stands_above_every_class_and_def_of_the_module(name):
    above, below = HEADS[name]
    text = f"{above}{below}{USE}\nimport late\n"
    line = import_line(text)
    assert line == above.count("\n") + 1 + (name in AT_THE_END)
    lines = text.splitlines()
    changed = "\n".join([*lines[: line - 1], "from x import name", *lines[line - 1 :]])
    assert is_bound_above(changed, "name", module_of(changed).tree.body[-2].lineno)


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
