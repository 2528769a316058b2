"""One file at a time: places, noqa, what cannot be read, and what is not even looked at."""

import subprocess
import sys
import time

import pytest

from gradverify.lint import lint_file, lint_source
from gradverify.lint.reading import is_suppressed

MODULE = """\
from torch.autograd import Function


class Scale(Function):
    @staticmethod
    def forward(ctx, x, k):
        return x * k

    @staticmethod
    def backward(ctx, g):
        return {returned}
"""


def lint(returned, around="{}"):
    return lint_source(around.format(MODULE.format(returned=returned)).encode(), "m.py")


def test_place():
    (found,) = lint("g * 2").findings
    assert (found.code, found.location.line, found.location.column) == ("GV803", 11, 9)
    assert found.source_line[8 : 8 + found.length] == "return g * 2"
    assert found.function == "Scale"


def test_columns_count_characters():
    source = MODULE.format(returned="g * 2, None").replace("return g", "é = 1; h = ctx.k; return g")
    (found,) = lint_source(source.encode(), "m.py").findings
    assert found.source_line[found.location.column - 1 :].startswith("ctx.k")


@pytest.mark.parametrize("ending", ["\r\n", "\n"])
def test_line_endings_and_a_byte_order_mark(ending):
    source = "\ufeff" + MODULE.format(returned="g").replace("\n", ending)
    (found,) = lint_source(source.encode(), "m.py").findings
    assert found.source_line == "        return g"


@pytest.mark.parametrize(
    ("line", "code", "suppressed"),
    [
        ("return g  # noqa", "GV803", True),
        ("return g  # noqa: GV803", "GV803", True),
        ("return g  # NOQA:gv803", "GV803", True),
        ("return g  # noqa: E501, GV803", "GV803", True),
        ("return g  # noqa: E501 GV803 - the rest is never taken", "GV803", True),
        ("return g  # noqa: GV811", "GV803", False),
        ("return g  # noqa: GV80", "GV803", False),
        ("return g", "GV803", False),
    ],
)
def test_noqa(line, code, suppressed):
    assert is_suppressed(line, code) == suppressed


def test_a_waived_finding_is_counted():
    linted = lint("g  # noqa: GV803")
    assert (linted.findings, [w.code for w in linted.waived]) == ((), ["GV803"])


def test_what_is_no_python():
    linted = lint_source(b"class Scale(Function):\n    def forward(ctx, x:\n", "m.py")
    assert linted.error.message.startswith("cannot be parsed: SyntaxError")
    assert (linted.error.location.line, linted.findings) == (2, ())
    assert "null bytes" in lint_source(b"x = 1\0", "m.py").error.message


def test_what_cannot_be_read(tmp_path):
    assert "No such file" in lint_file(tmp_path / "m.py", "m.py").error.message


@pytest.mark.parametrize(
    ("base", "known"),
    [
        ("torch.autograd.Function", True),
        ("autograd.Function", True),
        ("F", False),
        ("nn.Module", False),
        ("LossFunction", False),
    ],
)
def test_which_classes_are_functions(base, known):
    source = (
        f"import torch\nfrom torch import autograd, nn\nclass A({base}):\n    def forward(self, x): ...\n"
    )
    assert bool(lint_source(source.encode(), "m.py").functions) == known


def test_an_alias_and_a_base_of_the_module():
    source = (
        "import torch.autograd as ag\nfrom torch.autograd import Function as Base\n"
        "class A(Base):\n    @staticmethod\n    def backward(ctx, g):\n        return g, g\n"
        "class B(A):\n    @staticmethod\n    def forward(ctx, x):\n        return x\n"
        "class C(ag.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x\n"
    )
    linted = lint_source(source.encode(), "m.py")
    assert linted.functions == ("A", "B", "C")
    (found,) = linted.findings
    assert (found.function, found.code, found.location.line) == ("B", "GV803", 6)


def test_a_base_out_of_sight_keeps_quiet():
    source = MODULE.format(returned="g").replace("(Function)", "(Mixin, Function)")
    assert lint_source(source.encode(), "m.py").findings == ()


def test_light():
    code = (
        "import sys, gradverify.lint\n"
        "gradverify.lint.lint_source(b'class A(Function): pass', 'm.py')\n"
        "print([m for m in ('torch', 'numpy', 'yaml', 'pydantic', 'rich', 'typer') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_long_file_is_read_soon():
    classes = "\n\n".join(MODULE.replace("Scale", f"Scale{n}").format(returned="g, None") for n in range(50))
    since = time.perf_counter()
    assert len(lint_source(classes.encode(), "m.py").functions) == 50
    assert time.perf_counter() - since < 2  # 0.05 s on an idle machine
