"""The pre-commit hooks: what they run are commands of ours, and without paths they say what is missing."""

from pathlib import Path

import pytest
import yaml

HOOKS = {
    hook["id"]: hook
    for hook in yaml.safe_load((Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text())
}
STAGES = {"gradverify-lint": "pre-commit", "gradverify-check": "pre-push"}


def run(place, hook):
    program, *arguments = HOOKS[hook]["entry"].split()
    assert program == "gradverify"
    return place("lint")(*arguments)


def test_there_is_a_hook_for_each_stage():
    assert {name: hook["stages"] for name, hook in HOOKS.items()} == {k: [v] for k, v in STAGES.items()}


@pytest.mark.parametrize("hook", STAGES)
def test_a_hook_runs_in_the_users_own_environment_and_needs_paths(place, hook):
    assert (HOOKS[hook]["language"], HOOKS[hook]["pass_filenames"]) == ("system", False)
    ran = run(place, hook)
    assert ran.code == 2
    assert "set `paths` in [tool.gradverify]" in ran.err


def test_lint_fails_a_commit_for_what_stands_below_the_paths(place):
    here = place("lint")
    (here.folder / "pyproject.toml").write_text('[tool.gradverify]\npaths = ["refuses.py"]\n')
    _, *arguments = HOOKS["gradverify-lint"]["entry"].split()
    assert here(*arguments).code == 1
    (here.folder / "pyproject.toml").write_text(
        '[tool.gradverify]\npaths = ["refuses.py"]\nignore = ["GV8"]\n'
    )
    assert here(*arguments).code == 0
