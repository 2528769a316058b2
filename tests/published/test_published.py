"""The specs of published packages in `specs/`: every target that a spec names gets the verdict it asks for.

Not part of the ordinary run: `pip install --no-deps -r specs/requirements.txt`, then
`pytest tests/published`. A package that is not installed is skipped.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

SPECS = Path(__file__).parents[2] / "specs"
FILES = sorted(SPECS.glob("*/*.gradverify.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_every_function_of_the_spec_is_verified(file, tmp_path):
    written = yaml.safe_load(file.read_text())
    package = written["module"].partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{file.parent.name} is not installed")
    command = [sys.executable, "-m", "gradverify", "check", str(file), "--no-infer", "--format", "json"]
    path = os.pathsep.join([str(SPECS), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode in {0, 1}, ran.stderr[-2000:] + ran.stdout[-2000:]
    report = json.loads(ran.stdout)
    found = {t["name"]: t for t in report["targets"] if t["name"] in written["functions"]}
    assert set(found) == set(written["functions"])
    wrong = {
        name: [f"{f['code']} {f['message']}" for f in target["findings"] if f["severity"] == "error"]
        for name, target in found.items()
        if target["status"] not in {"passed", "xfailed", "skipped"}
    }
    assert not wrong
