"""How much each effort sweeps: cases, draws, what it says, and what a reproducing command repeats."""

import json
from pathlib import Path

import forked_command
import pytest
import verdicts_only

from gradverify.model import Effort
from gradverify.rules import RULES
from gradverify.spec.plan import plan_function
from gradverify.spec.read import read_spec

MODULE = """
import torch


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        wrong = 2.0 if x.shape == (2, 3, 5) else 1.0
        return grad_output * w * wrong, grad_output * x


class Bent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 6, 2 * x - 6, x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 1
"""
SPEC = """
gradverify: 1
module: scale.py
functions:
  Scale:
    sizes: {a: [4, 2], b: [1, 3], c: [2, 5]}
    inputs: {x: [a, b, c], w: [a, b, c]}
  Bent: {inputs: {x: [n]}}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scale.py").write_text(MODULE)
    (tmp_path / "scale.gradverify.yaml").write_text(SPEC)
    return tmp_path


def check(folder: Path, *words: str) -> tuple[dict, dict]:
    variables = forked_command.plain_environment(**verdicts_only.VARIABLES)
    done = forked_command.run(["check", *(words or ("scale.py",)), "--format", "json"], folder, variables)
    assert done.out, done.err
    report = json.loads(done.out)
    return report, {target["name"]: target for target in report["targets"]}


def ids(folder: Path, effort: Effort) -> list[str]:
    file = folder / "scale.gradverify.yaml"
    spec = read_spec(file, shown_path=file.name, known_codes=[rule.code for rule in RULES])
    return [case.id for case in plan_function(spec, "Scale", effort=effort).cases]


def test_cases_of_each_effort(folder):
    quick, normal, thorough = (ids(folder, effort) for effort in Effort)
    assert quick == normal[:1] == ["a=4,b=1,c=2"]
    assert thorough[: len(normal)] == normal
    assert len(set(thorough)) == len(thorough) == 8 > len(normal)


def test_quick_is_the_base_case_at_typical_values(folder):
    report, found = check(folder, "scale.py", "--effort", "quick")
    assert report["settings"]["effort"] == "quick"
    assert {name: target["status"] for name, target in found.items()} == {
        "Scale": "passed",
        "Bent": "passed",
    }
    assert found["Scale"]["cases"] == 1


def test_normal_sees_large_values(folder):
    _, found = check(folder, "scale.py")
    (finding,) = found["Bent"]["findings"]
    assert (finding["code"], finding["case"]["point"]) == ("GV101", "wide")


def test_thorough_sees_every_combination_and_its_command_reproduces(folder):
    assert "a=2,b=3,c=5" not in ids(folder, Effort.NORMAL)
    _, found = check(folder, "scale.py::Scale", "--effort", "thorough")
    (finding,) = found["Scale"]["findings"]
    assert finding["case"]["id"] == "a=2,b=3,c=5"
    words = finding["reproduce"].replace("'", "").split()[2:]
    assert words[1:3] == ["--effort", "thorough"]
    _, again = check(folder, *words)
    assert [f["code"] for f in again["Scale"]["findings"]] == ["GV101"]


DEGENERATE = """
gradverify: 1
module: wrong.py
functions:
  RowScale: {sizes: {b: 4, d: 3}, inputs: {x: [b, d], w: [b]}}
  Softmax: {sizes: {b: 4, d: 3}, inputs: {x: [b, d]}}
"""


def test_a_thorough_run_warns_of_degenerate_sizes_that_the_list_leaves_out(tmp_path):
    """A list of sizes says what is valid: what is wrong beside it is no error."""
    zoo = Path(__file__).parents[2] / "zoo" / "sizes"
    (tmp_path / "wrong.py").write_text((zoo / "wrong.py").read_text())
    (tmp_path / "wrong.gradverify.yaml").write_text(DEGENERATE)
    words = ("wrong.py::RowScale", "wrong.py::Softmax")
    _, found = check(tmp_path, *words)
    assert {(t["status"], len(t["findings"])) for t in found.values()} == {("passed", 0)}
    assert all(any("sizes 0 and 1" in text for text in t["left_out"]) for t in found.values())
    _, found = check(tmp_path, *words, "--effort", "thorough")
    warned = {
        name: [(f["case"]["id"], f["code"]) for f in t["findings"] if f["severity"] == "warning"]
        for name, t in found.items()
    }
    assert warned == {"RowScale": [("b=1,d=3", "GV412")], "Softmax": [("b=1,d=3", "GV412")]}
    assert {t["status"] for t in found.values()} == {"passed"}
    assert {t["left_out"][0] for t in found.values()} == {"other orders of sizes than those of its cases"}


def test_the_configuration_may_say_it(folder):
    (folder / "pyproject.toml").write_text('[tool.gradverify]\neffort = "quick"\n')
    assert check(folder)[0]["settings"]["effort"] == "quick"
    report, found = check(folder, "scale.py::Bent", "--effort", "normal")
    assert (report["settings"]["effort"], found["Bent"]["status"]) == ("normal", "failed")


def test_a_pass_says_what_quick_leaves_out(folder):
    done = forked_command.run(["check", "scale.py", "--effort", "quick"], folder)
    assert "quick effort" in done.out.splitlines()[0]
    assert done.out.count("quick: base case only") == 2
