"""The configuration through the command."""

import json

import pytest


@pytest.fixture(scope="module")
def here(place):
    here = place("screens")
    left_out = '["broken.py", "wrong*.py", "nothing.py", "statuses.py"]'
    text = f'paths = ["."]\nexclude = {left_out}\nseed = 5\nrtol = 1e-6\n'
    (here.folder / "pyproject.toml").write_text("[tool.gradverify]\n" + text)
    return here


def test_paths_without_a_target(here):
    ran = here("check", "--format", "json", "-v")
    report = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "gradverify: configuration: pyproject.toml\n")
    assert {target["file"] for target in report["targets"]} == {"right.py"}
    assert (report["seed"], report["settings"]["rtol"]) == (5, 1e-6)


def test_mistakes(here):
    (here.folder / "wrong.toml").write_text("[tool.gradverify]\nignor = ['GV1']\nmemroy = 3\n")
    ran = here("check", "right.py", "--config", "wrong.toml")
    assert (ran.code, ran.out) == (2, "")
    assert "wrong.toml:2: unknown key `ignor` in [tool.gradverify]; did you mean `ignore`?" in ran.err
    assert "2 errors in 1 configuration file; nothing was checked" in ran.err
