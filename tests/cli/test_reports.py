"""What goes where: formats, files beside stdout, and where a run stops."""

import json
from xml.etree import ElementTree as ET

import pytest

from gradverify.report.json_v1 import SCHEMA

FLOAT32 = """\
import torch

class Coarse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos() * (1 + 1e-9)
"""

RESTLESS = """\
import tempfile
import torch

class Restless(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        print(object(), tempfile.mktemp())
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        print(ctx)
        return 3 * x * grad

class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return grad[object()]
"""
"""Prints and raises what is another text in every process."""


@pytest.fixture(scope="module")
def here(place):
    here = place("screens")
    (here.folder / "coarse.py").write_text(FLOAT32)
    (here.folder / "coarse.gradverify.yaml").write_text(
        "gradverify: 1\nmodule: coarse.py\nfunctions: {Coarse: {inputs: {x: [3]}}}\n"
    )
    (here.folder / "restless.py").write_text(RESTLESS)
    (here.folder / "restless.gradverify.yaml").write_text(
        "module: restless.py\nfunctions: {Restless: {inputs: {x: [n]}}, Refuses: {inputs: {x: [n]}}}\n"
    )
    return here


def test_formats_and_files(here):
    """One run: concise on stdout, the others in files, stopped by --maxfail, with durations."""
    options = ("--format", "concise", "--report", "json=o.json", "--report", "text=o.txt", "-vv")
    ran = here("check", "wrong.py", *options, "--maxfail", "2", "--durations", "1")
    assert ran.code == 1
    assert ran.out.splitlines() == [
        "wrong.py:5: GV101 Product[n=2] y[0]/b[0]: 2.000, expected 1.000 (2/4 wrong)",
        "wrong.py:27: GV102 Raises: backward raised AttributeError: 'tuple' object has no attribute 'T'",
        "wrong.py:30: Noisy: unchecked: not reached: --maxfail 2 stopped the run",
        "3 functions: 2 failed, 1 unchecked   GV101 x1, GV102 x1",
    ]
    assert ran.err.endswith(" s  wrong.py::Product\n")
    report = json.loads((here.folder / "o.json").read_text())
    assert (report["schema"], report["exit_code"]) == (SCHEMA, 1)
    assert [target.get("duration_s", 0) > 0 for target in report["targets"]] == [True, True, False]
    text = (here.folder / "o.txt").read_text()
    assert "Traceback (most recent call last):" in text
    assert "\x1b" not in text


def test_every_format_twice_the_same(here):
    """Two runs with the same seed: the same bytes, and case by case what the target is made of."""
    formats = {
        "json": "json",
        "junit": "xml",
        "sarif": "sarif",
        "github": "txt",
        "markdown": "md",
        "html": "html",
    }
    # In a process of its own the second time: what is forked has the same order of sets every time.
    for run, variables in (("1", {}), ("2", {"PYTHONHASHSEED": "7"})):
        reports = [w for name, end in formats.items() for w in ("--report", f"{name}=twice{run}.{end}")]
        ran = here(
            "check", "right.py", "wrong.py", "restless.py", *reports, "--format", "github", **variables
        )
        assert ran.code == 1
        assert ran.out.startswith("::error file=")
    for end in formats.values():
        one, two = (here.folder / f"twice{run}.{end}" for run in ("1", "2"))
        assert one.read_bytes() == two.read_bytes(), end
        assert str(here.folder) not in one.read_text(), end
    suites = ET.parse(here.folder / "twice1.xml").getroot()
    assert {case.get("name"): [c.tag for c in case] for case in suites.iter("testcase")} == {
        "Product[n=3]": [], "Scale[n=3]": [], "Scale[n=1]": [], "Legacy": ["skipped"], "Argmax": ["skipped"],
        "Product[n=2]": ["failure"], "Raises": ["error"], "Noisy": ["failure"],
        "Restless": ["failure"], "Refuses": ["error"],
    }  # fmt: skip
    html = (here.folder / "twice1.html").read_text()
    assert html.count("<svg viewBox") >= 3
    assert "RestlessBackward object at 0x..." in html
    assert "object object at 0x..." in html
    assert "constant-factor, factor 1.5" in html


@pytest.mark.parametrize("form", ["junit", "sarif", "github", "markdown", "html"])
def test_spec_errors_in_every_format(here, form):
    ran = here("check", "right.py", "--spec", "mistaken.yaml", "--format", form)
    assert ran.code == 2
    assert "did you mean" in ran.out
    assert ran.err == ""


def test_strict(here):
    plain = here("check", "coarse.py", "--format", "json")
    (target,) = json.loads(plain.out)["targets"]
    assert (plain.code, target["status"]) == (0, "passed")
    assert {finding["severity"] for finding in target["findings"]} == {"warning"}
    strict = here("check", "coarse.py", "--strict")
    assert strict.code == 1
    assert "1 failed   GV110 x1   1 failed by warnings alone (--strict)" in strict.out


def test_spec_errors_go_into_files_too(here):
    ran = here("check", "right.py", "--spec", "mistaken.yaml", "--report", "json=e.json")
    assert ran.code == 2
    assert len(json.loads((here.folder / "e.json").read_text())["errors"]) == 2


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ("json", "`json` is not FORMAT=PATH, with a format of text, concise, json, junit"),
        ("xml=o.xml", "is not FORMAT=PATH"),
        ("json=nowhere/o.json", "there is no folder `nowhere`"),
        ("json=.", "it is a folder"),
        ("json=right.py", "`right.py` is named like a module, a spec or a configuration"),
        ("json=right.gradverify.yaml", "`right.gradverify.yaml` is named like a module"),
        ("json=pyproject.toml", "`pyproject.toml` is named like a module"),
    ],
)
def test_files_that_cannot_be_written(here, report, words):
    ran = here("check", "right.py", "--report", report)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
