"""`gradverify check` on a module of thirty ordinary Functions against the script that a user would write.

    python benchmarks/whole_module.py [--repeats 3] [--sizes ordinary,small]

Both are whole processes, start and imports of torch included, in turn on the same machine: `gradverify check`
at normal effort with the specs beside the module, and `ordinary_module/with_torch.py`, which calls torch's
slow gradcheck and gradgradcheck once on each base case, inputs of the same sizes. `small` divides every size
of both by about four. Prints a Markdown table of wall and CPU seconds (the children's user and system time),
medians after one run of each that is not counted. On a busy machine only CPU time means anything.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).parent / "ordinary_module"
OURS = (sys.executable, "-P", "-m", "gradverify", "check", "functions.py", "-q")
TORCHS = (sys.executable, "with_torch.py")
LEFT = frozenset({"w", "p"})
"""Sizes of a kernel and of its padding, which stay."""


def measured(command: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """Wall and CPU seconds of one run, which must succeed; bytecode is kept, as an installed package's is."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder.parent / "bytecode")
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def smaller(size: int) -> int:
    """A quarter, but two at least."""
    return max(2, size // 4)


def shrink(folder: Path) -> None:
    """Divide the sizes of the specs and of the script."""
    spec = folder / "functions.gradverify.yaml"
    sizes = re.compile(r"(\b\w+): (\d+)(?=[,}])")
    lines = []
    for line in spec.read_text().splitlines():
        head, brace, rest = line.partition("}, inputs")
        head = sizes.sub(lambda m: f"{m[1]}: {m[2] if m[1] in LEFT else smaller(int(m[2]))}", head + brace)
        lines.append(head + rest)
    spec.write_text("\n".join(lines) + "\n")
    script = folder / "with_torch.py"
    text = script.read_text()
    start, end = text.index("INPUTS = {"), text.index("ONCE = ")
    body = re.sub(r"(?<=[(, ])(\d+)(?=[,)])", lambda m: str(smaller(int(m[1]))), text[start:end])
    body = re.sub(r'("Conv1d": \().*', r"\1r(2, 2, 4), r(2, 2, 3), 1),", body)
    script.write_text(text[:start] + body + text[end:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", default="ordinary,small")
    asked = parser.parse_args()
    print("| sizes | ours, s | ours, CPU s | torch, s | torch, CPU s | ratio | ratio of CPU |")
    print("|---|---|---|---|---|---|---|")
    for sizes in asked.sizes.split(","):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "module"
            shutil.copytree(FOLDER, folder)
            if sizes == "small":
                shrink(folder)
            ours, theirs = [], []
            for command in (TORCHS, OURS):
                measured(command, folder)
            for _ in range(asked.repeats):
                theirs.append(measured(TORCHS, folder))
                ours.append(measured(OURS, folder))
        (a, b), (c, d) = (tuple(map(statistics.median, zip(*runs, strict=True))) for runs in (ours, theirs))
        print(f"| {sizes} | {a:.1f} | {b:.1f} | {c:.1f} | {d:.1f} | {a / c:.2f} | {b / d:.2f} |", flush=True)


if __name__ == "__main__":
    main()
