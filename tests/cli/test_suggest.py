"""`gradverify suggest`: whole screens, and that what is shown is what a user can paste."""

import re
import subprocess

import forked_command
import pytest
import verdicts_only
import wrong_sign
from extent import long, with_long

SCREENS = {
    "suggest layer norm": (0, "LayerNorm"),
    "suggest for nobody": (2, "Linaer"),
}
MORE_SCREENS = {
    "suggest nothing for a long loop": (1, "Bisected"),
    "suggest power": (0, "Power"),
    "suggest nothing for NumPy": (1, "ByNumPy"),
    "suggest nothing for noise": (1, "Noise"),
    "suggest linear": (0, "Linear"),
    "suggest softmax": (0, "Softmax"),
    "suggest attention": (0, "Attention"),
    "suggest complex": (0, "ComplexMultiply"),
    "suggest in place": (0, "MaskedExp"),
    "suggest lookup": (0, "Lookup"),
}


@pytest.mark.parametrize("name", with_long(SCREENS, MORE_SCREENS))
def test_screen(place, screen, name):
    here = place("suggesting")
    code, target = (SCREENS | MORE_SCREENS)[name]
    ran = here("suggest", f"wrong.py::{target}", **verdicts_only.VARIABLES)
    assert ran.code == code, ran.err
    assert ran.screen(here.folder) == screen


def test_the_change_that_is_known_comes_before_a_derived_backward(place):
    here = place("suggesting")
    (here.folder / "sign.py").write_text(wrong_sign.SOURCE)
    (here.folder / "sign.gradverify.yaml").write_text(
        "gradverify: 1\nmodule: sign.py\nfunctions:\n  Product: {inputs: {x: [2, 3], y: [2, 3]}}\n"
    )
    shown = here("suggest", "sign.py::Product")
    assert shown.code == 0, shown.err
    change = shown.out.index("#   + return grad_output * y, grad_output * x\n")
    assert change < shown.out.index("    def backward(ctx, grad_output):")
    assert "sign.py:15" in shown.out[:change]


def test_one_function_at_a_time(place):
    ran = place("suggesting")("suggest", "wrong.py")
    assert ran.code == 2
    assert "module.py::Name" in ran.err


PASTED = with_long(["ComplexMultiply"], ["LayerNorm", "Linear", "Softmax", "Attention", "Lookup"])


@pytest.mark.parametrize("name", PASTED)
def test_pasted_over_the_wrong_one_it_passes(place, name):
    here = place("suggesting")
    failed = here("check", f"wrong.py::{name}", **verdicts_only.VARIABLES)
    assert failed.code == 1
    shown = here("suggest", f"wrong.py::{name}", **verdicts_only.VARIABLES).out
    method = "\n".join(line for line in shown.splitlines() if not line.startswith("#"))
    source = (here.folder / "wrong.py").read_text()
    start = source.index(f"class {name}(")
    old = re.compile(r"    @staticmethod\n    def backward.*?(?=\n\n\n|\Z)", re.DOTALL)
    pasted = source[:start] + old.sub(lambda _: method.strip("\n"), source[start:], count=1)
    imports = "from torch.autograd.function import once_differentiable\n"
    (here.folder / "wrong.py").write_text(pasted.replace("import numpy", imports + "import numpy", 1))
    passed = here("check", f"wrong.py::{name}")
    assert passed.code == 0, passed.out


OPERATORS = {
    "suggest for a custom op": (0, "scaled"),
    "suggest for an operator from its reference": (0, "torch.ops.suggested_library.cube"),
    "suggest for a custom op that sets nothing up": (0, "grown"),
    "suggest nothing for a module": (1, "Layer"),
    "suggest nothing for an operator that is not seen": (1, "unaided"),
    "suggest nothing for a callable": (1, "cubed"),
}


@long
@pytest.mark.parametrize("name", OPERATORS)
def test_screen_of_an_operator(place, screen, name):
    here = place("suggesting")
    code, target = OPERATORS[name]
    ran = here("suggest", f"operators.py::{target}", **verdicts_only.VARIABLES)
    assert ran.code == code, ran.err
    assert ran.screen(here.folder) == screen


def test_pasted_beside_its_operator_it_passes(place):
    here = place("suggesting")
    failed = here("check", "operators.py::scaled", "--dtype", "float64")
    assert failed.code == 1
    assert "`gradverify suggest operators.py::scaled` drafts a backward" in failed.out
    shown = here("suggest", "operators.py::scaled", **verdicts_only.VARIABLES).out
    written = "\n".join(line for line in shown.splitlines() if not line.startswith("#"))
    source = (here.folder / "operators.py").read_text()
    old = re.compile(r"def backward\(ctx, g\):\n(    .*\n)+")
    (here.folder / "operators.py").write_text(old.sub(lambda _: written.strip("\n") + "\n", source, count=1))
    passed = here("check", "operators.py::scaled", "--dtype", "float64")
    assert passed.code == 0, passed.out


SIZED = with_long(["Window"], ["TwoGroups", "Segments", "Patches", "MeanStd", "Differences"])


@pytest.mark.parametrize("name", SIZED)
def test_a_size_that_is_computed_is_written_as_it_is_computed(place, screen, name):
    here = place("suggesting")
    ran = here("suggest", f"sizes.py::{name}", **verdicts_only.VARIABLES)
    assert ran.code == 0, ran.err
    assert ran.screen(here.folder) == screen


def test_a_loop_over_a_size_is_called_one(place):
    ran = place("suggesting")("suggest", "sizes.py::Recurrence")
    assert ran.code == 1
    assert "forward loops over `t`" in ran.err
    assert "Error" not in ran.err


def test_it_is_offered_where_forward_does_not_loop(place):
    ran = place("suggesting")("check", "sizes.py::Recurrence", "sizes.py::Window")
    assert ran.code == 1
    for name, offered in (("Recurrence", False), ("Window", True)):
        assert (f"`gradverify suggest sizes.py::{name}` drafts a backward" in ran.out) is offered


DIFFS = {
    "--diff": ("Swapped", 0, "-        a, b = ctx.saved_tensors\n+        b, a = ctx.saved_tensors\n", ""),
    "derived": ("Dropped", 0, "-        return None, g * a\n", ""),
    "passes": ("Right", 0, "", "m.py::Right passed: there is nothing to change\n"),
    "no": (
        "Unsaved",
        1,
        "",
        "forward must save other values for the derived backward; `gradverify suggest",
    ),
}

TO_CHANGE = """\
import torch
from torch.autograd import Function


class Right(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a


class Swapped(Right):
    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * a, g * b


class Dropped(Right):
    @staticmethod
    def backward(ctx, g):
        a, _ = ctx.saved_tensors
        return None, g * a


class Unsaved(Function):
    @staticmethod
    def forward(ctx, a, b):
        return a * b

    @staticmethod
    def backward(ctx, g):
        return g, g
"""


@pytest.fixture
def changing(tmp_path):
    (tmp_path / "m.py").write_text(TO_CHANGE)
    entry = "{sizes: {n: 2, m: 3}, inputs: {a: [n, m], b: [n, m]}}"
    entries = "".join(f"  {name}: {entry}\n" for name in ("Right", "Swapped", "Dropped", "Unsaved"))
    (tmp_path / "m.gradverify.yaml").write_text(f"gradverify: 1\nmodule: m.py\nfunctions:\n{entries}")
    return tmp_path


@pytest.mark.parametrize("name", with_long(["--diff", "passes"], ["derived", "no"]))
def test_a_diff_that_git_applies_makes_it_right(changing, name):
    target, code, out, err = DIFFS[name]
    ran = forked_command.run(["suggest", f"m.py::{target}", "--diff"], changing)
    assert ran.code == code
    assert out in ran.out
    assert err in ran.err
    if out:
        subprocess.run(["git", "init", "-q"], cwd=changing, check=True)
        subprocess.run(["git", "apply", "-"], input=ran.out.encode(), cwd=changing, check=True)
        assert forked_command.run(["check", f"m.py::{target}"], changing).code == 0


def test_a_file_of_another_encoding_that_does_not_end(changing):
    text = "# -*- coding: latin-1 -*-\n# é\n" + TO_CHANGE[: TO_CHANGE.index("\n\n\nclass Unsaved")]
    (changing / "m.py").write_bytes(text.encode("latin-1"))
    spec = (changing / "m.gradverify.yaml").read_text()
    (changing / "m.gradverify.yaml").write_text(spec[: spec.index("  Unsaved")])
    ran = forked_command.run(["suggest", "m.py::Dropped", "--diff"], changing)
    assert ran.out.endswith("\n\\ No newline at end of file\n")
    assert forked_command.run(["suggest", "m.py::Dropped", "--write"], changing).code == 0
    assert (changing / "m.py").read_bytes().startswith("# -*- coding: latin-1 -*-\n# é\n".encode("latin-1"))


@pytest.mark.parametrize(("target", "code"), [("Dropped", 0), ("Unsaved", 1), ("Right", 0), ("Nobody", 2)])
def test_what_is_written_is_verified_again(changing, target, code):
    ran = forked_command.run(["suggest", f"m.py::{target}", "--write"], changing)
    assert ran.code == code
    changed = (changing / "m.py").read_text() != TO_CHANGE
    assert changed is (target == "Dropped")
    assert ("1 Function fixed, and verified again" in ran.out) is changed
