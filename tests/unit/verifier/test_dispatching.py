"""Our dispatch modes load no compiler, and are never compiled where there is one."""

import subprocess
import sys

LOADS = """
import sys

import torch

from gradverify.verifier.witnesses.rounding import Arithmetic

def erring():
    with Arithmetic(0, 1e-3):
        return 2 * torch.ones(3, dtype=torch.float64)

before = erring()
assert not torch.equal(before, torch.full_like(before, 2.0))
assert "torch._dynamo" not in sys.modules
compiled = torch.compile(lambda x: 2 * x, backend="eager")
assert "torch._dynamo" in sys.modules
assert torch.equal(before, erring())
"""


def test_the_compiler_is_loaded_for_nobody_who_has_not():
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
