"""`gradverify lint` as a user meets it: whole screens, exit codes, and what `check` says beside it."""

import json

import pytest

SCREENS = {
    "lint": (1, "lint", "refuses.py"),
    "lint concise": (1, "lint", ".", "--format", "concise", "--exclude", "broken.py"),
    "lint github": (1, "lint", "refuses.py", "--format", "github"),
    "lint json": (1, "lint", "refuses.py::Lerp", "--format", "json"),
    "lint syntax error": (2, "lint", "broken.py", "refuses.py::Lerp"),
    "lint nothing": (5, "lint", "plain.py"),
    "lint one right": (0, "lint", "refuses.py::Scale"),
    "lint help": (0, "lint", "--help"),
    "check beside lint": (0, "check", "beside.py"),
}


@pytest.mark.parametrize("name", SCREENS)
def test_screen(place, screen, name):
    here = place("lint")
    code, *arguments = SCREENS[name]
    ran = here(*arguments)
    assert ran.code == code, ran.err
    assert ran.screen(here.folder) == screen


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lint",), "nothing to lint: name a module"),
        (("lint", "absent.py"), "there is no file `absent.py`"),
        (("lint", "refuses.py::Lrp"), "defines no Function `Lrp`; did you mean `Lerp`?"),
        (("lint", "refuses.py::Lerp[n=3]"), "knows no case [n=3]"),
        (("lint", "refuses.py", "--select", "GV1"), "GV1 is no static rule"),
        (("lint", "refuses.py", "--ignore", "GV9999"), "no code starts with `GV9999`"),
    ],
)
def test_usage_errors(place, arguments, said):
    ran = place("lint")(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_ignored_codes_do_not_fail(place):
    ran = place("lint")("lint", "refuses.py", "--ignore", "GV8")
    assert ran.code == 0, ran.out


def test_the_configuration_ignores(place):
    here = place("lint")
    (here.folder / "pyproject.toml").write_text(
        '[tool.gradverify]\npaths = ["refuses.py"]\nignore = ["GV803"]\n'
    )
    ran = here("lint", "--format", "json")
    assert {f["code"] for f in json.loads(ran.out)["findings"]} >= {"GV809"}
    assert "GV803" not in ran.out
    (here.folder / "pyproject.toml").write_text('[tool.gradverify]\nselect = ["GV1"]\n')
    assert here("lint", "refuses.py").code == 1  # a selection for `check` does not switch lint off


def test_check_tells_a_cause_once(place):
    report = json.loads(place("lint")("check", "beside.py", "--format", "json").out)
    codes = {t["name"]: [(f["code"], f["severity"]) for f in t["findings"]] for t in report["targets"]}
    assert codes["Scaled"] == [("GV803", "warning")]
    assert codes["Kept"] == [("GV411", "warning")]
    assert [t["status"] for t in report["targets"]] == ["passed", "passed"]
    (found,) = next(t["findings"] for t in report["targets"] if t["name"] == "Scaled")
    assert found["reproduce"] == "gradverify lint beside.py::Scaled"


@pytest.mark.parametrize(("option", "code"), [("--strict", 1), ("--ignore=GV8", 0), ("--select=GV1", 0)])
def test_check_counts_static_warnings_as_any(place, option, code):
    ran = place("lint")("check", "beside.py::Scaled", option, "--format", "json")
    assert ran.code == code
    assert ("GV803" in ran.out) == (option == "--strict")
