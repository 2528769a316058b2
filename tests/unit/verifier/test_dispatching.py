"""Our dispatch modes load no compiler, and are never compiled where there is one."""

import subprocess
import sys

LOADS = """
import sys

import torch

from gradverify.verifier.numerics.round_off import RandomRounding

def erring():
    with RandomRounding(1e-3, torch.Generator().manual_seed(0)) as mode:
        return 2 * torch.ones(3, dtype=torch.float64), mode

before, _ = erring()
assert not torch.equal(before, torch.full_like(before, 2.0))
assert "torch._dynamo" not in sys.modules
compiled = torch.compile(lambda x: 2 * x, backend="eager")
assert "torch._dynamo" in sys.modules
again, mode = erring()
assert torch.equal(before, again)
assert getattr(mode._apart, "_torchdynamo_disable", False)
"""


def test_the_compiler_is_loaded_for_nobody_who_has_not():
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
