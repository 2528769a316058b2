"""The kinds of mistakes that people report: each gets its code, and the change of its line that is right."""

import json
import re

import pytest
from extent import ALL_SEEDS, long, with_long

EXPECTED = {
    "MissingFactor": ("GV101", "return g * torch.cos(x * ctx.scale) * ctx.scale, None"),
    "WrongSaved": ("GV101", "return g * w * s * (1 - s), g * s"),
    "UnreducedGather": ("GV101", "out.index_put_((index,), g, accumulate=True)"),
    "IgnoresGrad": ("GV106", "return x.exp() * g"),
    "WritesGrad": ("GV401", "return g.mul(1 - x.tanh() ** 2)"),
    "WritesInAStatement": ("GV401", "g = g * x.cos()"),
    "WritesZeros": ("GV401", "g = g.clone()"),
    "WritesBeforeUse": ("GV401", "grad_x = g.mul(w)"),
    "TransposeForgotten": ("GV102", "return g @ w.mT, x.t() @ g"),
    "TransposedGradient": ("GV103", "return g @ w.t(), (g.t() @ x).mT"),
    "Squeezed": ("GV102", "return 2 * x * g"),
    "CutByAnAttribute": ("GV201", "d = g * (1 - torch.tanh(x * w)**2)"),
    "CutByWhatIsSaved": ("GV202", "s = torch.sigmoid(x)"),
    "CutByMode": ("GV202", "s = torch.sigmoid(x)"),
    "CutTwice": (
        "GV202",
        "r = torch.rsqrt((x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True) + ctx.eps)",
    ),
    "MeanNotDivided": ("GV101", "d = 2 * (x - y) * g / x.numel()"),
    "SignFlipped": ("GV101", "return g / b, -(g * a / (b * b))"),
    "WrongDim": ("GV101", "return y * (g - (g * y).sum(-1, keepdim=True))"),
    "SegmentPointer": ("GV101", "out[int(rowptr[i]) : int(rowptr[i + 1])] = g[i]"),
    "DetachedMean": ("GV101", "return g - g.mean(-1, keepdim=True)"),
    "FrozenByIndex": ("GV406", "gw = g.t() @ x if ctx.needs_input_grad[1] else None"),
    "FrozenTogether": (
        "GV406",
        "return (g * w if ctx.needs_input_grad[0] else None, g * x if ctx.needs_input_grad[1] else None)",
    ),
    "FrozenInOneBranch": ("GV406", "if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:"),
    "FrozenByName": ("GV406", "gb = g.sum(0) if nb else None"),
    "Temperature": ("GV101", "return y * (g - (g * y).sum(-1, keepdim=True)) / ctx.temperature, None"),
}
"""The code, and a line of the fix."""

SAMPLES = (
    *("WrongSaved", "MeanNotDivided", "SignFlipped", "WrongDim", "DetachedMean", "Temperature"),
    *("CutByWhatIsSaved", "CutTwice"),
)
"""Further samples of a kind that another one stands for: a factor or an operand; a derivative that is cut."""

KINDS = [name for name in EXPECTED if name not in SAMPLES]
CHECKED = [*KINDS, *SAMPLES] if ALL_SEEDS else KINDS


@pytest.fixture(scope="module")
def here(place):
    return place("kinds")


@pytest.fixture(scope="module")
def checked(here):
    ran = here("check", *(f"kinds.py::{name}" for name in CHECKED), "--format", "json")
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


def fix_of(target, code):
    fixes = [f["fix"] for f in target["findings"] if f["code"] == code and f["severity"] == "error"]
    return next(filter(None, fixes), None)


def test_all_of_them_are_expected(here, checked):
    source = (here.folder / "kinds.py").read_text()
    assert set(re.findall(r"^class (\w+)\(", source, re.MULTILINE)) == set(EXPECTED)
    assert set(checked) == set(CHECKED)


@pytest.mark.parametrize("name", with_long(KINDS, SAMPLES))
def test_the_fix_is_the_line_at_fault(checked, name):
    code, line = EXPECTED[name]
    fix = fix_of(checked[name], code)
    assert fix is not None
    added = [one[1:].strip() for one in fix["diff"].splitlines() if one[:1] == "+" and one[:3] != "+++"]
    assert line in added
    assert fix["verified_at"] > 1


def test_what_a_write_spoils_comes_after_it(here):
    ran = here("check", "kinds.py::WritesBeforeUse")
    assert ran.code == 1
    headlines = [line for line in ran.out.splitlines() if line.startswith("kinds.py:")]
    assert len(headlines) == 1 and "GV401 WritesBeforeUse: backward writes into grad_output" in headlines[0]
    assert "also       GV101 for `w`: the fix makes that right, too" in ran.out


@long
def test_with_the_fixes_all_pass(here, checked):
    assert checked
    ran = here("check", "kinds.py", "--fix", "--unsafe-fixes")
    assert ran.code == 0, ran.out
    assert f"{len(EXPECTED)} passed" in ran.out
