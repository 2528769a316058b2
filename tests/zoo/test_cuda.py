"""The zoo on a GPU: the same verdicts as on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ZOO = Path(__file__).parent
BEYOND_THE_DEVICE = {"NumPyExp", "NumPyExpOnce", "FFTMagnitude"}
"""Functions that leave torch for NumPy, which knows no GPU: they raise there, rightly."""


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none")
@pytest.mark.parametrize(("folder", "exit_codes"), [("tutorial", {0, 1}), ("general", {0})])
def test_right_functions_pass_on_cuda(folder: str, exit_codes: set[int]) -> None:
    command = [
        sys.executable,
        "-m",
        "gradverify",
        "check",
        "right.py",
        "--device",
        "cuda",
        "--format",
        "json",
    ]
    done = subprocess.run(command, cwd=ZOO / folder, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    wrong = {t["name"] for t in report["targets"] if t["status"] not in {"passed", "skipped"}}
    assert wrong <= BEYOND_THE_DEVICE
    assert done.returncode in exit_codes
