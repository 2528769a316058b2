"""What `gradverify check` of an elementwise Function holds in memory and takes, beside torch's fast mode.

    python benchmarks/memory.py [--entries 1000000] [--repeats 3]

Each in processes of its own, in turns: `gradverify check` (the largest of its processes is the worker),
torch's gradcheck in fast mode, and a plain forward and backward. Prints a Markdown table of the peak resident
set, what of it is beyond the plain forward and backward in tensors of the input's size, and CPU seconds,
start and imports included; the least of the repeats.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = """
import torch


class Elementwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh() * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        t = x.tanh()
        return grad_output * (t + x * (1 - t * t))
"""

SPEC = "gradverify: 1\nmodule: large.py\nfunctions:\n  Elementwise: {{inputs: {{x: [{entries}]}}}}\n"

PLAIN = """
import sys, torch
from large import Elementwise
x = torch.randn(int(sys.argv[1]), dtype=torch.float64, requires_grad=True)
y = Elementwise.apply(x)
y.backward(torch.ones_like(y))
"""

FAST = """
import sys, torch
from large import Elementwise
x = torch.randn(int(sys.argv[1]), dtype=torch.float64, requires_grad=True)
torch.autograd.gradcheck(Elementwise.apply, x, fast_mode=True)
"""


def measured(command: list[str], folder: Path) -> tuple[float, float]:
    """Peak resident set of the largest process, MiB, and CPU seconds of all. Raises where it fails."""
    script = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=2); "
    script += "r = resource.getrusage(resource.RUSAGE_CHILDREN); print(r.ru_maxrss, r.ru_utime + r.ru_stime)"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    told = subprocess.run(
        [sys.executable, "-c", script, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    peak, seconds = told.stdout.split()
    return int(peak) / 1024, float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=10**6)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    entries = str(options.entries)
    commands = {
        "plain forward and backward": [sys.executable, "-c", PLAIN, entries],
        "torch's fast mode": [sys.executable, "-c", FAST, entries],
        "gradverify check": [sys.executable, "-P", "-m", "gradverify", "check", "large.py", "-q"],
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "large.py").write_text(MODULE)
        (folder / "large.gradverify.yaml").write_text(SPEC.format(entries=entries))
        for _ in range(options.repeats):
            for name, command in commands.items():
                found[name].append(measured(command, folder))
    plain = min(peak for peak, _ in found["plain forward and backward"])
    tensor = options.entries * 8 / 2**20
    print(f"N = {entries}, a tensor of the input's size {tensor:.1f} MiB\n")
    print("| | peak, MiB | tensors beyond plain | CPU, s |\n|---|---|---|---|")
    for name, runs in found.items():
        peak, seconds = min(p for p, _ in runs), min(s for _, s in runs)
        print(f"| {name} | {peak:.0f} | {(peak - plain) / tensor:.0f} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
