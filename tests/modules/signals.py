"""Says which processes it started, then stays for ever."""
import os
import re
import subprocess
from pathlib import Path

from torch.autograd import Function


class Stays(Function):
    @staticmethod
    def forward(ctx, x):
        child = subprocess.Popen(["sleep", "54321"])
        mark = Path(os.environ["MARK"])
        mark.with_suffix(".part").write_text(f"{os.getpid()} {child.pid}")
        mark.with_suffix(".part").rename(mark)
        re.match(r"(a+)+b", "a" * 64)
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
