"""From a save to the verdict: `gradverify check --watch` against a cold run of the same command.

    python benchmarks/save_to_verdict.py [--saves 10] [--pause 10]

A module of four Functions in a temporary folder, with a spec or with inferred inputs. In turn one gradient
is changed and saved, until the watching process says that it has checked, and then the command is run cold
on the same file. `--pause` seconds go before each, so that workers that are started ahead are ready, as they
are when somebody reads a verdict and edits. On a busy machine only the ratio of the medians means anything.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

HEAD = "from torch.autograd import Function\n"
FUNCTION = """

class F{number}(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return {number} * x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return {factor} * grad * y, {number} * grad * x
"""
COUNT = 4
COMMAND = (sys.executable, "-P", "-m", "gradverify", "check", "m.py")


def source(factor: int) -> str:
    """The module; the first Function is right for a factor of 1."""
    functions = (FUNCTION.format(number=n, factor=factor if n == 1 else n) for n in range(1, COUNT + 1))
    return HEAD + "".join(functions)


def spec() -> str:
    """A spec of all of them."""
    entries = "".join(f"  F{n}: {{inputs: {{x: [b, n], y: [b, n]}}}}\n" for n in range(1, COUNT + 1))
    return f"gradverify: 1\nmodule: m.py\nfunctions:\n{entries}"


def wait_for_verdict(messages: IO[str]) -> None:
    """Read until a round is told to be over."""
    for line in messages:
        if " checked " in line:
            return
    raise SystemExit("the watching process ended")


def measure(folder: Path, saves: int, pause: float) -> tuple[list[float], list[float]]:
    """Seconds from each save to its verdict, and of each cold run."""
    warm, cold = [], []
    module = folder / "m.py"
    module.write_text(source(1), "utf-8")
    with (folder / "report.txt").open("w") as out:
        watching = subprocess.Popen(
            [*COMMAND, "--watch"], cwd=folder, stdout=out, stderr=subprocess.PIPE, text=True
        )
        try:
            assert watching.stderr is not None
            wait_for_verdict(watching.stderr)
            for number in range(saves):
                time.sleep(pause)
                since = time.perf_counter()
                module.write_text(source(2 - number % 2), "utf-8")
                wait_for_verdict(watching.stderr)
                warm.append(time.perf_counter() - since)
                time.sleep(pause)
                since = time.perf_counter()
                subprocess.run(COMMAND, cwd=folder, capture_output=True, check=False)
                cold.append(time.perf_counter() - since)
        finally:
            watching.terminate()
            watching.wait()
    return warm, cold


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--saves", type=int, default=10)
    parser.add_argument("--pause", type=float, default=10.0)
    given = parser.parse_args()
    print(
        "| inputs | saves | save to verdict, s: median (range) | cold run, s: median (range) | cold / warm |"
    )
    print("|---|---|---|---|---|")
    for inputs in ("spec", "inferred"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if inputs == "spec":
                (folder / "m.gradverify.yaml").write_text(spec(), "utf-8")
            warm, cold = measure(folder, given.saves, given.pause)
        said = [f"{statistics.median(s):.2f} ({min(s):.2f} to {max(s):.2f})" for s in (warm, cold)]
        ratio = statistics.median(cold) / statistics.median(warm)
        print(f"| {inputs} | {given.saves} | {said[0]} | {said[1]} | {ratio:.1f} |")


if __name__ == "__main__":
    main()
