"""`--baseline`: what is known does not fail, what is new does, what is fixed or over is reported."""

import json

import pytest

SOURCE = """
from torch.autograd import Function


class Right(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Wrong(Right):
    @staticmethod
    def backward(ctx, grad):
        return 3 * grad
"""
FIXED = SOURCE.replace("3 * grad", "2 * grad")


@pytest.fixture
def here(place):
    here = place("screens")
    (here.folder / "two.py").write_text(SOURCE)
    return here


def check(here, baseline, *arguments):
    (here.folder / "known.toml").write_text(baseline)
    ran = here("check", "two.py", "--baseline", "known.toml", "--format", "json", *arguments)
    targets = {} if ran.code == 2 else {t["name"]: t for t in json.loads(ran.out)["targets"]}
    return ran, targets


def test_from_an_empty_baseline_to_a_fixed_finding(here):
    new, targets = check(here, "")
    assert (new.code, targets["Wrong"]["status"]) == (1, "failed")
    offered = new.err[new.err.index("[[known]]") :]
    assert 'target = "two.py::Wrong"\ncode = "GV101"\n' in offered

    (here.folder / "known.toml").write_text(offered)
    refused = here("check", "two.py", "--baseline", "known.toml")
    assert (refused.code, refused.out) == (2, "")
    assert "known.toml:5: `reason` must be a text that is not empty" in refused.err

    entry = offered.replace('reason = ""', 'reason = "issue 12"')
    known, targets = check(here, entry)
    assert (known.code, known.err) == (0, "")
    assert targets["Wrong"]["status"] == "xfailed"
    assert [f["expected"] for f in targets["Wrong"]["findings"] if f["severity"] == "error"] == [True]
    assert targets["Right"]["status"] == "passed"

    other, _ = check(here, entry.replace("GV101", "GV201"))
    assert other.code == 1

    (here.folder / "two.py").write_text(FIXED)
    fixed, targets = check(here, entry)
    assert (fixed.code, targets["Wrong"]["status"]) == (0, "passed")
    assert fixed.err == "gradverify: known.toml:1: GV101 of Wrong no longer occurs: remove the entry\n"
    part, _ = check(here, entry, "--select", "GV401")
    assert part.err == ""


def test_an_entry_ends_and_the_configuration_names_the_file(here):
    entry = '[[known]]\ntarget = "two.py::Wrong"\ncode = "GV101"\nreason = "old"\nuntil = 2020-01-01\n'
    gone = entry.replace("Wrong", "Gone").replace("2020", "2999")
    (here.folder / "known.toml").write_text(entry + gone)
    (here.folder / "pyproject.toml").write_text('[tool.gradverify]\nbaseline = "known.toml"\n')
    ran = here("check", "two.py")
    assert ran.code == 1
    assert "known.toml:1: GV101 of Wrong is no longer expected: the entry ended on 2020-01-01" in ran.err
    assert "known.toml:6: GV101 of Gone is in the baseline, but there is no such target" in ran.err


GOOD = '[[known]]\ntarget = "two.py::Wrong"\ncode = "GV101"\nreason = "old"\nuntil = 2999-01-01\n'
MISTAKES = {
    "known.toml:2: there is no file `tow.py`": GOOD.replace("two.py", "tow.py"),
    "known.toml:2: `two.py` is not module.py::Name": GOOD.replace("::Wrong", ""),
    "known.toml:3: there is no code `GV10`": GOOD.replace("GV101", "GV10"),
    "known.toml:5: `until` must be a date": GOOD.replace("2999-01-01", '"2999-01-01"'),
    "known.toml:1: `until` is missing": GOOD.replace("until = 2999-01-01", ""),
    "known.toml:4: unknown key `reson`; did you mean `reason`?": GOOD.replace("reason", "reson"),
    "known.toml:1: unknown key `knwon`": GOOD.replace("known", "knwon"),
    "known.toml:5:9: is not TOML": GOOD.replace("2999-01-01", "soon"),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes(here, words):
    (here.folder / "known.toml").write_text(MISTAKES[words])
    ran = here("check", "two.py", "--baseline", "known.toml", COLUMNS="300")
    assert (ran.code, ran.out, "Traceback" in ran.err) == (2, "", False)
    assert words in ran.err


def test_no_such_file(here):
    ran = here("check", "two.py", "--baseline", "none.toml")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "gradverify: the baseline `none.toml` cannot be read: No such file or directory\n"
