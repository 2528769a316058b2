"""The pre-commit hook: what it runs is a command of ours, and without paths it says what is missing."""

from pathlib import Path

import yaml

HOOKS = Path(__file__).parents[2] / ".pre-commit-hooks.yaml"


def test_the_hook_runs_in_the_users_own_environment_before_a_push(place):
    (hook,) = yaml.safe_load(HOOKS.read_text())
    assert (hook["language"], hook["pass_filenames"], hook["stages"]) == ("system", False, ["pre-push"])
    program, *arguments = hook["entry"].split()
    assert program == "gradverify"
    ran = place("screens")(*arguments)
    assert ran.code == 2
    assert "set `paths` in [tool.gradverify]" in ran.err
