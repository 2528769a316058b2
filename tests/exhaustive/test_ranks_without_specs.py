"""The zoo of ranks without its specs: no right Function fails, and no wrong one passes."""

import json
import shutil

import forked_command
import pytest

from tests.exhaustive.test_zoo_seeds import ZOO

LEAST_FAILED = 7
"""Of the wrong ones: the others are right under another reading than their author's."""


@pytest.mark.parametrize("name", ["right", "wrong"])
def test_verdicts(name, tmp_path):
    for module in ("right", "wrong"):
        shutil.copy(ZOO / "ranks" / f"{module}.py", tmp_path)
    done = forked_command.run(["check", f"{name}.py", "--format", "json", "--timeout", "120"], tmp_path)
    verdicts = [target["status"] for target in json.loads(done.out)["targets"]]
    if name == "right":
        assert "failed" not in verdicts
        assert verdicts.count("inconclusive") >= len(verdicts) - 1
    else:
        assert "passed" not in verdicts
        assert verdicts.count("failed") >= LEAST_FAILED
